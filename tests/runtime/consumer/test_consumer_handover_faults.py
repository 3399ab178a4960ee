"""Faults at a hand-over and at a commit; and what a consumer does when nothing happens. The numbers are those of the
catalogue of faults."""

from __future__ import annotations

import threading

import pytest

from pxrs.errors import Fenced
from pxrs.model import Grant, Message, Owner
from pxrs.runtime.registry.rows import Held
from pxrs.testing.faults.checker import Stored
from tests.runtime.support import DEADLINE, HASTY, PATIENT, Gate, Recorder, Site, eventually, is_commit

# ---- rebalances ---------------------------------------------------------------------------------------------------


def test_b16_a_lease_that_ends_during_a_revoke_makes_the_flush_fail() -> None:
    go_on, running = threading.Event(), threading.Event()

    def hang(message: Message) -> None:
        if message.partition == 1 and message.offset == 3:
            running.set()
            go_on.wait(DEADLINE)

    second = Recorder()
    with Site(partitions=2, settings=HASTY.with_(revoke_timeout_ms=60_000)) as site:
        site.send(20)
        site.member("A", Recorder(hang))
        assert running.wait(DEADLINE)
        eventually(lambda: site.queue.group("g").registry.partition(1).checkpoint == 3, "A's commit")
        old = site.consumers["A"]._membership.member.handles[1].grant
        site.member("B", second)
        eventually(lambda: site.diaries["A"].partitions("draining") == [1], "the revoke under way")
        site.stores["A"].down = True
        eventually(lambda: site.owners()[1] == "B", "the lease ends meanwhile")
        eventually(lambda: site.lag() == 0, "B's progress")
        go_on.set()
        site.stores["A"].down = False
        eventually(lambda: 1 in site.diaries["A"].partitions("lost"), "A hears of it")
        assert 1 not in site.diaries["A"].partitions("released")
        assert isinstance(site.queue.group("g").registry.release({old: 4})[1], Fenced)
        assert site.queue.group("g").registry.partition(1).checkpoint == 10
        assert [h.offset for h in second.seen if h.partition == 1] == list(range(3, 10))


def test_b18_a_rolling_restart_within_the_grace_time_moves_nothing() -> None:
    names = "ABCDE"
    with Site(partitions=10, settings=HASTY.with_(lease_ms=1_500, grace_ms=60_000)) as site:
        for name in names:
            site.member(name, Recorder())
            site.await_owners(*names[: names.index(name) + 1])
        eventually(lambda: site.queue.group("g").describe().state == "Stable", "rest")
        before = site.owners()
        generation = site.queue.group("g").describe().generation
        for name in names:
            site.consumers[name].kill()
            newer = site.member(name, Recorder())
            mine = [p for p, owner in before.items() if owner == name]
            eventually(lambda c=newer, m=mine: c.partitions == m, "its own partitions again")  # type: ignore[misc]  # defaults of a lambda
        assert site.owners() == before
        assert site.queue.group("g").describe().generation == generation, "no plan was made"


# ---- checkpoints --------------------------------------------------------------------------------------------------


def test_b23_a_commit_that_arrives_late_overwrites_nothing() -> None:
    gate = Gate(is_commit)
    second = Recorder()
    with Site(partitions=1, settings=HASTY) as site:
        site.member("A", site.recorder(), prepare=lambda store: setattr(store, "before", gate))
        site.await_owners("A")
        site.send(5)
        assert gate.arrived.wait(DEADLINE), "A's commit is on its way"
        site.member("B", second)
        site.await_owners("B")
        site.send(5, first=5)
        eventually(lambda: site.lag() == 0, "B wrote more")
        gate.open()
        eventually(lambda: site.diaries["A"].of("lost") or site.diaries["A"].of("refused"), "A hears that it is late")
        assert site.queue.group("g").registry.partition(0).checkpoint == 10
        checkpoints = [event.row.position for event in site.history if isinstance(event, Stored)]
        assert checkpoints == sorted(checkpoints)


def test_b24_a_partition_that_comes_back_starts_at_the_stored_checkpoint() -> None:
    handler = Recorder()
    with Site(partitions=1) as site:
        site.send(5)
        site.member("A", handler)
        eventually(lambda: site.lag() == 0, "A's five")
        site.queue.group("g").drain("A")
        site.member("B", handler)
        site.await_owners("B")
        site.send(5, first=5)
        eventually(lambda: site.lag() == 0, "B's five")
        site.consumers["B"].stop()
        site.send(5, first=10)
        site.member("A", handler)
        eventually(lambda: site.lag() == 0, "A's next five")
        assert [(h.member, h.offset) for h in handler.seen] == [
            (name, offset) for name, five in (("A", 0), ("B", 5), ("A", 10)) for offset in range(five, five + 5)
        ]


def test_b24_the_same_process_forgets_its_old_position() -> None:
    """The partition goes from A to nobody, is worked on by hand, and comes back to the same life of A."""
    handler = Recorder()
    with Site(partitions=1) as site:
        site.send(10)
        site.member("A", handler)
        eventually(lambda: site.lag() == 0, "A's ten")
        registry = site.queue.group("g").registry
        member = site.consumers["A"]._membership.member
        hand = Owner("hand", "1")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(member, "_wanted", lambda: set[int]())
            member.poll()
            site.consumers["A"]._membership._loop.wake()
            eventually(lambda: registry.partition(0).owner is None, "A's release")
            site.send(10, first=10)
            held = registry.claim([0], hand)[0]
            assert isinstance(held, Held)
            registry.release({Grant(0, hand, held.row.epoch): 17})
        member.poll()
        site.consumers["A"]._membership._loop.wake()
        eventually(lambda: site.lag() == 0, "the rest, by A")
        assert [h.offset for h in handler.seen[10:]] == [17, 18, 19]


# ---- quiet --------------------------------------------------------------------------------------------------------


def test_a_single_consumer_at_rest_writes_its_beats_and_nothing_else() -> None:
    with Site(settings=HASTY.with_(beat_ms=50, lease_ms=20_000, poll_ms=60_000)) as site:
        site.send(80)
        site.member("A", Recorder())
        eventually(lambda: site.lag() == 0 and site.diaries["A"].of("settled"), "rest")
        store = site.stores["A"]
        settled = len(store.writes)
        eventually(lambda: len(store.writes) >= settled + 3, "the last round of the settling")

        def ten_quiet_beats() -> bool:
            start, reads = len(store.writes), store.reads
            eventually(lambda: len(store.writes) >= start + 10, "ten beats")
            assert {key.rpartition("/g/")[2] for key in store.writes[start:]} == {"member/A"}
            return store.reads == reads

        # A ring of the settling may be heard late; a lone member that was not rung has nothing to read.
        eventually(ten_quiet_beats, "ten beats without a read")


def test_a_quiet_partition_is_committed_without_waiting_for_a_beat() -> None:
    """Beats are 100 s apart here; the last messages before a silence are committed all the same."""
    with Site(partitions=1, settings=PATIENT.with_(lease_ms=300_000)) as site:
        site.member("A", Recorder())
        site.await_owners("A")
        for number in range(3):
            site.send(1, first=number)
            eventually(lambda: site.lag() == 0, "the commit")


def test_partitions_without_a_message_let_the_loop_sleep() -> None:
    with Site() as site:
        consumer = site.member("A", Recorder())
        eventually(lambda: site.diaries["A"].of("settled") and consumer.state == "live", "rest")
        clock = consumer._membership._clock.monotonic
        eventually(lambda: consumer._membership.member._next_round(clock()) > clock() + 1, "nothing to do for a while")
