"""A whole group in one thread: the real member, coordinator and registry code on a virtual clock, with a store that
delays, fails, loses replies and drops wake-ups, while members pause, crash, come back, leave and see their clocks jump.

Everything is decided by one seed, so a failing history is its own bug report and replays exactly:

    python -m tests.simulation.histories --seed 4711

The code under test stays synchronous: each simulated process is a greenlet that is switched away from whenever it
calls the store or sleeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import greenlet

from pxrs.errors import PxrsError
from pxrs.model import Grant, MemberRow, Owner
from pxrs.rules import row_format as rows
from pxrs.runtime.group.member import Member
from pxrs.runtime.group.work import Work
from pxrs.runtime.registry.registry import Registry
from pxrs.settings import Settings
from pxrs.stores.base import Outcome, Row, Store, Swap
from pxrs.stores.memory import MemoryStore
from pxrs.testing.faults.checker import Planned, Processed, Sent, Stored
from tests.simulation.timeline import CALM, Faults, SkewedClock, Timeline
from tests.simulation.wire import Wire
from tests.tools.calm_work import CalmWork

QUEUE, GROUP = "simulated", "group"
LEASES_MS = (2_000, 3_000, 4_500)
"""Members may have different leases; each is judged by its own."""
MOST_SPINS = 20
OPERATOR = Owner("operator", "-")
SETTINGS = Settings(
    lease_ms=3_000,
    poll_ms=4_000,
    drain_ms=2_500,
    revoke_timeout_ms=3_000,
    progress_limit_ms=60_000,
    commit_every=4,
    commit_interval_ms=1_500,
)


@dataclass(slots=True)
class _Task:
    """One partition in a simulated worker's hands."""

    grant: Grant
    position: int
    running: bool = False
    draining: bool = False
    paused: bool = False


class SimulatedWork(CalmWork):
    """Processes messages in virtual time, one at a time for each partition, as the thread engine does."""

    def __init__(self, cluster: Cluster, process: Process) -> None:
        self._cluster = cluster
        self._process = process
        self._tasks: dict[int, _Task] = {}
        self._alive_until = 0.0

    def start(self, grant: Grant, checkpoint: int | None, paused: bool, note: str) -> None:
        self._tasks[grant.partition] = task = _Task(grant, checkpoint or 0, paused=paused)
        self._later(task)

    def position(self, partition: int) -> int | None:
        return self._tasks[partition].position

    def drain(self, partition: int) -> None:
        self._tasks[partition].draining = True

    def drained(self, partition: int) -> bool:
        task = self._tasks[partition]
        return task.draining and not task.running

    def stop(self, partition: int, lost: bool) -> None:
        del self._tasks[partition]

    def pause(self, partition: int, paused: bool) -> None:
        self._tasks[partition].paused = paused

    def extend(self, until: float) -> None:
        self._alive_until = until

    def _later(self, task: _Task) -> None:
        timeline = self._cluster.timeline
        timeline.at(
            timeline.now + timeline.random.uniform(0.05, 0.8),
            lambda: self._process.when_awake(lambda: self._step(task)),
        )

    def _step(self, task: _Task) -> None:
        """Take the next message, or finish the one that was taken. A lost task ends here."""
        if self._tasks.get(task.grant.partition) is not task:
            return
        if task.running:
            self._finish(task)
        elif not task.draining and not task.paused and self._cluster.timeline.now < self._alive_until:
            task.running = task.position < self._cluster.ends[task.grant.partition]
        self._later(task)

    def _finish(self, task: _Task) -> None:
        grant = task.grant
        self._cluster.timeline.history.append(Processed(grant.partition, task.position, grant.owner, grant.epoch))
        task.position += 1
        task.running = False
        if task.draining:
            self._process.wake()


class Nap:
    """The sleep of one thread of a simulated process: over when its time is, or when somebody ends it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._count = 0
        self._sleeper: Any = None

    def take(self, seconds: float | None) -> None:
        """Sleep; None: until it is ended."""
        timeline = self._process.cluster.timeline
        self._count += 1
        self._sleeper = greenlet.getcurrent()
        if seconds is not None:
            timeline.at(timeline.now + seconds, partial(self._over, self._count))
        self._process.cluster.hub.switch()

    def end(self) -> None:
        if self._sleeper is not None:
            timeline = self._process.cluster.timeline
            timeline.at(timeline.now, partial(self._over, self._count))

    def _over(self, count: int) -> None:
        def go_on() -> None:
            if self._sleeper is not None and count == self._count:
                sleeper, self._sleeper = self._sleeper, None
                sleeper.switch()

        self._process.when_awake(go_on)


class Process:
    """One simulated life of a member: its loop, its memory, its clock."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.clock = SkewedClock(cluster.timeline)
        inc = f"{cluster.timeline.random.getrandbits(64):016x}"
        self.owner = Owner(name, inc)
        registry = Registry(Wire(cluster, self), QUEUE, GROUP, self.clock, waker=name)
        grace = cluster.timeline.random.choice((0, 0, 5_000))
        settings = cluster.settings.with_(lease_ms=cluster.timeline.random.choice(LEASES_MS))
        row = MemberRow(name, inc, lease_ms=settings.lease_ms, grace_ms=grace)
        work = self._new_work(settings)
        self.member = Member(registry, work, row, settings, self.clock, self._nonce, cluster.report)
        self.excused = False
        """Whether somebody gave this process a reason to end with an error: a twin, or an eviction."""
        self._registry = registry
        self.alive = True
        self._asleep_until = 0.0
        self._nap = Nap(self)
        self._spins = 0
        self.spun = False
        self._loop = greenlet.greenlet(self._run, parent=cluster.hub)
        cluster.timeline.at(cluster.timeline.now, self._loop.switch)

    def _new_work(self, settings: Settings) -> Work:
        return SimulatedWork(self.cluster, self)

    def _nonce(self) -> str:
        return f"{self.cluster.timeline.random.getrandbits(64):016x}"

    def _run(self) -> None:
        """The loop that a thread runs in a real process."""
        while self.alive and not self._initialized():
            self.sleep(0.5)
        while self.alive and not self.member.finished:
            began = self.cluster.timeline.now
            wake = self.member.round()
            self._check_spinning(idle=wake <= began == self.cluster.timeline.now)
            self._rest(max(0.001, wake - self.cluster.timeline.now))
        self._exit()

    def _rest(self, seconds: float) -> None:
        self._nap.take(seconds)

    def _exit(self) -> None:
        """The member has ended, and the process with it."""
        self.alive = False

    def _check_spinning(self, idle: bool) -> None:
        """A round that asked the store for nothing and wants to be called at once again would burn a real core."""
        self._spins = self._spins + 1 if idle else 0
        self.spun = self.spun or self._spins > MOST_SPINS

    def _initialized(self) -> bool:
        try:
            self._registry.initialize(self.cluster.partitions, "xxh64-spark", "pmod")
        except PxrsError:
            return False
        return True

    def sleep(self, seconds: float) -> None:
        """Let the others go on meanwhile. A paused process goes on later, a dead one never."""
        me = greenlet.getcurrent()
        self.cluster.timeline.at(self.cluster.timeline.now + seconds, lambda: self.when_awake(me.switch))
        self.cluster.hub.switch()

    def wake(self) -> None:
        """Somebody rang, or a handler finished."""
        self._nap.end()

    def when_awake(self, action: Callable[[], None]) -> None:
        """Do it now, or when this process is continued, or never if it is dead."""
        if not self.alive:
            return
        if self.cluster.timeline.now < self._asleep_until:
            self.cluster.timeline.at(self._asleep_until, lambda: self.when_awake(action))
        else:
            action()

    def pause(self, seconds: float) -> None:
        """As SIGSTOP and, later, SIGCONT."""
        self._asleep_until = self.cluster.timeline.now + seconds

    def leave(self) -> None:
        self.member.leave()
        self.wake()

    def crash(self) -> None:
        """As kill -9: memory is gone; writes that are on their way still land."""
        self.alive = False

    def end(self) -> None:
        """The story is over: a greenlet that waits for ever would keep all of it in memory."""
        self.crash()
        self._loop.throw()

    def hear(self) -> None:
        self.member.poll()
        self.wake()


class DirectStore(Store):
    """The store without a wire: for an operator whose commands simply happen."""

    guarantees = Wire.guarantees

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        return self._cluster.store.read(keys)

    def scan(self, prefix: str) -> list[Row]:
        return self._cluster.store.scan(prefix)

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        return self._cluster.apply(OPERATOR, swaps)

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        return self._cluster.apply_all(OPERATOR, swaps)

    def wait(self, prefix: str, after: int, timeout: float) -> int:
        raise NotImplementedError("an operator does not wait")

    def close(self) -> None:
        pass


@dataclass
class Cluster:
    """The group: its store, its log, its processes, and who may go wrong how often."""

    timeline: Timeline
    partitions: int
    store: MemoryStore = field(default_factory=MemoryStore)
    settings: Settings = SETTINGS
    faults: Faults = CALM
    processes: list[Process] = field(default_factory=list)
    struck: int = 0
    ends: list[int] = field(default_factory=list)
    events: list[tuple[float, str, Mapping[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hub = greenlet.getcurrent()
        self.ends = [0] * self.partitions
        self._base = f"/pxrs/{QUEUE}/{GROUP}/"

    def report(self, kind: str, facts: Mapping[str, Any]) -> None:
        self.events.append((self.timeline.now, kind, facts))

    def strikes(self, fault: str) -> bool:
        chance: float = getattr(self.faults, fault)
        hit = chance > 0 and self.timeline.random.random() < chance
        self.struck += hit
        return hit

    def journey(self) -> float:
        if self.strikes("slow"):
            return self.timeline.random.uniform(0.2, 2.0)
        return self.timeline.random.uniform(0.0005, 0.01)

    def start(self, name: str) -> Process:
        process = self._new_process(name)
        self.processes.append(process)
        return process

    def _new_process(self, name: str) -> Process:
        return Process(self, name)

    def continue_all(self) -> None:
        for process in self.living():
            process.pause(0.0)

    def living(self) -> list[Process]:
        return [p for p in self.processes if p.alive]

    def send(self, count: int) -> None:
        for _ in range(count):
            partition = self.timeline.random.randrange(self.partitions)
            self.timeline.history.append(Sent(partition, self.ends[partition]))
            self.ends[partition] += 1

    # ---- the store's side of a write --------------------------------------------------------------------------

    def apply(self, by: Owner, swaps: Sequence[Swap]) -> list[Outcome]:
        before = self.store.table.revision
        outcomes = self.store.swap_each(swaps)
        self._record(by, before)
        return outcomes

    def apply_all(self, by: Owner, swaps: Sequence[Swap]) -> Outcome:
        before = self.store.table.revision
        outcome = self.store.swap_all(swaps)
        self._record(by, before)
        return outcome

    def _record(self, by: Owner, before: int) -> None:
        """Write down what really changed, and wake those who listen."""
        changed = [key for revision, key in self.store.table.changes if revision > before]
        for key in changed:
            row = self.store.table.rows.get(key)
            kind = key.removeprefix(self._base).partition("/")[0]
            if kind == "partition" and row is not None:
                stored = rows.decode_partition(int(key[-5:]), row.value)
                self.timeline.history.append(Stored(stored.number, by, stored))
            elif kind == "group" and row is not None:
                self.timeline.history.append(Planned(by, rows.decode_group(GROUP, row.value)))
            elif kind == "bell":
                self._ring()

    def _ring(self) -> None:
        for process in self.living():
            if not self.strikes("dropped_wake"):
                delay = self.timeline.random.uniform(0.0, 0.05)
                self.timeline.at(self.timeline.now + delay, lambda p=process: p.when_awake(p.hear))  # type: ignore[misc]
