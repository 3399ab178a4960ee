"""The rules of ownership, over every small row, every grant and every position: nothing is left to chance."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pxrs.errors import BadCheckpoint, Conflict, Fenced, PxrsError, WentBack
from pxrs.model import EVICTED_LENGTH, HISTORY_LENGTH, Cause, Grant, Group, MemberRow, MemberState, Owner, Partition
from pxrs.rules import ownership

A1, A2, B1 = Owner("A", "1"), Owner("A", "2"), Owner("B", "1")
OWNERS = (None, A1, A2, B1)
EPOCHS = (0, 1, 2, 3)
CHECKPOINTS = (None, 0, 1, 2)
ROWS = [Partition(0, o, e, c) for o, e, c in product(OWNERS, EPOCHS, CHECKPOINTS)]
GRANTS = [Grant(0, o, e) for o, e in product((A1, A2, B1), EPOCHS)]


def position(row: Partition) -> int:
    return -1 if row.checkpoint is None else row.checkpoint


@pytest.mark.parametrize("me", [A1, A2, B1])
def test_claim_takes_what_is_free_or_of_the_same_id_and_nothing_else(me: Owner) -> None:
    for row in ROWS:
        if row.owner is None or row.owner.id == me.id:
            new = ownership.claim(row, me, 5.0)
            assert (new.owner, new.epoch, new.checkpoint, new.cause) == (me, row.epoch + 1, row.checkpoint, Cause.CLAIM)
        else:
            with pytest.raises(Conflict, match=row.owner.id):
                ownership.claim(row, me, 5.0)


def test_advance_needs_owner_incarnation_and_epoch_and_never_goes_back() -> None:
    for row, grant, to in product(ROWS, GRANTS, range(4)):
        mine = row.owner == grant.owner and row.epoch == grant.epoch
        if mine and to >= position(row):
            new = ownership.advance(row, grant, to)
            assert new.checkpoint == to
            assert (new.owner, new.epoch, new.history) == (row.owner, row.epoch, row.history)
            continue
        with pytest.raises(PxrsError) as refusal:
            ownership.advance(row, grant, to)
        if row.epoch < grant.epoch:
            assert refusal.type is WentBack
        else:
            assert refusal.type is (BadCheckpoint if mine else Fenced)


def test_release_frees_with_the_final_checkpoint_in_one_row() -> None:
    for row, grant, to in product(ROWS, GRANTS, (None, 0, 1, 2, 3)):
        if row.owner == grant.owner and row.epoch == grant.epoch:
            new = ownership.release(row, grant, to, 5.0)
            assert (new.owner, new.epoch, new.cause) == (None, row.epoch + 1, Cause.RELEASE)
            assert position(new) == max(position(row), -1 if to is None else to)
            forced = ownership.abandon(row, grant, to, 5.0)
            assert (forced.owner, forced.epoch, forced.checkpoint) == (new.owner, new.epoch, new.checkpoint)
            assert forced.cause is Cause.FORCED
        else:
            for rule in (ownership.release, ownership.abandon):
                with pytest.raises((Fenced, WentBack)):
                    rule(row, grant, to, 5.0)


def test_force_release_and_give_back_free_only_the_owner_that_was_judged() -> None:
    for row, owner in product(ROWS, (A1, A2, B1)):
        for rule, cause in ((ownership.force_release, Cause.FORCED), (ownership.give_back, Cause.RELEASE)):
            if row.owner == owner:
                new = rule(row, owner, 5.0)
                assert (new.owner, new.epoch, new.checkpoint, new.cause) == (None, row.epoch + 1, row.checkpoint, cause)
            else:
                with pytest.raises(Conflict):
                    rule(row, owner, 5.0)


def test_seek_goes_anywhere_and_fences_the_owner() -> None:
    for row, to in product(ROWS, range(4)):
        new = ownership.seek(row, to, 3, 5.0)
        assert (new.owner, new.epoch, new.checkpoint, new.cause) == (None, row.epoch + 1, to, Cause.SEEK)
        if row.owner is not None:
            with pytest.raises(Fenced):
                ownership.advance(new, Grant(0, row.owner, row.epoch), 3)


def test_pause_changes_nothing_else() -> None:
    for row in ROWS:
        paused = ownership.pause(row, True)
        assert paused.paused
        assert ownership.pause(paused, False) == row


@pytest.mark.parametrize("garbage", [None, "bogus", -1, 1.5, True, 1 << 63, "LATEST", b"1"])
def test_b26_garbage_is_no_checkpoint(garbage: object) -> None:
    row = Partition(0, A1, 1, 13)
    with pytest.raises(BadCheckpoint, match="not an offset"):
        ownership.advance(row, Grant(0, A1, 1), garbage)  # type: ignore[arg-type]
    with pytest.raises(BadCheckpoint, match="not an offset"):
        ownership.seek(row, garbage, None, 0.0)  # type: ignore[arg-type]


def test_b26_a_checkpoint_beyond_the_end_is_refused() -> None:
    # KCL's testClientSpecifiedCheckpoint, restated: 13 and 127 are taken, what goes back or passes 5019 is not.
    row, grant = Partition(0, A1, 1, 13), Grant(0, A1, 1)
    for accepted in (13, 13, 127):
        row = ownership.advance(row, grant, accepted, 5019)
    for refused in (2, 13, 9000, 6789):
        with pytest.raises(BadCheckpoint):
            ownership.advance(row, grant, refused, 5019)
    assert row.checkpoint == 127
    assert ownership.advance(row, grant, 5019, 5019).checkpoint == 5019
    with pytest.raises(BadCheckpoint, match="beyond the log's end 5019"):
        ownership.seek(row, 5020, 5019, 0.0)


def test_b04_the_same_member_that_lost_and_regained_is_fenced_under_its_old_epoch() -> None:
    row = ownership.claim(Partition(0), A1, 1.0)
    old = Grant(0, A1, row.epoch)
    row = ownership.claim(ownership.force_release(row, A1, 2.0), A1, 3.0)
    assert row.epoch == old.epoch + 2
    with pytest.raises(Fenced, match=f"epoch {old.epoch}"):
        ownership.advance(row, old, 1)


MOVES = st.lists(
    st.sampled_from(("claim A", "claim B", "advance", "release", "force", "seek", "give back")), min_size=1, max_size=40
)


@given(MOVES)
def test_any_sequence_of_rules_keeps_epochs_and_checkpoints_monotone(moves: list[str]) -> None:
    row = Partition(7)
    for number, move in enumerate(moves):
        before = row
        grant = Grant(7, row.owner or A1, row.epoch)
        try:
            row = _apply(move, row, grant, number)
        except (Conflict, Fenced):
            assert row is before
            continue
        assert row.epoch >= before.epoch
        assert row.epoch > before.epoch or row.owner == before.owner
        assert position(row) >= position(before) or row.cause is Cause.SEEK
        assert len(row.history) <= HISTORY_LENGTH
        if row.epoch > before.epoch:
            last = row.history[-1]
            assert (last.owner, last.epoch, last.since) == (row.owner.id if row.owner else None, row.epoch, number)


def _apply(move: str, row: Partition, grant: Grant, at: int) -> Partition:
    if move.startswith("claim"):
        return ownership.claim(row, Owner(move[-1], "1"), at)
    if move == "advance":
        return ownership.advance(row, grant, max(0, position(row)) + 1)
    if move == "release":
        return ownership.release(row, grant, max(0, position(row)) + 1, at)
    if move == "force":
        return ownership.force_release(row, grant.owner, at)
    if move == "seek":
        return ownership.seek(row, 0, None, at)
    return ownership.give_back(row, grant.owner, at)


# ---- members and the group ------------------------------------------------------------------------------------------


def test_beat_counts_up_makes_a_lost_row_again_and_stops_an_older_life() -> None:
    mine = MemberRow("A", "1")
    assert ownership.beat(None, mine) == mine
    assert ownership.beat(mine, mine).beat == 1
    with pytest.raises(Fenced, match="newer process"):
        ownership.beat(MemberRow("A", "2"), mine)


def test_a_state_is_set_only_by_the_life_it_belongs_to() -> None:
    row = MemberRow("A", "1")
    assert ownership.set_state(row, A1, MemberState.LEAVING).state is MemberState.LEAVING
    with pytest.raises(Fenced):
        ownership.set_state(row, A2, MemberState.LEAVING)
    with pytest.raises(Conflict, match="not registered"):
        ownership.set_state(None, A1, MemberState.LEAVING)


def test_an_evicted_member_is_fenced_at_its_next_beat() -> None:
    mine = MemberRow("A", "1")
    with pytest.raises(Fenced):
        ownership.beat(ownership.evict(mine, "tombstone"), mine)


def test_b10_only_the_leader_of_this_epoch_publishes_and_resigns() -> None:
    group = ownership.elect(Group(8, "xxh64-spark", "pmod"), A1)
    lead = Grant(-1, A1, group.leader_epoch)
    planned = ownership.publish(group, lead, ("A",), "target/1", "A joined")
    assert (planned.generation, planned.members, planned.target, planned.reason) == (1, ("A",), "target/1", "A joined")
    assert ownership.resign(planned, lead).leader is None
    deposed = ownership.elect(planned, B1)
    with pytest.raises(Fenced):
        ownership.publish(deposed, lead, ("A",), "t", "")
    with pytest.raises(Fenced):
        ownership.resign(deposed, lead)
    with pytest.raises(WentBack):
        ownership.publish(Group(8, "h", "r"), lead, ("A",), "t", "")


def test_a_note_stays_until_the_next_note_over_every_change_of_hands() -> None:
    me, other = Owner("A", "a1"), Owner("B", "b1")
    row = ownership.claim(Partition(3), me, 1.0)
    row = ownership.advance(row, Grant(3, me, row.epoch), 10, note="batch-7")
    assert row.note == "batch-7"
    row = ownership.advance(row, Grant(3, me, row.epoch), 20)
    row = ownership.release(row, Grant(3, me, row.epoch), 30, 2.0)
    row = ownership.seek(row, 5, None, 3.0)
    row = ownership.claim(row, other, 4.0)
    assert row.note == "batch-7", "whoever has a sink still finds what to publish"
    assert ownership.advance(row, Grant(3, other, row.epoch), 6, note="batch-8").note == "batch-8"


def test_a_life_that_was_put_out_stays_known_and_the_oldest_are_forgotten() -> None:
    group = Group(8, "h", "r")
    ownership.require_not_put_out(group, A1)
    group = ownership.put_out(group, A1.inc)
    with pytest.raises(Fenced, match="member 'A' was evicted"):
        ownership.require_not_put_out(group, A1)
    for number in range(EVICTED_LENGTH - 1):
        group = ownership.put_out(group, f"other {number}")
    assert len(group.evicted) == EVICTED_LENGTH and group.evicted[0] == A1.inc
    again = ownership.put_out(group, A1.inc)
    assert again.evicted[-1] == A1.inc and len(again.evicted) == EVICTED_LENGTH
    assert A1.inc not in ownership.put_out(group, "one more").evicted
