"""Leases, fencing and rebalances under faults, with real threads: stores that fail, replies that come late, clocks
that jump, members that vanish. The numbers are those of the catalogue of faults."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pxrs
from pxrs.errors import Fenced
from pxrs.logs.base import OpenOptions
from pxrs.logs.memory import MemoryLog
from pxrs.model import MemberRow, Message, Owner
from pxrs.rules.liveness import Watch
from pxrs.rules.routing.partitioner import Partitioner
from pxrs.rules.targets import Target
from pxrs.runtime.queue.queue import Queue
from pxrs.stores.base import Outcome, Row, Store
from pxrs.stores.memory import MemoryStore
from pxrs.stores.sqlite.store import SqliteStore
from pxrs.testing.faults.checker import check
from tests.runtime.support import (
    DEADLINE,
    HASTY,
    PATIENT,
    Gate,
    JumpingClock,
    Recorder,
    Site,
    SwitchedStore,
    eventually,
    is_partition,
)

# ---- leases -------------------------------------------------------------------------------------------------------


def test_b02_a_member_that_cannot_beat_stops_before_it_can_be_taken_over() -> None:
    """The order is checked in the history, not by a clock: nothing of A's old epochs after B's first claim."""
    handlers: dict[str, Recorder] = {}
    with Site(partitions=4, settings=HASTY) as site:
        handlers["A"], handlers["B"] = Recorder(), Recorder()
        site.member("A", handlers["A"])
        site.await_owners("A")
        site.member("B", handlers["B"])
        site.await_owners("A", "B")
        mine = [p for p, owner in site.owners().items() if owner == "A"]
        site.stores["A"].down = True
        deadline = site.consumers["A"]._workforce.job
        eventually(lambda: deadline.clock.monotonic() >= deadline.alive_until, "the end of A's time")
        done = len(handlers["A"])
        site.send(40)
        site.await_owners("B")
        eventually(lambda: site.lag() == 0, "A's messages, by B")
        assert len(handlers["A"]) == done, "A took nothing after its time was over"
        assert len(handlers["B"]) == 40 and handlers["B"].repeats == {}
        site.stores["A"].down = False
        site.await_owners("A", "B")
        assert sorted(site.diaries["A"].partitions("lost")) == mine
        assert len(handlers["A"]) == done, "nor when it could beat again, before it had looked at the rows"


def test_b02_a_retry_is_not_begun_after_the_time_is_over() -> None:
    calls: list[int] = []

    def fail(message: Message) -> None:
        calls.append(message.offset)
        raise OSError("always")

    settings = HASTY.with_(tries=1_000_000, backoff_ms=20, backoff_max_ms=20, progress_limit_ms=3_600_000)
    with Site(partitions=1, settings=settings) as site:
        site.send(1)
        site.member("A", fail)
        eventually(lambda: len(calls) > 3, "some tries")
        site.stores["A"].down = True
        job = site.consumers["A"]._workforce.job
        worker = site.consumers["A"]._workforce.workers[0]
        eventually(lambda: job.clock.monotonic() >= job.alive_until, "the end of its time")
        eventually(lambda: worker.busy_since is None, "the end of the last try")
        tried = len(calls)
        waited = job.clock.monotonic() + 0.2
        eventually(lambda: job.clock.monotonic() > waited, "ten times the back-off")
        assert len(calls) == tried
        site.stores["A"].down = False
        eventually(lambda: len(calls) > tried, "tries with a new lease")
        site.consumers["A"].kill()


def test_b02_a_consumer_whose_registry_is_gone_can_still_be_stopped() -> None:
    with Site(partitions=1, settings=HASTY) as site:
        consumer = site.member("A", Recorder())
        site.await_owners("A")
        site.stores["A"].down = True
        consumer.stop(timeout=DEADLINE)
        assert consumer.state in ("stopped", "fenced")


def test_b05_a_claim_that_is_answered_after_the_lease_is_not_reported() -> None:
    gate = Gate(lambda swap: is_partition(swap) and b'["A",' in (swap.value or b""))
    late, other = Recorder(), Recorder()
    with Site(partitions=2, settings=HASTY) as site:
        site.member("B", other)
        site.await_owners("B")
        consumer = site.member("A", late, prepare=lambda store: setattr(store, "after", gate))
        assert gate.arrived.wait(DEADLINE), "A's claim is stored, its answer is on its way"
        [stale] = [line for line in site.queue.group("g").describe() if line.owner == "A"]
        site.await_owners("B")
        site.send(20)
        eventually(lambda: site.lag() == 0, "B's work on both")
        gate.open()
        site.await_owners("A", "B")
        assert consumer.state != "fenced" and len(other) == 20 and len(late) == 0
        epochs = [epoch for what, _, _, epoch in site.diaries["A"].calls if what == "assigned"]
        assert stale.epoch not in epochs, "the late claim was never reported as an assignment"
        assert site.diaries["A"].of("refused") == []


def test_b06_a_dropped_consumer_takes_its_threads_with_it_and_is_replaced() -> None:
    handler = Recorder()
    with Site(partitions=2, settings=HASTY) as site:
        queue = site.queue_of_its_own(SwitchedStore(MemoryStore(site.table)))
        consumer = queue.consumer("g", Recorder(), member="A").start()
        site.await_owners("A")
        threads = [consumer._membership._loop.thread, consumer._membership._watcher.thread]
        threads += [worker.thread for worker in consumer._workforce.workers.values()]
        alive = weakref.ref(consumer)
        del consumer, queue

        def gone() -> bool:
            gc.collect()
            return alive() is None and not any(thread.is_alive() for thread in threads)

        eventually(gone, "the end of the dropped consumer's threads")
        site.member("B", handler)
        site.await_owners("B")
        site.send(10)
        eventually(lambda: len(handler) == 10, "B's work")


def test_a_consumer_that_nobody_holds_goes_on_as_long_as_its_queue() -> None:
    handler = Recorder()
    with Site(partitions=2, settings=HASTY) as site:
        site.queue.consumer("g", handler, member="A").start()
        gc.collect()
        site.await_owners("A")
        site.send(10)
        eventually(lambda: len(handler) == 10, "the work of the consumer that only its queue knows")


@pytest.mark.slow
@pytest.mark.parametrize("jump", [3_600.0, -3_600.0])
def test_b07_a_jumping_clock_takes_nothing_away_and_keeps_nothing_for_ever(jump: float) -> None:
    clock, handler = JumpingClock(), Recorder()
    with Site(partitions=4, settings=HASTY.with_(lease_ms=8_000, beat_ms=100)) as site:
        site.member("A", handler, clock=clock)
        site.await_owners("A")
        site.member("B", handler)
        site.await_owners("A", "B")
        before = site.owners()
        clock.offset = jump
        beats = site.table.revision
        site.send(40)
        eventually(lambda: site.lag() == 0 and site.table.revision > beats + 12, "some beats after the jump")
        assert site.owners() == before
        assert [d.of("lost") + d.of("released") for d in site.diaries.values()][1] == [], "no premature takeover"
        assert site.diaries["A"].of("lost") == []
        site.consumers["A"].kill()
        site.await_owners("B")


class PooledStore(Store):
    """Every call on a new connection, which is closed after it: as behind a pooler, or with short-lived sessions."""

    guarantees = SqliteStore.guarantees

    def __init__(self, path: Path) -> None:
        self._url = f"sqlite:{path}"
        self.sessions = 0

    def _once(self, act: Callable[[SqliteStore], Any]) -> Any:
        store = SqliteStore.open(self._url, PATIENT)
        self.sessions += 1
        try:
            return act(store)
        finally:
            store.close()

    def read(self, keys: Any) -> list[Row | None]:
        return list(self._once(lambda store: store.read(keys)))

    def scan(self, prefix: str) -> list[Row]:
        return list(self._once(lambda store: store.scan(prefix)))

    def swap_each(self, swaps: Any) -> list[Outcome]:
        return list(self._once(lambda store: store.swap_each(swaps)))

    def swap_all(self, swaps: Any) -> Outcome:
        outcome: Outcome = self._once(lambda store: store.swap_all(swaps))
        return outcome

    def wait(self, prefix: str, after: int, timeout: float) -> int:
        return int(self._once(lambda store: store.wait(prefix, after, min(timeout, 0.2))))

    def close(self) -> None:
        pass


def test_b08_b09_ownership_does_not_hang_on_a_session_of_the_store(tmp_path: Path) -> None:
    """Neither a recycled connection nor one that changes with every transaction frees or leaks a partition."""
    log = MemoryLog.open("memory:", OpenOptions(4), PATIENT, True)
    store = PooledStore(tmp_path / "registry.db")
    partitioner = Partitioner(4, hash=log.identity.hash, reduce=log.identity.reduce)
    handler = Recorder()
    with Queue(log, store, partitioner, None, PATIENT, JumpingClock()) as queue:
        with queue.producer() as producer:
            for number in range(40):
                producer.send(None, b"%d" % number)
        consumer = queue.consumer("g", handler, member="A").start()
        eventually(lambda: queue.groups() and queue.group("g").describe().total_lag == 0, "the work")
        held = store.sessions
        assert held > 10 and [line.epoch for line in queue.group("g").describe()] == [1] * 4
        consumer.stop()
        assert [line.owner for line in queue.group("g").describe()] == [None] * 4
    assert len(handler) == 40


def test_b08_b09_no_store_uses_session_locks() -> None:
    source = Path(pxrs.__file__).parent
    words = ("advisory_lock", "get_lock(", "locking_mode")
    found = [(path.name, word) for path in source.rglob("*.py") for word in words if word in path.read_text().lower()]
    assert found == []


# ---- leading ------------------------------------------------------------------------------------------------------


def test_b10_the_plan_of_a_deposed_leader_is_refused() -> None:
    with Site(partitions=2) as site:
        registry = site.queue.group("g").registry
        registry.initialize(2, site.queue.log.identity.hash, site.queue.log.identity.reduce)
        old = registry.elect(Owner("A", "1"), registry.group())
        new = registry.elect(Owner("B", "1"), registry.group())
        registry.publish(new, Target.from_owners(2, {0: "B", 1: "B"}), "nonce-b", "B joined")
        stands = registry.group()
        with pytest.raises(Fenced):
            registry.publish(old, Target.from_owners(2, {0: "A", 1: "A"}), "nonce-a", "A joined")
        assert registry.group() == stands and stands.generation == 1


@pytest.mark.slow
def test_b10_a_leader_that_was_stopped_while_it_planned_is_deposed() -> None:
    gate = Gate(lambda swap: swap.key.endswith("/group") and b'"C"' in (swap.value or b""))
    with Site(partitions=4, settings=HASTY.with_(lease_ms=5_000, beat_ms=200)) as site:
        site.member("A", site.recorder(), prepare=lambda store: setattr(store, "before", gate))
        site.await_owners("A")
        site.member("B", site.recorder())
        site.await_owners("A", "B")
        site.member("C", site.recorder())
        assert gate.arrived.wait(DEADLINE), "A is stopped with its plan in hand"
        eventually(lambda: site.diaries["B"].of("elected") or site.diaries["C"].of("elected"), "another leader")
        site.await_owners("B", "C")
        generation = site.queue.group("g").describe().generation
        gate.open()
        site.await_owners("A", "B", "C")
        site.send(40)
        eventually(lambda: site.lag() == 0, "work after all that")
        assert site.queue.group("g").describe().generation > generation
        assert len(site.diaries["A"].of("deposed")) == 1
        assert site.queue.group("g").describe().leader in ("B", "C")
        assert check(site.history) == []


def test_b11_an_observer_judges_nobody_before_it_has_watched_a_whole_lease() -> None:
    member = MemberRow("C", "1", beat=7, lease_ms=1_000)
    watch = Watch()
    assert not watch.is_dead(member, now=5_000.0), "never seen: not judged"
    watch.see([member], now=5_000.0)
    assert not watch.is_silent(member, now=5_000.999)
    assert watch.is_silent(member, now=5_001.0) and watch.is_dead(member, now=5_001.0)


@pytest.mark.slow
def test_b11_a_new_leader_leaves_the_living_alone() -> None:
    with Site(partitions=6, settings=HASTY.with_(lease_ms=6_000, beat_ms=200)) as site:
        for name in "ABC":
            site.member(name, site.recorder())
            site.await_owners(*"ABC"[: "ABC".index(name) + 1])
        kept = {p: owner for p, owner in site.owners().items() if owner != "A"}
        site.consumers["A"].kill()
        site.await_owners("B", "C")
        assert {p: owner for p, owner in site.owners().items() if p in kept} == kept
        for name in "BC":
            assert site.diaries[name].of("lost") == []
            calls = site.diaries[name].called("revoked")
            assert not set(calls) & {p for p, owner in kept.items() if owner == name}


@pytest.mark.slow
def test_b12_leases_lost_by_all_at_once_are_picked_up_again() -> None:
    handler = Recorder()
    with Site(partitions=4, settings=HASTY) as site:
        for name in "AB":
            site.member(name, handler)
            site.await_owners(*"AB"[: "AB".index(name) + 1])
        for store in site.stores.values():
            store.down = True
        jobs = [consumer._workforce.job for consumer in site.consumers.values()]
        lease = HASTY.lease_ms / 1000
        eventually(lambda: all(job.clock.monotonic() > job.alive_until + 2 * lease for job in jobs), "two leases")
        site.send(40)
        assert len(handler) == 0
        for store in site.stores.values():
            store.down = False
        eventually(lambda: site.lag() == 0, "all messages after the outage")
        site.await_owners("A", "B")
        assert sorted(handler.values) == sorted({*handler.values})


def test_b13_a_clean_leave_is_seen_at_once() -> None:
    """Lease and poll are a minute, the deadline of the test is half of that."""
    with Site() as site:
        site.member("A", Recorder())
        site.await_owners("A")
        site.member("B", Recorder())
        site.await_owners("A", "B")
        site.consumers["A"].stop()
        assert "A" not in site.owners().values(), "it has released everything when stop returns"
        site.await_owners("B")
        assert [member.member for member in site.queue.group("g").members()] == ["B"]
