"""Promises of a registry over any store: one owner, fenced checkpoints, clean hand-over, one leader."""

from __future__ import annotations

import pytest

from pxrs.errors import BadCheckpoint, Conflict, Fenced, Mismatch, NotFound, PxrsError, Unknown
from pxrs.io.clock import SystemClock
from pxrs.model import HISTORY_LENGTH, Cause, Grant, MemberRow, MemberState, Owner, Partition
from pxrs.rules.assignment import plan
from pxrs.rules.rebalance import is_orphan
from pxrs.runtime.registry.registry import Changed, CommitRequest, Registry
from pxrs.runtime.registry.rows import Held
from pxrs.stores.base import Store
from pxrs.testing.stores.hooks import Background, Promises

A, A2, B = Owner("A", "life-1"), Owner("A", "life-2"), Owner("B", "life-1")
PARTITIONS = 8


def registry_over(store: Store, waker: str = "operator") -> Registry:
    registry = Registry(store, "orders", "billing", SystemClock(), waker=waker)
    registry.initialize(PARTITIONS, "xxh64-spark", "pmod")
    return registry


def done(changed: Changed) -> dict[int, Partition]:
    """The rows of changes that must all have succeeded."""
    rows = {}
    for number, result in changed.items():
        assert isinstance(result, Held), f"partition {number}: {result!r}"
        assert result.row is not None
        rows[number] = result.row
    return rows


def error(changed: Changed, number: int) -> type[PxrsError]:
    result = changed[number]
    assert isinstance(result, PxrsError), f"partition {number} was changed: {result!r}"
    return type(result)


def claimed(registry: Registry, number: int, me: Owner) -> Grant:
    return Grant(number, me, done(registry.claim([number], me))[number].epoch)


def expired(registry: Registry, *dead: str) -> list[Partition]:
    """Partitions whose owner can no longer give them up: not registered, an earlier life, or judged dead."""
    members = {member.id: member for member in registry.members()}
    return [row for row in registry.partitions() if is_orphan(row, members, frozenset(dead), None)]


class OwnershipPromises(Promises):
    """Every operation of the registry, on the store under test."""

    def test_initialize_creates_every_partition_unowned_and_without_checkpoint(self, store: Store) -> None:
        registry = registry_over(store)
        assert registry.partitions() == [Partition(number) for number in range(PARTITIONS)]
        assert [row.number for row in registry.partitions() if row.owner is None] == list(range(PARTITIONS))

    def test_initialize_twice_changes_nothing_and_other_values_are_refused(self, store: Store) -> None:
        registry = registry_over(store)
        claimed(registry, 3, A)
        before = registry.partitions()
        registry_over(store)
        assert registry.partitions() == before
        with pytest.raises(Mismatch, match=r"8.*9"):
            registry.initialize(9, "xxh64-spark", "pmod")
        with pytest.raises(Mismatch, match="sha256"):
            registry.initialize(8, "sha256", "pmod")

    def test_members_come_and_go(self, store: Store) -> None:
        registry = registry_over(store)
        registry.register(MemberRow("B", "life-1"))
        registry.register(MemberRow("A", "life-1"))
        assert [member.id for member in registry.members()] == ["A", "B"]
        registry.deregister(A)
        assert [member.id for member in registry.members()] == ["B"]

    def test_a_newer_life_replaces_an_older_one_which_is_fenced(self, store: Store) -> None:
        registry = registry_over(store)
        old = MemberRow("A", "life-1")
        held = registry.register(old)
        registry.register(MemberRow("A", "life-2"))
        with pytest.raises(Fenced):
            registry.beat(old, held)
        with pytest.raises(Fenced):
            registry.set_state(A, MemberState.LEAVING)
        with pytest.raises(Fenced):
            registry.deregister(A)
        assert [(member.id, member.inc) for member in registry.members()] == [("A", "life-2")]

    def test_beats_count_up_and_make_a_vanished_row_again(self, store: Store) -> None:
        registry = registry_over(store)
        row = MemberRow("A", "life-1")
        held = registry.beat(row, registry.register(row))
        assert held.row is not None and held.row.beat == 1
        registry.deregister(A)
        assert registry.beat(row, held).row == row

    def test_an_evicted_member_is_fenced_and_a_drained_one_is_asked_to_leave(self, store: Store) -> None:
        registry = registry_over(store)
        row = MemberRow("A", "life-1")
        registry.register(row)
        registry.drain("A")
        assert registry.members()[0].state is MemberState.LEAVING
        registry.evict("A", "tombstone")
        with pytest.raises(Fenced):
            registry.beat(row, None)
        with pytest.raises(NotFound, match="nobody"):
            registry.evict("nobody", "tombstone")

    def test_a_claim_takes_a_free_partition_with_a_new_epoch_and_nothing_else(self, store: Store) -> None:
        registry = registry_over(store)
        row = done(registry.claim([3], A))[3]
        assert (row.owner, row.epoch, row.cause) == (A, 1, Cause.CLAIM)
        assert error(registry.claim([3], B), 3) is Conflict
        assert [row.number for row in registry.partitions() if row.owner and row.owner.id == "A"] == [3]

    def test_one_refused_claim_does_not_spoil_the_others(self, store: Store) -> None:
        registry = registry_over(store)
        claimed(registry, 3, A)
        changed = registry.claim([2, 3, 4], B)
        assert error(changed, 3) is Conflict
        assert [row.number for row in registry.partitions() if row.owner and row.owner.id == "B"] == [2, 4]

    def test_a_checkpoint_needs_the_epoch_of_the_claim(self, store: Store) -> None:
        registry = registry_over(store)
        grant = claimed(registry, 3, A)
        done(registry.commit({grant: 10}))
        assert registry.partition(3).checkpoint == 10
        done(registry.force_release({3: A}))
        assert error(registry.commit({grant: 11}), 3) is Fenced
        assert registry.partition(3).checkpoint == 10

    def test_a_member_that_lost_and_regained_is_fenced_under_its_old_epoch(self, store: Store) -> None:
        registry = registry_over(store)
        old = claimed(registry, 3, A)
        done(registry.force_release({3: A}))
        new = claimed(registry, 3, A)
        assert error(registry.commit({old: 5}), 3) is Fenced
        done(registry.commit({new: 5}))

    def test_a_checkpoint_never_goes_back_nor_past_the_end(self, store: Store) -> None:
        registry = registry_over(store)
        grant = claimed(registry, 3, A)
        done(registry.commit({grant: 10}))
        assert error(registry.commit({grant: 9}), 3) is BadCheckpoint
        assert error(registry.commit({grant: 21}, ends={3: 20}), 3) is BadCheckpoint
        assert registry.partition(3).checkpoint == 10

    def test_one_fenced_commit_does_not_spoil_the_others(self, store: Store) -> None:
        registry = registry_over(store)
        lost, kept = claimed(registry, 1, A), claimed(registry, 2, A)
        done(registry.force_release({1: A}))
        changed = registry.commit({lost: 7, kept: 7})
        assert error(changed, 1) is Fenced
        assert registry.partition(2).checkpoint == 7

    def test_commit_together_moves_all_checkpoints_or_none(self, store: Store) -> None:
        registry = registry_over(store)
        grants = [claimed(registry, number, A) for number in range(PARTITIONS)]
        registry.store_progress(CommitRequest(dict.fromkeys(grants, 4), note="first"))
        assert [row.checkpoint for row in registry.partitions()] == [4] * PARTITIONS
        done(registry.force_release({5: A}))
        with pytest.raises(Fenced):
            registry.store_progress(CommitRequest(dict.fromkeys(grants, 9), note="second"))
        assert [row.checkpoint for row in registry.partitions()] == [4] * PARTITIONS

    def test_a_release_carries_the_final_checkpoint_to_the_next_owner(self, store: Store) -> None:
        registry = registry_over(store)
        grant = claimed(registry, 3, A)
        done(registry.release({grant: 42}))
        row = done(registry.claim([3], B))[3]
        assert (row.owner, row.epoch, row.checkpoint) == (B, 3, 42)
        assert error(registry.release({grant: 50}), 3) is Fenced

    def test_release_all_frees_what_this_life_holds(self, store: Store) -> None:
        registry = registry_over(store)
        done(registry.claim([1, 2], A))
        done(registry.claim([3], B))
        done(registry.give_back([row.number for row in registry.partitions() if row.owner == A], A))
        assert [row.number for row in registry.partitions() if row.owner] == [3]

    def test_expired_are_those_whose_owner_cannot_give_them_up(self, store: Store) -> None:
        registry = registry_over(store)
        registry.register(MemberRow("A", "life-2"))
        registry.register(MemberRow("B", "life-1"))
        done(registry.claim([1], A2))
        done(registry.claim([2], A))
        done(registry.claim([3], B))
        done(registry.claim([4], Owner("C", "gone")))
        assert [row.number for row in expired(registry)] == [2, 4]
        assert [row.number for row in expired(registry, "B")] == [2, 3, 4]

    def test_a_seek_fences_the_owner_and_the_next_claim_starts_there(self, store: Store) -> None:
        registry = registry_over(store)
        grant = claimed(registry, 3, A)
        done(registry.commit({grant: 10}))
        done(registry.seek({3: 2}, {3: 100}))
        assert error(registry.commit({grant: 11}), 3) is Fenced
        assert done(registry.claim([3], A))[3].checkpoint == 2

    def test_pause_is_kept_through_commits(self, store: Store) -> None:
        registry = registry_over(store)
        grant = claimed(registry, 3, A)
        done(registry.pause([3], True))
        done(registry.commit({grant: 1}))
        assert registry.partition(3).paused
        done(registry.pause([3], False))
        assert not registry.partition(3).paused

    def test_the_history_of_owners_is_kept_and_bounded(self, store: Store) -> None:
        registry = registry_over(store)
        for _ in range(HISTORY_LENGTH):
            done(registry.release({claimed(registry, 3, A): None}))
        lines = registry.partition(3).history
        assert len(lines) == HISTORY_LENGTH
        assert [line.epoch for line in lines] == list(
            range(2 * HISTORY_LENGTH - len(lines) + 1, 2 * HISTORY_LENGTH + 1)
        )
        assert {(line.owner, line.cause) for line in lines} == {("A", "claim"), (None, "release")}

    def test_one_leader_and_the_plan_of_a_deposed_one_is_refused(self, store: Store) -> None:
        registry = registry_over(store)
        first = registry.elect(A, registry.group())
        target = plan("sticky", PARTITIONS, ["A", "B"], None)
        group = registry.publish(first, target, "n1", "A joined, B joined")
        assert group.target is not None and registry.target(group.target) == target
        with pytest.raises(Conflict):
            registry.elect(B, group.__class__(PARTITIONS, "xxh64-spark", "pmod"))
        registry.elect(B, registry.group())
        with pytest.raises(Fenced):
            registry.publish(first, target, "n2", "late")
        assert registry.group().generation == 1

    def test_a_lost_reply_to_a_commit_is_unknown_and_the_row_tells(self, store: Store) -> None:
        registry = registry_over(store)
        grant = claimed(registry, 3, A)
        known = registry.read_partitions([3])  # so that the swap is the first that is lost
        with self.lose_reply(store, applied=True):
            told = registry.commit({grant: 5}, known)[3]
        assert isinstance(told, Held | Unknown), f"a commit that happened was called {told!r}"
        assert registry.partition(3).checkpoint == 5
        known = registry.read_partitions([3])
        with self.lose_reply(store, applied=False):
            assert error(registry.commit({grant: 6}, known), 3) is Unknown
        assert registry.partition(3).checkpoint == 5

    def test_a_release_rings_and_wakes_whoever_waits(self, store: Store, second: Store) -> None:
        waiting, working = registry_over(second, "B"), registry_over(store, "A")
        grant = claimed(working, 3, A)
        mark = waiting.wait(0, 0)
        call = Background(waiting.wait, mark, 60.0)
        done(working.release({grant: 1}))
        assert call.result(self.patience, "a wait for a release") != mark

    def test_beats_and_commits_do_not_ring(self, store: Store) -> None:
        registry = registry_over(store)
        grant = claimed(registry, 3, A)
        row = MemberRow("A", "life-1")
        held = registry.register(row)
        before = store.scan(registry.keys.wake_rows)
        registry.beat(row, held)
        done(registry.commit({grant: 1}))
        assert store.scan(registry.keys.wake_rows) == before
