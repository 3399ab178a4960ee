"""A group from outside: describe, seek, pause, resume, evict, drain, delete; and what an old handle can still do."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

import pxrs
from pxrs.errors import BadCheckpoint, Conflict, DuplicateMember, Fenced, NotFound, Refused
from pxrs.model import Grant, Message, Owner
from pxrs.runtime.registry.registry import CommitRequest, Registry
from pxrs.runtime.registry.rows import Held
from pxrs.testing.faults.checker import check
from tests.runtime.support import DEADLINE, HASTY, PATIENT, Recorder, Site, eventually


def grant_of(site: Site, member: str, partition: int) -> Grant:
    return site.consumers[member]._membership.member.handles[partition].grant


def committed(site: Site, partition: int) -> int | None:
    return site.queue.group("g").registry.partition(partition).checkpoint


# ---- seeing -------------------------------------------------------------------------------------------------------


def test_describe_shows_partitions_members_and_lag() -> None:
    with Site(partitions=4) as site:
        site.send(40)
        site.member("A", Recorder())
        eventually(lambda: site.lag() == 0, "the work")
        view = site.queue.group("g").describe()
        assert [line.partition for line in view] == [0, 1, 2, 3]
        assert [(line.owner, line.epoch, line.checkpoint, line.end, line.lag) for line in view] == [
            ("A", 1, 10, 10, 0)
        ] * 4
        assert (view.state, view.leader, view.idle) == ("Stable", "A", [])
        assert dict(view[2])["checkpoint"] == view[2]["checkpoint"] == 10
        [member] = site.queue.group("g").members()
        assert (member.member, member.state, member.partitions, member.leader) == ("A", "active", (0, 1, 2, 3), True)


def test_describe_of_an_unknown_group_is_refused() -> None:
    with Site() as site:
        for ask in (lambda: site.queue.group("x").describe(), lambda: site.queue.group("x").members()):
            with pytest.raises(NotFound, match="'x'"):
                ask()
        with pytest.raises(NotFound):
            site.queue.group("x").seek({0: 0})
        assert site.queue.store.scan("") == []


def await_settled(site: Site, times: int) -> None:
    eventually(lambda: len(site.diaries["A"].of("settled")) == times, f"rebalance {times}")


def test_one_log_line_tells_each_rebalance(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pxrs.group")
    with Site(partitions=2) as site:
        for number, name in enumerate("ABC", start=1):
            site.member(name, Recorder())
            await_settled(site, number)
    lines = [record.getMessage() for record in caplog.records if " done after " in record.getMessage()]
    assert "A joined; moved 2 partitions (0 1)" in lines[0]
    assert "B joined; moved 1 partition " in lines[1]
    assert "C joined; moved nothing; members A B C; idle: C" in lines[2]


def test_the_history_of_a_partition_is_bounded_and_has_owner_and_cause() -> None:
    with Site(partitions=1) as site:
        for name in ("A", "B", "C", "D", "E"):
            site.member(name, Recorder())
            site.await_owners(name)
            site.consumers[name].stop()
        history = site.queue.group("g").history(0)
        assert len(history) == 8
        assert [(line.owner, line.epoch, line.cause) for line in history[-2:]] == [
            ("E", 9, "claim"),
            (None, 10, "release"),
        ]
        with pytest.raises(NotFound):
            site.queue.group("g").history(1)


# ---- seeking ------------------------------------------------------------------------------------------------------


def test_seek_on_a_running_group_gives_the_owner_a_new_epoch_and_place() -> None:
    handler = Recorder()
    with Site(partitions=2) as site:
        site.send(20)
        site.member("A", handler)
        eventually(lambda: site.lag() == 0, "the first pass")
        old = grant_of(site, "A", 1)
        assert site.queue.group("g").seek({1: 4}) == {1: 4}
        eventually(lambda: len(handler) == 26, "the second pass")
        eventually(lambda: site.lag() == 0, "its commit")
        again = [h for h in handler.seen if h.partition == 1 and h.epoch > old.epoch]
        assert [h.offset for h in again] == list(range(4, 10))
        assert len(site.diaries["A"].of("joined")) == 1 and site.diaries["A"].called("assigned").count(0) == 1
        result = site.queue.group("g").registry.commit({old: 10})[1]
        assert isinstance(result, Fenced)
        assert committed(site, 1) == 10


def test_a_seek_and_a_pause_are_no_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pxrs.group")
    with Site(partitions=2) as site:
        site.send(8)
        recorder = Recorder()
        site.member("A", recorder)
        eventually(lambda: len(recorder) == 8, "all are handled")
        group = site.queue.group("g")
        group.pause([0])
        group.seek({1: 0})
        eventually(lambda: len(recorder) == 12, "what was sought is handled again")
        group.resume([0])
        group.seek("earliest")
        eventually(lambda: len(recorder) == 20, "all are handled again")
        assert site.diaries["A"].partitions("lost") == []
    told = [record for record in caplog.records if "lost partition" in record.getMessage()]
    assert told == [] and [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert any("partition 1 was moved by a seek" in record.getMessage() for record in caplog.records)


def test_seek_forward_skips_and_a_commit_under_the_old_epoch_does_not_undo_it() -> None:
    hold, started = threading.Event(), threading.Event()

    def act(message: Message) -> None:
        if message.offset == 2:
            started.set()
            hold.wait(DEADLINE)

    handler = Recorder(act)
    with Site(partitions=1) as site:
        site.send(10)
        site.member("A", handler)
        assert started.wait(DEADLINE)
        old = grant_of(site, "A", 0)
        site.queue.group("g").seek({0: "latest"})
        assert isinstance(site.queue.group("g").registry.commit({old: 3})[0], Fenced)
        hold.set()
        eventually(lambda: site.owned_by("A"), "the new claim")
        assert [h.offset for h in handler.seen if h.epoch > old.epoch] == []
        new = site.send(1, first=10)
        eventually(lambda: handler.values[-1:] == new, "what comes after the seek")
        assert committed(site, 0) in (10, 11)


def test_seek_to_names_and_out_of_the_log() -> None:
    with Site(partitions=2) as site:
        site.send(20)
        with site.queue.consumer("g", Recorder()):
            eventually(lambda: site.lag() == 0, "the work")
        group = site.queue.group("g")
        assert group.seek({0: "earliest", 1: "latest"}) == {0: 0, 1: 10}
        for bad in (-1, 11, None, True, 1.0, "bogus", 1 << 70):
            with pytest.raises(Refused):
                group.seek({0: bad})  # type: ignore[dict-item]  # what is tested
        with pytest.raises(NotFound):
            group.seek({2: 0})
        assert [line.checkpoint for line in group.describe()] == [0, 10]


# ---- pausing ------------------------------------------------------------------------------------------------------


def test_pause_holds_a_partition_and_resume_lets_it_go_on() -> None:
    handler = Recorder()
    with Site(partitions=2) as site:
        site.member("A", handler)
        site.await_owners("A")
        site.queue.group("g").pause([1])
        handles = site.consumers["A"]._membership.member.handles
        eventually(lambda: 1 in handles and handles[1].paused, "the pause")
        site.send(20)
        eventually(lambda: len(handler) == 10 and site.lag() == 10, "the other partition")
        assert {h.partition for h in handler.seen} == {0}
        assert [line.paused for line in site.queue.group("g").describe()] == [False, True]
        site.queue.group("g").resume([1])
        eventually(lambda: len(handler) == 20, "the paused one")
        assert site.diaries["A"].called("revoked") == [] and site.owners() == {0: "A", 1: "A"}


def test_a_pause_outlives_a_change_of_owner() -> None:
    handler = Recorder()
    with Site(partitions=1) as site:
        site.member("A", handler)
        site.await_owners("A")
        site.queue.group("g").pause()
        site.consumers["A"].stop()
        site.send(5)
        site.member("B", handler)
        site.await_owners("B")
        assert site.lag() == 5
        site.queue.group("g").resume()
        eventually(lambda: site.lag() == 0, "work after the pause")


# ---- members ------------------------------------------------------------------------------------------------------


def test_evict_fences_a_member_at_once_and_moves_its_partitions() -> None:
    with Site() as site:
        site.member("A", Recorder())
        site.await_owners("A")
        site.member("B", Recorder())
        site.await_owners("A", "B")
        site.queue.group("g").evict("A")
        eventually(lambda: site.consumers["A"].state == "fenced", "the evicted one stops")
        site.await_owners("B")
        with pytest.raises(DuplicateMember):
            site.consumers["A"].check()
        assert site.consumers["A"].partitions == []
        with pytest.raises(NotFound, match="'Z'"):
            site.queue.group("g").evict("Z")


def test_drain_makes_a_member_leave_cleanly() -> None:
    handler = Recorder()
    with Site() as site:
        site.send(80)
        site.member("A", handler)
        site.await_owners("A")
        site.member("B", handler)
        site.await_owners("A", "B")
        site.queue.group("g").drain("A")
        site.await_owners("B")
        eventually(lambda: site.consumers["A"].state == "stopped", "its end")
        eventually(lambda: site.lag() == 0, "the work")
        assert handler.repeats == {} and len(handler) == 80
        assert site.consumers["A"].error is None


def test_a_group_with_members_cannot_be_deleted_and_an_empty_one_is_gone() -> None:
    with Site() as site:
        consumer = site.member("A", Recorder())
        site.await_owners("A")
        with pytest.raises(Refused, match="A"):
            site.queue.group("g").delete()
        consumer.stop()
        site.queue.group("g").delete()
        assert site.queue.groups() == []
        assert [row.key.split("/")[-2:] for row in site.queue.store.scan("")] == [["_registry", "id"]]


@pytest.mark.slow
def test_a_member_that_was_killed_is_put_out_by_force_and_one_that_lives_is_not() -> None:
    with Site(settings=HASTY.with_(lease_ms=5_000, beat_ms=200)) as site:
        consumer = site.member("A", Recorder())
        site.await_owners("A")
        with pytest.raises(Refused, match="'A' is alive"):
            site.queue.group("g").delete(force=True)
        consumer.kill()
        with pytest.raises(Refused, match="pxrs member evict"):
            site.queue.group("g").delete()
        site.queue.group("g").delete(force=True)
        assert site.queue.groups() == []
        assert [row.key.split("/")[-2:] for row in site.queue.store.scan("")] == [["_registry", "id"]]


# ---- old handles --------------------------------------------------------------------------------------------------


def test_b04_a_handle_from_before_a_loss_is_fenced_after_the_partition_came_back() -> None:
    with Site(partitions=1) as site:
        site.send(10)
        registry = site.queue.group("g").registry
        registry.initialize(1, site.queue.log.identity.hash, site.queue.log.identity.reduce)
        me, other = Owner("A", "life-1"), Owner("B", "life-1")
        old = claim(registry, me)
        registry.force_release({0: me})
        assert isinstance(registry.commit({claim(registry, other): 3})[0], Held)
        registry.force_release({0: other})
        new = claim(registry, me)
        assert new.epoch == old.epoch + 4
        for late in (registry.commit({old: 7})[0], registry.release({old: 7})[0]):
            assert isinstance(late, Fenced)
        assert registry.partition(0).checkpoint == 3 and registry.partition(0).owner == me
        assert isinstance(registry.commit({new: 7})[0], Held)


def claim(registry: Registry, me: Owner) -> Grant:
    held = registry.claim([0], me)[0]
    assert isinstance(held, Held)
    return Grant(0, me, held.row.epoch)


def test_b15_two_claims_on_the_same_row_have_one_winner() -> None:
    with Site(partitions=1) as site:
        registry = site.queue.group("g").registry
        registry.initialize(1, site.queue.log.identity.hash, site.queue.log.identity.reduce)
        seen = registry.read_partitions([0])
        first = registry.claim([0], Owner("A", "1"), seen)[0]
        second = registry.claim([0], Owner("B", "1"), seen)[0]
        assert isinstance(first, Held) and isinstance(second, Conflict)
        assert registry.partition(0).owner == Owner("A", "1") and registry.partition(0).epoch == 1


def test_b15_two_members_that_both_follow_an_old_target_do_not_share_a_partition() -> None:
    """Both believe in targets that give them partition 0; one row has one owner, the other waits its turn."""
    with Site(partitions=1) as site, pytest.MonkeyPatch.context() as patch:
        site.send(20)
        site.member("A", site.recorder())
        site.member("B", site.recorder())
        eventually(lambda: site.lag() == 0, "the work")
        for name in "AB":
            member = site.consumers[name]._membership.member
            patch.setattr(member, "_wanted", lambda: {0})
            member.poll()
        site.send(20, first=20)
        eventually(lambda: site.lag() == 0, "the work")
        assert check(site.history) == []


def test_b21_a_commit_of_two_partitions_survives_the_loss_of_one() -> None:
    with Site(partitions=2) as site:
        site.send(20)
        registry = site.queue.group("g").registry
        registry.initialize(2, site.queue.log.identity.hash, site.queue.log.identity.reduce)
        me = Owner("A", "1")
        registry.claim([0, 1], me)
        registry.force_release({0: me})
        results = registry.commit({Grant(0, me, 1): 5, Grant(1, me, 1): 6})
        assert isinstance(results[0], Fenced) and isinstance(results[1], Held)
        assert (registry.partition(0).checkpoint, registry.partition(1).checkpoint) == (None, 6)
        with pytest.raises(Fenced):
            registry.store_progress(CommitRequest({Grant(0, me, 1): 7, Grant(1, me, 1): 8}, note="both"))
        assert registry.partition(1).checkpoint == 6, "output that mixes partitions: all or none"


KCL_ACCEPTED = (13, 13, 127)
KCL_REJECTED: tuple[Any, ...] = (
    2,
    13,
    9_000,
    6_789,
    None,
    "bogus-checkpoint-value",
    "SHARD_END",
    "TRIM_HORIZON",
    "LATEST",
)
"""ShardShardRecordProcessorCheckpointerTest.testClientSpecifiedCheckpoint of awslabs/amazon-kinesis-client, restated:
initial 13, largest permitted 5019; what is accepted, what is then rejected, and 5019 that is accepted after all."""


def test_b26_checkpoints_that_are_garbage_change_nothing() -> None:
    with Site(partitions=1) as site:
        registry = site.queue.group("g").registry
        registry.initialize(1, site.queue.log.identity.hash, site.queue.log.identity.reduce)
        grant = claim(registry, Owner("A", "1"))
        ends = {0: 5_019}
        for position in KCL_ACCEPTED:
            assert isinstance(registry.commit({grant: position}, ends=ends)[0], Held)
        for position in (*KCL_REJECTED, -1, True, 1.5, b"1", 1 << 63, 5_020):
            assert isinstance(registry.commit({grant: position}, ends=ends)[0], BadCheckpoint), position
            assert registry.partition(0).checkpoint == 127
        assert isinstance(registry.commit({grant: 5_019}, ends=ends)[0], Held)
        assert registry.partition(0).checkpoint == 5_019


def test_a_newer_process_with_the_same_id_wins_and_the_older_one_stops() -> None:
    first, second = Recorder(), Recorder()
    with Site(partitions=2, settings=HASTY.with_(lease_ms=30_000, beat_ms=200)) as site:
        site.send(10)
        older = site.member("A", first)
        eventually(lambda: len(first) == 10 and site.lag() == 0, "the work of the older one")
        grants = [grant_of(site, "A", p) for p in (0, 1)]
        newer = site.member("A", second)
        eventually(lambda: older.state == "fenced", "the older one's end")
        assert isinstance(older.error, DuplicateMember)
        site.send(10, first=10)
        eventually(lambda: len(second) == 10 and site.lag() == 0, "the work of the newer one")
        results = site.queue.group("g").registry.commit(dict.fromkeys(grants, 5))
        assert [type(result) for result in results.values()] == [Fenced, Fenced]
        assert (committed(site, 0), committed(site, 1)) == (10, 10)
        assert len(first) == 10 and newer.state == "live"


def test_two_assignors_for_one_group_are_refused() -> None:
    with pxrs.open("memory:assignors", partitions=2, assignor="range", settings=PATIENT) as queue:
        queue.make_group("g")
        with (
            pxrs.open("memory:assignors", assignor="sticky", settings=PATIENT) as other,
            pytest.raises(pxrs.errors.Mismatch, match=r"'range'.*'sticky'"),
        ):
            other.consumer("g", print)
