"""Helpers of the runtime's tests: sites with several members, stores that fail on demand, diaries, and waiting."""

from __future__ import annotations

import itertools
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from pxrs.errors import Unavailable
from pxrs.io.clock import SystemClock
from pxrs.logs.base import OpenOptions
from pxrs.logs.memory import MemoryLog
from pxrs.model import Message, Owner
from pxrs.rules import row_format as rows
from pxrs.rules.routing.partitioner import Partitioner
from pxrs.runtime.consumer.consumer import Consumer
from pxrs.runtime.consumer.job import MemberLink
from pxrs.runtime.delivery import Context
from pxrs.runtime.ports.events import silent
from pxrs.runtime.queue.queue import Queue
from pxrs.settings import Settings
from pxrs.stores.base import Outcome, Row, Store, Swap, Verdict
from pxrs.stores.memory import MemoryStore, SharedRows
from pxrs.testing.faults.checker import Event, Processed, Stored
from tests.tools.waiting import DEADLINE as DEADLINE
from tests.tools.waiting import eventually as eventually

PATIENT = Settings(lease_ms=60_000, poll_ms=60_000, drain_ms=20_000, commit_interval_ms=50, backoff_ms=1)
"""Nobody is judged dead within a test: what happens, happens because somebody said so."""

HASTY = Settings(
    lease_ms=1_200, poll_ms=400, drain_ms=800, revoke_timeout_ms=1_000, commit_interval_ms=50, backoff_ms=1,
    progress_limit_ms=60_000,
)  # fmt: skip
"""A lost member is noticed within a second or so."""

NO_LINK = MemberLink(lambda: None, lambda _: None, lambda: None, silent, lambda _: None)
"""For workers that no member drives."""


class Handled(NamedTuple):
    """One call of a handler for one message."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes
    member: str
    epoch: int
    attempt: int


class Recorder:
    """A handler that writes down what it was given. ``act`` runs first, and may raise or block."""

    def __init__(self, act: Callable[[Message], None] | None = None) -> None:
        self.seen: list[Handled] = []
        self._act = act

    def __call__(self, message: Message, context: Context) -> None:
        if self._act:
            self._act(message)
        place = (message.partition, message.offset, message.key, message.value)
        self.seen.append(Handled(*place, context.member, context.epoch, context.attempt))

    def __len__(self) -> int:
        return len(self.seen)

    @property
    def values(self) -> list[bytes]:
        return [handled.value for handled in list(self.seen)]

    @property
    def repeats(self) -> dict[bytes, int]:
        return {value: times for value, times in Counter(self.values).items() if times > 1}

    def members(self) -> set[str]:
        return {handled.member for handled in list(self.seen)}


class Diary:
    """What one consumer says: its callbacks, as (what, partition, position, epoch), and its reports."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int, int]] = []
        self.reports: list[tuple[str, dict[str, Any]]] = []

    def assigned(self, partition: int, checkpoint: int, epoch: int) -> None:
        self.calls.append(("assigned", partition, checkpoint, epoch))

    def revoked(self, partition: int, position: int, epoch: int) -> None:
        self.calls.append(("revoked", partition, position, epoch))

    def report(self, kind: str, facts: Mapping[str, Any]) -> None:
        self.reports.append((kind, dict(facts)))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [facts for found, facts in list(self.reports) if found == kind]

    def partitions(self, kind: str) -> list[int]:
        """The partitions of all reports of this kind, in their order."""
        return [facts["partition"] for facts in self.of(kind)]

    def called(self, what: str) -> list[int]:
        """The partitions for which this callback was called, in their order."""
        return [partition for found, partition, _, _ in list(self.calls) if found == what]


class SwitchedStore(Store):
    """A store that can be cut off, that counts, and whose swaps can be held up before or after they happen."""

    guarantees = MemoryStore.guarantees

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.down = False
        self.writes: list[str] = []
        self.reads = 0
        self.before: Callable[[Sequence[Swap]], None] = lambda _: None
        self.after: Callable[[Sequence[Swap]], None] = lambda _: None

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        self._reach()
        self.reads += 1
        return self.inner.read(keys)

    def scan(self, prefix: str) -> list[Row]:
        self._reach()
        self.reads += 1
        return self.inner.scan(prefix)

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        self._reach()
        self.before(swaps)
        outcomes = self._apply(swaps)
        self.writes += [swap.key for swap in swaps]
        self.after(swaps)
        return outcomes

    def _apply(self, swaps: Sequence[Swap]) -> list[Outcome]:
        return self.inner.swap_each(swaps)

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        self._reach()
        self.writes += [swap.key for swap in swaps]
        return self.inner.swap_all(swaps)

    def wait(self, prefix: str, after: int, timeout: float) -> int:
        self._reach()
        return self.inner.wait(prefix, after, timeout)

    def close(self) -> None:
        self.inner.close()

    def _reach(self) -> None:
        if self.down:
            raise Unavailable("cut off by the test")


class Gate:
    """Holds one kind of swap up: ``arrived`` is set when it came, and it goes on when the gate is opened."""

    def __init__(self, belongs: Callable[[Swap], bool]) -> None:
        self.arrived = threading.Event()
        self._open = threading.Event()
        self._belongs = belongs

    def __call__(self, swaps: Sequence[Swap]) -> None:
        if any(self._belongs(swap) for swap in swaps) and not self._open.is_set():
            self.arrived.set()
            assert self._open.wait(DEADLINE), "the test never opened the gate"

    def open(self) -> None:
        self._open.set()


def is_partition(swap: Swap) -> bool:
    return "/partition/" in swap.key


def is_commit(swap: Swap) -> bool:
    """A partition row with progress in it, in an owner's hands. (The first claim of a group has none.)"""
    if not is_partition(swap) or swap.value is None:
        return False
    row = rows.decode_partition(int(swap.key[-5:]), swap.value)
    return row.owner is not None and row.position > 0


class RecordingStore(SwitchedStore):
    """Writes down every partition row that was really stored, for the checker, in the order in which it happened."""

    def __init__(self, inner: Store, history: list[Event], lock: threading.Lock) -> None:
        super().__init__(inner)
        self.owner = Owner("nobody", "-")
        self._history = history
        self._lock = lock

    def _apply(self, swaps: Sequence[Swap]) -> list[Outcome]:
        with self._lock:
            outcomes = super()._apply(swaps)
            for swap, outcome in zip(swaps, outcomes, strict=True):
                if "/partition/" in swap.key and swap.value and outcome.verdict is Verdict.DONE:
                    row = rows.decode_partition(int(swap.key[-5:]), swap.value)
                    self._history.append(Stored(row.number, self.owner, row))
        return outcomes


class JumpingClock(SystemClock):
    """A machine whose wall clock is wrong, and may be set in the middle of things."""

    def __init__(self) -> None:
        self.offset = 0.0

    def wall(self) -> float:
        return super().wall() + self.offset


_sites = itertools.count()


class Site:
    """One queue in memory and several members, each with a store handle of its own, as processes would have."""

    def __init__(self, partitions: int = 8, settings: Settings = PATIENT) -> None:
        self.partitions = partitions
        self.settings = settings
        self.table = SharedRows()
        self.history: list[Event] = []
        self.diaries: dict[str, Diary] = {}
        self.stores: dict[str, RecordingStore] = {}
        self.consumers: dict[str, Consumer] = {}
        self._lock = threading.Lock()
        self._url = f"memory:site-{os.getpid()}-{next(_sites)}-{secrets.token_hex(4)}"
        self._closing = ExitStack()
        self.queue = self.open(MemoryStore(self.table))

    def open(self, store: Store, clock: SystemClock | None = None, settings: Settings | None = None) -> Queue:
        queue = self.queue_of_its_own(store, clock, settings)
        self._closing.callback(queue.close)
        return queue

    def queue_of_its_own(
        self, store: Store, clock: SystemClock | None = None, settings: Settings | None = None
    ) -> Queue:
        """A queue object that nobody here holds on to."""
        log = MemoryLog.open(self._url, OpenOptions(self.partitions), self.settings, True)
        partitioner = Partitioner(self.partitions, hash=log.identity.hash, reduce=log.identity.reduce)
        return Queue(log, store, partitioner, None, settings or self.settings, clock or SystemClock())

    def member(
        self,
        name: str,
        handler: Callable[..., Any],
        settings: Settings | None = None,
        clock: SystemClock | None = None,
        prepare: Callable[[RecordingStore], None] | None = None,
        **more: Any,
    ) -> Consumer:
        """Start a consumer of group "g". ``prepare`` may change its store before anything is written."""
        store = RecordingStore(MemoryStore(self.table), self.history, self._lock)
        diary = Diary()
        wish = {"assigned": diary.assigned, "revoked": diary.revoked, "report": diary.report, **more}
        consumer = self.open(store, clock, settings).consumer("g", handler, member=name, **wish)
        store.owner = consumer._membership.member.me
        if prepare:
            prepare(store)
        self.stores[name], self.diaries[name], self.consumers[name] = store, diary, consumer
        return consumer.start()

    def recorder(self, act: Callable[[Message], None] | None = None) -> Callable[..., None]:
        """A handler that puts what it processed into the history, for the checker."""

        def handle(message: Message, context: Context) -> None:
            if act:
                act(message)
            me = self.consumers[context.member]._membership.member.me
            with self._lock:
                self.history.append(Processed(message.partition, message.offset, me, context.epoch))

        return handle

    def send(self, count: int, first: int = 0) -> list[bytes]:
        """Messages with values of their own, spread evenly over all partitions."""
        values = [b"message-%d" % number for number in range(first, first + count)]
        with self.queue.producer() as producer:
            for value in values:
                producer.send(None, value)
        return values

    def owners(self) -> dict[int, str | None]:
        return {line.partition: line.owner for line in self.queue.group("g").describe()}

    def owned_by(self, *names: str) -> bool:
        """Whether all partitions are owned, by these in fair shares."""
        shares = Counter(self.owners().values())
        return set(shares) == set(names) and max(shares.values()) - min(shares.values()) <= 1

    def lag(self) -> int:
        return self.queue.group("g").describe().total_lag

    def await_owners(self, *names: str) -> None:
        eventually(lambda: self.owned_by(*names), f"all partitions owned by {names}; now {self.owners()}")

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        for store in self.stores.values():
            store.down = False
        self._closing.close()
