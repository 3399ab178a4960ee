"""A queue at work over any registry: members come and go, messages flow, and at the end it is judged what became of it.

Each member has connections of its own, as a process of its own would. The log is a directory: what happens to the
registry does not happen to it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import pxrs
from pxrs.errors import PxrsError
from pxrs.io.clock import SystemClock
from pxrs.model import Message, Owner
from pxrs.runtime.consumer.consumer import Consumer
from pxrs.runtime.delivery import Context
from pxrs.runtime.ports.events import Report
from pxrs.runtime.queue.queue import Queue
from pxrs.settings import Settings
from pxrs.stores.base import Store
from pxrs.testing.faults import racing
from pxrs.testing.faults.checker import Event, Processed, Sent, check

PARTITIONS = 8
GROUP = "billing"
PATIENCE = 60.0
"""The time that something may take which must happen. Never a statement about speed."""
HASTY = Settings(
    lease_ms=2_000, poll_ms=500, drain_ms=1_500, revoke_timeout_ms=2_000, commit_interval_ms=50, backoff_ms=1,
    progress_limit_ms=60_000,
)  # fmt: skip
"""A lost member is noticed within seconds."""
_CLOCK = SystemClock()


def eventually(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> None:
    """Wait until the condition holds. A registry that does not answer is no reason to give up."""
    deadline, trouble = _CLOCK.monotonic() + patience, ""
    while True:
        try:
            if condition():
                return
        except PxrsError as error:
            trouble = f" ({error})"
        assert _CLOCK.monotonic() < deadline, f"waited {patience:g} s in vain: {what}{trouble}"
        time.sleep(0.01)


def open_store(url: str, settings: Settings = HASTY) -> Store:
    """The store of a URL, opened as the members of a scenario open it."""
    return racing.open_store(url, settings)


class JumpingClock(SystemClock):
    """A machine whose wall clock is set while it runs."""

    offset = 0.0

    def wall(self) -> float:
        return SystemClock.wall() + self.offset


class Scenario:
    """The queue, its members, and what they did. ``with`` ends everything."""

    def __init__(self, registry: str, directory: Path) -> None:
        self.registry = registry
        self.log = f"file:{directory / 'orders'}"
        self.consumers: dict[str, Consumer] = {}
        self.events: list[Event] = []
        self.reports: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        self._lock = threading.Lock()
        self._sent = 0
        self._done_before: set[tuple[int, int]] = set()
        self._open = ExitStack()
        self.queue = self.opened(HASTY)

    # ---- members ---------------------------------------------------------------------------------------------------

    def opened(self, settings: Settings) -> Queue:
        """Another opener of the queue."""
        queue = pxrs.open(log=self.log, registry=self.registry, partitions=PARTITIONS, settings=settings)
        self._open.callback(_close_anyway, queue)
        return queue

    def join(self, *names: str, settings: Settings = HASTY, clock: SystemClock | None = None) -> None:
        """Start members; they are there when ``await_settled`` returns."""
        for name in names:
            queue = self.opened(settings)
            if clock is not None:
                queue = Queue(queue.log, queue.store, queue.partitioner, None, settings, clock)
            self.reports[name] = []
            self.consumers[name] = queue.consumer(GROUP, self._handler(name), member=name, report=self._hears(name))
            self.consumers[name].start()

    def leave(self, name: str) -> None:
        self.consumers.pop(name).stop()

    def crash(self, name: str) -> None:
        self.consumers.pop(name).kill()

    def _handler(self, name: str) -> Callable[[Message, Context], None]:
        def handle(message: Message, context: Context) -> None:
            with self._lock:
                by = Owner(name, str(id(handle)))
                self.events.append(Processed(message.partition, message.offset, by, context.epoch))

        return handle

    def _hears(self, name: str) -> Report:
        def hear(kind: str, facts: Mapping[str, Any]) -> None:
            self.reports[name].append((kind, dict(facts)))

        return hear

    # ---- messages --------------------------------------------------------------------------------------------------

    def send(self, count: int = 40) -> None:
        """Send this many messages, durably."""
        with self.queue.producer() as producer:
            receipts = [producer.send(f"key-{self._sent + n}", b"x") for n in range(count)]
            self._sent += count
            places = [receipt.result() for receipt in receipts]
        with self._lock:
            self.events += [Sent(*place) for place in places]

    @property
    def processed(self) -> int:
        """The number of calls of a handler so far."""
        return sum(isinstance(event, Processed) for event in list(self.events))

    # ---- what is awaited and judged ---------------------------------------------------------------------------------

    def await_settled(self, *names: str) -> None:
        """Wait until these members alone share all partitions, and everything is processed and committed."""
        eventually(lambda: self._is_settled(set(names)), f"{', '.join(names)} share everything and are done")

    def _is_settled(self, names: set[str]) -> bool:
        view = self.queue.group(GROUP).describe()
        shares = Counter(line.owner for line in view)
        fair = shares.keys() == names and max(shares.values()) - min(shares.values()) <= 1
        return fair and {m.member for m in view.members} == names and view.total_lag == 0

    def await_refused(self, *names: str) -> None:
        """Wait until these members have ended, because the registry went back."""
        for name in names:
            consumer = self.consumers.pop(name)
            eventually(lambda one=consumer: one.state == "fenced", f"{name} refuses to go on")  # type: ignore[misc]
            with suppress(pxrs.errors.WentBack):
                consumer.check()
                raise AssertionError(f"{name} ended without saying that the registry went back")

    def judge(self) -> None:
        """Check that nothing is lost, epochs have one owner each, and order is kept: by checker and messages sent."""
        with self._lock:
            history = list(self.events)
        sent = {(event.partition, event.offset) for event in history if isinstance(event, Sent)}
        done = self._done_before | _done(history)
        assert not sent - done, f"lost: {sorted(sent - done)[:5]}"
        _judge_owners(history)
        self._judge_repeats(history)
        # Without the rows the checker cannot know how a partition was lost: repeats are judged here.
        broken = [found for found in check(history) if found.promise != "bounded repeats"]
        assert not broken, broken[:5]

    def _judge_repeats(self, history: list[Event]) -> None:
        """Check that nobody repeats what an owner had done before a clean hand-over."""
        released = {
            (facts["partition"], facts["epoch"]): facts["position"] or 0
            for reports in self.reports.values()
            for kind, facts in list(reports)
            if kind == "released"
        }
        for event in history:
            if isinstance(event, Processed):
                below = [e for (p, e), at in released.items() if p == event.partition and event.offset < at]
                assert all(epoch >= event.epoch for epoch in below), f"repeated after a clean hand-over: {event}"

    def forget(self) -> None:
        """Judge what has happened until now, and begin a new history: epochs may start again after this."""
        self.judge()
        with self._lock:
            self._done_before |= _done(self.events)
            self.reports = {name: [] for name in self.reports}
            self.events = [event for event in self.events if isinstance(event, Sent)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for consumer in self.consumers.values():
            consumer.kill()  # a registry that is broken on purpose would make each clean leave wait
        self._open.close()


def _done(history: list[Event]) -> set[tuple[int, int]]:
    return {(event.partition, event.offset) for event in history if isinstance(event, Processed)}


def _judge_owners(history: list[Event]) -> None:
    owners: dict[tuple[int, int], Owner] = {}
    for event in history:
        if isinstance(event, Processed):
            owner = owners.setdefault((event.partition, event.epoch), event.by)
            assert owner == event.by, f"two owners of partition {event.partition} in epoch {event.epoch}"


def _close_anyway(queue: Queue) -> None:
    with suppress(PxrsError):
        queue.close()
