"""A consumer: a member of a group with a thread for each of its partitions."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pxrs.errors import PxrsError
from pxrs.io.signals import Latch, join
from pxrs.runtime.consumer.job import MemberLink
from pxrs.runtime.consumer.workers import Workers
from pxrs.runtime.group.membership import Membership, Running, signals, weakly
from pxrs.runtime.group.until_end import FinishLine
from pxrs.runtime.ports.counters import Counters
from pxrs.runtime.ports.events import silent
from pxrs.settings import check_seconds


class Consumer(Running):
    """Processes its share of a queue's partitions. Made by ``queue.consumer(...)``."""

    def __init__(
        self,
        membership: Membership,
        workforce: Workers,
        running: set[Any],
        to_the_end: Callable[[], FinishLine],
    ) -> None:
        super().__init__(membership, workforce)
        self.member_id = membership.member.me.id
        self._to_the_end = to_the_end
        self._membership = membership
        self._workforce = workforce
        self._running = running
        membership.ended = weakly(self._forget)
        weakref.finalize(self, Workers.halt, workforce).atexit = False  # ``pxrs.io.process_exit`` has its own order

    # ---- what users call -----------------------------------------------------------------------------------------

    def start(self) -> Consumer:
        """Begin, without blocking."""
        self._membership.start()
        self._running.add(self)
        return self

    def run(self, until_end: bool = False) -> None:
        """Consume until stopped: by ``stop``, by SIGTERM or SIGINT (a clean leave), or by an error, which is raised.

        ``until_end``: also when all that is in the queue now is processed, by this member or by others. Partitions
        that are paused do not count. A log line names what is waited for when nothing moves for ten seconds.
        """
        line = self._to_the_end() if until_end else None
        with signals(self._membership.request_stop):
            self.start()
            is_through = line is not None and line.wait(self)
            if is_through:
                self._membership.request_stop()
            self._membership.wait()
        self.check()
        if line is not None and is_through:
            line.confirm(self.unshown)

    def stop(self, timeout: float | None = None) -> None:
        """Leave cleanly: drain, flush, release; the others see it at once. Blocks until done."""
        check_seconds("timeout", timeout)
        # A handler may ask its own consumer to stop: it must not wait for itself.
        self._membership.stop(timeout, [worker.thread for worker in list(self._workforce.workers.values())])

    @property
    def state(self) -> str:
        """registering, waiting, replaying, live, troubled (no answer from the registry), stopping, stopped, fenced."""
        return self._membership.state or self._working_state()

    def _working_state(self) -> str:
        workers = list(self._workforce.workers.values())
        if not workers:
            return "waiting"
        return "live" if all(worker.is_live for worker in workers) else "replaying"

    def where(self, partition: int) -> int | None:
        """The next offset of a partition; None if it is not in this consumer's hands."""
        return self._workforce.where(partition)

    def done(self, partition: int) -> int | None:
        """The offset of ``where``, without output that waits for its sink; None also until the partition is begun."""
        return self._workforce.done(partition)

    @property
    def unshown(self) -> dict[int, int]:
        """Partitions that it gave up with output that is not shown, with the epoch. Their next owner shows it."""
        return dict(self._workforce.unshown)

    @property
    def partitions(self) -> list[int]:
        """The partitions in this consumer's hands now."""
        return sorted(self._membership.member.handles)

    @property
    def beat_age(self) -> float:
        """Seconds since the registry last confirmed a beat."""
        return self._membership.beat_age

    def __repr__(self) -> str:
        owned = ", ".join(map(str, self.partitions)) or "none"
        group = self._workforce.job.group
        return f"<Consumer {self.member_id!r} of group {group!r}: {self.state}, partitions {owned}>"

    def __enter__(self) -> Consumer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _forget(self) -> None:
        self._running.discard(self)


class Subscription:
    """Reads given partitions from given offsets, outside any group: no member, no checkpoints, no registry."""

    def __init__(self, workforce: Workers, running: set[Subscription]) -> None:
        self._workforce = workforce
        self._running = running
        running.add(self)
        self._done = Latch()  # a signal handler sets it, in the thread that waits for it: an Event cannot do that
        self._error: PxrsError | None = None

    @property
    def link(self) -> MemberLink:
        """The link for its workers. Only a member has a sink and commits."""
        return MemberLink(lambda: None, self._fail, self._end, silent, lambda _: None)

    def stop(self) -> None:
        """End when the running handlers have ended."""
        self._end()
        self._await_handlers()

    def _await_handlers(self) -> None:
        for worker in list(self._workforce.workers.values()):
            if worker.thread is not threading.current_thread():
                join(worker.thread)

    def run(self) -> None:
        """Block until stopped: by ``stop``, by SIGTERM or SIGINT, or by an error, which is raised."""
        with signals(self._end):
            self._done.wait()
            self._await_handlers()
        if self._error is not None:
            raise self._error

    @property
    def positions(self) -> dict[int, int | None]:
        """The next offset of each partition."""
        return {p: worker.position for p, worker in self._workforce.workers.items()}

    @property
    def tally(self) -> Counters:
        return self._workforce.tally()

    def __repr__(self) -> str:
        return f"<Subscription {'ended' if self._done.is_set() else 'running'}, positions {self.positions}>"

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _fail(self, error: PxrsError) -> None:
        self._error = self._error or error
        self._end()

    def _end(self) -> None:
        for worker in list(self._workforce.workers.values()):
            worker.drain()
        self._running.discard(self)
        with suppress(RuntimeError):  # two who end it at the same moment
            self._done.set()
