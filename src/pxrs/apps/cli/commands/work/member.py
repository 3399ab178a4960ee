"""One process of ``pxrs work`` (started by the supervisor): a member of the group with the user's handler.

It is tied to its supervisor by a socket. What to do comes in as one line; one byte goes out when it has joined; and
when the other end is gone, however the supervisor has ended, this process leaves the group cleanly.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pxrs.apps.cli import values as words
from pxrs.apps.cli.commands.work.handler import load_handler
from pxrs.apps.cli.options import opened
from pxrs.errors import DuplicateMember, OutOfRange, PxrsError, Refused, masked

if TYPE_CHECKING:
    from pxrs.runtime.consumer.consumer import Consumer
    from pxrs.runtime.queue.queue import Queue
    from pxrs.settings import Settings

SET_UP_IS_WRONG = 78
"""Exit code: what was asked for cannot work, and will not the next time either."""
NAME_IS_TAKEN = 79
"""Exit code: a newer process runs under this member name."""
JOINED = b"j"
"""The word that the supervisor gets when this process has joined its group."""


@dataclass(frozen=True)
class Order:
    """The work of one process: the options of ``pxrs work``, and the number of the process."""

    handler: str
    url: str = field(repr=False)  # it may hold a password, as the next one
    registry: str | None = field(repr=False)
    group: str
    deliver: Literal["message", "list", "arrow"]
    start: str
    tries: int | None
    on_failure: Literal["dead-letter", "skip", "stop"] | None
    until_end: bool
    verbose: bool
    name: str
    number: int = 1

    @property
    def member(self) -> str:
        """The member name of this process. It stays the same, so that a new process takes its own partitions back."""
        return f"{self.name}-{self.number}"

    def as_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def main(tie: socket.socket) -> int:
    """Work as ordered until asked to leave; returns the exit code."""
    with tie.makefile("rb", buffering=0) as lines:
        order = Order(**json.loads(lines.readline()))
    try:
        return _Process(order, tie).run()
    except PxrsError as error:
        return _failed(order, error, 1)


def _failed(order: Order, error: PxrsError, code: int) -> int:
    print(f"pxrs[{order.number}]: error: {masked(str(error))}", file=sys.stderr, flush=True)
    return code


class _Process:
    def __init__(self, order: Order, tie: socket.socket) -> None:
        self._order = order
        self._tie = tie
        self._joined = False

    def run(self) -> int:
        try:
            handler = load_handler(self._order.handler)
            self._log()
            with opened(self._order.url, self._order.registry) as queue:
                return self._work(queue, handler)
        except (Refused, OutOfRange) as error:
            return _failed(self._order, error, 1 if self._joined else SET_UP_IS_WRONG)

    def _log(self) -> None:
        """Set logging up, after the user's module was imported: a module that has done so keeps its own."""
        level = logging.INFO if self._order.verbose else logging.WARNING
        logging.basicConfig(level=level, format=f"pxrs[{self._order.number}]: %(message)s")

    def _work(self, queue: Queue, handler: Callable[..., Any]) -> int:
        order = self._order
        consumer = queue.consumer(
            order.group, handler, order.member, order.deliver, words.start(order.start),
            settings=_settings(order, queue.settings), report=self._hear,
        )  # fmt: skip
        _leave_with(self._tie, consumer)
        try:
            consumer.run(order.until_end)
        except DuplicateMember as error:
            return _failed(order, error, NAME_IS_TAKEN if _has_successor(queue, order) else 1)
        return 0

    def _hear(self, kind: str, facts: Mapping[str, Any]) -> None:  # noqa: ARG002 - the shape of a report
        if kind == "joined" and not self._joined:
            self._joined = True
            with suppress(OSError):  # the supervisor has gone: the thread that listens notices, and this process leaves
                self._tie.send(JOINED)


def _settings(order: Order, settings: Settings) -> Settings:
    given: dict[str, Any] = {"tries": order.tries, "on_failure": order.on_failure}
    if settings.metrics_port:  # all processes are on one machine: each has a port of its own
        given["metrics_port"] = settings.metrics_port + order.number - 1
    return settings.with_(**{name: value for name, value in given.items() if value is not None})


def _has_successor(queue: Queue, order: Order) -> bool:
    """Whether another process runs under this name; else an operator has evicted this one."""
    row = queue.group(order.group).registry.member(order.member).row
    return row is not None and not row.is_evicted


def _leave_with(tie: socket.socket, consumer: Consumer) -> None:
    def listen() -> None:
        with suppress(OSError):  # a reset is an end too
            while tie.recv(1):
                pass
        consumer.stop()

    threading.Thread(target=listen, name="pxrs-supervisor", daemon=True).start()


if __name__ == "__main__":
    given = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(given.fileno(), False)  # commands that the handler runs have no part in it
    sys.exit(main(given))
