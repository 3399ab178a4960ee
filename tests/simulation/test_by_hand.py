"""A member by itself, step by step: what it does in moments that random histories hardly ever meet."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from pxrs.errors import NewerFormat, Unavailable
from pxrs.model import Cause, MemberState, Owner
from pxrs.stores.base import Swap
from tests.simulation.stories_by_hand import SETTINGS, Hand, is_claim


def test_nothing_is_claimed_when_the_time_of_the_member_ran_out_while_it_read_the_rows() -> None:
    """A partition that nobody may work on would be kept from those who could."""
    hand = Hand()
    member, work, store = hand.member("A")
    claims: list[str] = []
    store.before = lambda swaps: claims.extend(swap.key for swap in swaps if is_claim(swap))

    def slow(keys: Sequence[str]) -> None:
        if any("/partition/" in key for key in keys):
            hand.clock.now += SETTINGS.lease_ms / 1000

    store.before_read = slow
    hand.rounds(member)
    assert claims == [] and hand.registry.partition(0).owner is None
    store.before_read = lambda _: None
    hand.rounds(member)
    assert [grant.partition for grant, _ in work.started] == [0]


def test_a_claim_that_was_won_before_its_call_failed_is_given_back() -> None:
    """Of two partitions one is claimed, the other has changed; and then the store is away."""
    hand = Hand(partitions=2)
    member, work, store = hand.member("A")

    def race(swaps: Sequence[Swap]) -> None:
        if any(map(is_claim, swaps)):
            hand.registry.pause([1], True)
            store.before, store.before_read = lambda _: None, _away

    store.before = race
    hand.rounds(member)
    assert hand.registry.partition(0).owner == member.me and work.started == []
    store.before_read = lambda _: None
    member.leave()
    hand.rounds(member)
    rows = hand.registry.partitions()
    assert member.gone and [row.owner for row in rows] == [None, None] and rows[0].cause is Cause.RELEASE


def _away(_: object) -> None:
    raise Unavailable("away, says the story")


def test_rows_that_could_not_be_read_are_read_in_the_next_round_and_not_after_a_poll() -> None:
    hand = Hand()
    member, work, store = hand.member("A")
    store.before_read = _away_for_partitions
    hand.rounds(member)
    assert work.started == []
    store.before_read = lambda _: None
    member.round()
    assert [grant.partition for grant, _ in work.started] == [0]


def test_a_leaver_whose_handler_does_not_end_frees_its_partition_with_what_is_done() -> None:
    hand = Hand()
    member, work, _store = hand.member("A")
    hand.rounds(member)
    work.busy, work.positions[0] = {0}, 4
    member.leave()
    hand.rounds(member)
    assert not member.gone and hand.registry.partition(0).owner == member.me
    hand.clock.now += SETTINGS.drain_ms / 1000
    hand.rounds(member)
    row = hand.registry.partition(0)
    assert member.gone and work.stopped == [(0, True)]
    assert (row.owner, row.cause, row.checkpoint) == (None, Cause.FORCED, 4)


def test_after_a_silence_that_was_too_long_the_work_goes_on_when_the_rows_were_read_and_not_before() -> None:
    """Others may have taken partitions meanwhile; that a beat is answered says nothing of it."""
    hand = Hand()
    member, work, store = hand.member("A")
    hand.rounds(member)
    before = work.until
    hand.clock.now += SETTINGS.lease_ms / 1000
    store.before_read = _away_for_partitions
    hand.rounds(member)
    assert member.beat_age(hand.clock.now) == 0 and work.until == before
    store.before_read = lambda _: None
    hand.rounds(member)
    assert work.until > hand.clock.now


def test_a_member_that_is_asked_to_leave_does_not_show_itself_as_active_again() -> None:
    """The leader would give partitions to it."""
    hand = Hand()
    member, work, _store = hand.member("A")
    hand.rounds(member)
    work.busy = {0}
    hand.registry.drain("A")
    hand.clock.now = member._heartbeat.next_beat
    member._keep_alive(hand.clock.now)
    [row] = hand.registry.members()
    assert row.state is MemberState.LEAVING and member.is_leaving


def test_an_owner_that_does_not_give_up_in_its_time_is_made_to() -> None:
    hand = Hand(partitions=2)
    first, work, _ = hand.member("A")
    hand.rounds(first)
    work.busy = {0, 1}
    second, other, _ = hand.member("B")
    hand.rounds(first, second)
    assert other.started == []
    hand.clock.now += SETTINGS.revoke_timeout_ms / 1000
    hand.rounds(first, second)
    assert len(other.started) == 1 and [lost for _, lost in work.stopped] == [True]
    assert first.error is None and second.error is None


def test_an_owner_that_came_later_has_the_whole_time_to_give_up() -> None:
    hand = Hand()
    coordinator = hand.member("A")[0].leader
    row, limit = hand.registry.partition(0), SETTINGS.revoke_timeout_ms / 1000
    early, late = Owner("B", "life-1"), Owner("B", "life-2")
    asked = [(early, 0.0), (early, 0.9 * limit), (late, limit), (late, 1.9 * limit), (late, 2 * limit)]
    assert [coordinator._is_overdue(row, owner, "A", 50 + at) for owner, at in asked] == [False] * 4 + [True]


def test_a_group_of_a_newer_version_ends_the_member_and_is_no_trouble_that_passes() -> None:
    hand = Hand()
    member, _, store = hand.member("A")
    hand.rounds(member)
    [row] = store.read([hand.registry.keys.group])
    assert row is not None
    newer = json.dumps({**json.loads(row.value), "v": 99}).encode()
    store.swap_each([Swap(row.key, row.version, newer)])
    member.poll()
    with pytest.raises(NewerFormat):
        member.round()


def test_the_bell_of_a_member_whose_row_has_expired_in_the_store_is_cleared_away() -> None:
    """Nobody else does it, and each member that ever was would leave one."""
    hand = Hand(partitions=2)
    (first, _, store), (second, _, _) = hand.member("A"), hand.member("B")
    hand.rounds(first, second)
    keys = hand.registry.keys
    assert store.scan(keys.wake_rows + "B")
    [row] = store.scan(keys.members + "B")
    store.swap_each([Swap(row.key, row.version, None)])
    hand.rounds(first)
    assert not store.scan(keys.wake_rows + "B") and store.scan(keys.wake_rows + "A")


def _away_for_partitions(keys: Sequence[str]) -> None:
    if any("/partition/" in key for key in keys):
        _away(keys)
