"""The decisions of a member and of a leader, case by case: the tables are complete."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from pxrs.model import Grant, Group, MemberRow, MemberState, Owner, Partition
from pxrs.rules import rebalance
from pxrs.rules.liveness import Watch
from pxrs.rules.policies import CommitPolicy
from pxrs.rules.rebalance import Mode, Step

A1, A2, B1 = Owner("A", "1"), Owner("A", "2"), Owner("B", "1")


@pytest.mark.parametrize(
    ("owner", "wanted", "step"),
    [
        (None, True, Step.CLAIM),
        (None, False, Step.WAIT),
        (A1, True, Step.CLAIM),  # mine by the row alone: claim again
        (A1, False, Step.GIVE_BACK),
        (A2, True, Step.CLAIM),  # an earlier life of mine
        (A2, False, Step.WAIT),
        (B1, True, Step.WAIT),
        (B1, False, Step.WAIT),
    ],
)
def test_without_a_handle(owner: Owner | None, wanted: bool, step: Step) -> None:
    assert rebalance.next_step(Partition(0, owner, 4), A1, None, None, wanted, drained=False) is step


def test_with_a_handle_every_case() -> None:
    grant = Grant(0, A1, 4)
    for owner, epoch, mode, wanted, drained in product(
        (None, A1, A2, B1), (3, 4, 5), Mode, (True, False), (True, False)
    ):
        step = rebalance.next_step(Partition(0, owner, epoch), A1, grant, mode, wanted, drained)
        if (owner, epoch) != (A1, 4):
            assert step is Step.DROP
        elif mode is Mode.RELEASING:
            assert step is Step.RELEASE, "a release that was sent is sent again, never taken back"
        elif mode is Mode.ACTIVE and wanted and not drained:
            assert step is Step.KEEP
        else:
            assert step is (Step.RELEASE if drained else Step.DRAIN)


def test_b14_nobody_claims_what_another_still_holds() -> None:
    for wanted, drained in product((True, False), (True, False)):
        step = rebalance.next_step(Partition(0, B1, 4), A1, None, None, wanted, drained)
        assert step is Step.WAIT


def test_standing_for_leadership() -> None:
    none = Group(8, "h", "r")
    led = Group(8, "h", "r", leader=B1, leader_epoch=1)
    leader = MemberRow("B", "1")
    assert rebalance.may_elect(none, A1, False, None, False)
    assert not rebalance.may_elect(led, A1, False, leader, False)
    assert rebalance.may_elect(led, A1, False, leader, True), "silent"
    assert rebalance.may_elect(led, A1, False, None, False), "its row is gone"
    assert rebalance.may_elect(led, A1, False, MemberRow("B", "2"), False), "a newer life"
    assert rebalance.may_elect(led, A1, False, MemberRow("B", "1", state=MemberState.LEAVING), False)
    assert rebalance.may_elect(led, B1, False, leader, False), "it is me, but I hold no leadership"
    assert not rebalance.may_elect(led, B1, True, leader, True)


def members(**states: MemberState) -> dict[str, MemberRow]:
    return {name: MemberRow(name, "1", state=state) for name, state in states.items()}


def test_who_shares_the_partitions() -> None:
    rows = members(C=MemberState.ACTIVE, A=MemberState.ACTIVE, B=MemberState.LEAVING, D=MemberState.STALLED)
    assert rebalance.eligible(rows.values(), frozenset()) == ("A", "C")
    assert rebalance.eligible(rows.values(), frozenset({"A"})) == ("C",)
    assert rebalance.eligible(rows.values(), frozenset({"A", "C"})) == ("D",), "better stalled than nobody"
    assert rebalance.eligible([], frozenset()) == ()


def test_a_stalled_member_keeps_its_share_where_nobody_can_read_the_log() -> None:
    blind = {
        name: replace(row, blind=True) for name, row in members(A=MemberState.STALLED, B=MemberState.ACTIVE).items()
    }
    assert rebalance.eligible(blind.values(), frozenset(), ("A", "B")) == ("A", "B"), "nothing moves"
    sighted = blind | {"B": replace(blind["B"], blind=False)}
    assert rebalance.eligible(sighted.values(), frozenset(), ("A", "B")) == ("B",)
    assert rebalance.eligible(blind.values(), frozenset(), ("B",)) == ("B",), (
        "who gave up takes nothing before it can read"
    )
    stalled = {name: replace(row, state=MemberState.STALLED) for name, row in blind.items()}
    assert rebalance.eligible(stalled.values(), frozenset(), ("B",)) == ("B",)
    assert rebalance.eligible(stalled.values(), frozenset(), ()) == ("A", "B"), "better blind than nobody"


def test_the_reason_names_who_joined_left_expired_or_stalled() -> None:
    rows = members(A=MemberState.ACTIVE, B=MemberState.ACTIVE, D=MemberState.STALLED)
    words = rebalance.explain(("B", "C", "D", "E"), ("A",), rows, frozenset({"B"}))
    assert words == "A joined, B expired, C left, D stalled, E left"
    assert rebalance.explain(("A",), ("A",), rows, frozenset()) == "the target was missing"


@pytest.mark.parametrize(
    ("owner", "target", "dead", "orphan"),
    [
        (None, "A", set(), False),
        (A1, "A", set(), False),
        (A1, "B", set(), False),  # alive: it has its time to give up
        (A1, "A", {"A"}, True),
        (Owner("X", "1"), "A", set(), True),  # not registered
        (A2, "B", set(), True),  # another life of A holds it, and B shall have it
        (A2, "A", set(), False),  # A's present life claims over it
    ],
)
def test_orphans(owner: Owner | None, target: str, dead: set[str], orphan: bool) -> None:
    rows = members(A=MemberState.ACTIVE, B=MemberState.ACTIVE)
    assert rebalance.is_orphan(Partition(0, owner, 1), rows, frozenset(dead), target) is orphan


def test_settled_means_the_present_life_of_the_targeted_member() -> None:
    rows = members(A=MemberState.ACTIVE)
    assert rebalance.is_settled(Partition(0, A1, 1), "A", rows)
    assert not rebalance.is_settled(Partition(0, A2, 1), "A", rows)
    assert not rebalance.is_settled(Partition(0, None, 1), "A", rows)
    assert not rebalance.is_settled(Partition(0, B1, 1), "B", rows), "B is not registered"
    assert rebalance.is_settled(Partition(0), None, rows)
    assert not rebalance.is_settled(Partition(0, A1, 1), None, rows)


def test_b11_a_new_observer_judges_nobody_before_it_has_watched_a_whole_lease() -> None:
    watch, row = Watch(), MemberRow("A", "1", beat=7, lease_ms=1000)
    assert not watch.is_dead(row, 500.0), "never seen"
    watch.see([row], 500.0)
    assert not watch.is_dead(row, 500.999)
    assert watch.is_dead(row, 501.0)


def test_silence_is_counted_from_the_last_move_however_often_one_looks() -> None:
    watch, row = Watch(), MemberRow("A", "1", beat=3, lease_ms=1000)
    for moment in (10.0, 10.25, 10.5, 10.75):
        watch.see([row], moment)
    assert watch.silent_for(row, 10.875) == 0.875
    assert watch.is_dead(row, 11.0)


def test_an_observer_that_slept_itself_judges_nobody_on_waking() -> None:
    watch, row = Watch(), MemberRow("A", "1", lease_ms=1000)
    watch.see([row], 0.0)
    watch.see([row], 500.0)
    assert not watch.is_dead(row, 500.5)
    assert watch.is_dead(row, 501.0)


def test_b07_only_the_counter_and_the_observers_own_clock_matter() -> None:
    watch = Watch()
    for beat in range(5):
        watch.see([MemberRow("A", "1", beat=beat, lease_ms=1000, joined=9e9 * (-1) ** beat)], beat * 0.75)
    row = MemberRow("A", "1", beat=4, lease_ms=1000)
    assert watch.silent_for(row, 3.25) == 0.25
    assert not watch.is_silent(row, 3.875)
    assert watch.is_silent(row, 4.0)


def test_grace_delays_the_plan_but_not_the_election() -> None:
    watch, row = Watch(), MemberRow("A", "1", lease_ms=1000, grace_ms=5000)
    watch.see([row], 0.0)
    assert watch.is_silent(row, 1.0) and not watch.is_dead(row, 4.9)
    assert watch.is_dead(row, 5.0)


def test_the_next_verdict_is_the_first_moment_at_which_somebody_could_be_late() -> None:
    watch = Watch()
    assert watch.next_verdict(0.0) is None
    watch.see([MemberRow("A", "1", lease_ms=1000, grace_ms=5000), MemberRow("B", "1", lease_ms=2000)], 10.0)
    assert watch.next_verdict(10.0) == 11.0
    assert watch.next_verdict(11.0) == 12.0
    assert watch.next_verdict(12.0) == 15.0
    assert watch.next_verdict(15.0) is None


def test_the_shortest_lease_sets_the_pace_of_looking() -> None:
    watch = Watch()
    assert watch.shortest_lease() == float("inf")
    watch.see([MemberRow("A", "1", lease_ms=4000), MemberRow("B", "1", lease_ms=1500)], 0.0)
    assert watch.shortest_lease() == 1.5


def test_a_member_that_comes_back_is_watched_anew() -> None:
    watch = Watch()
    watch.see([MemberRow("A", "1")], 0.0)
    watch.see([], 5.0)
    watch.see([MemberRow("A", "1")], 9.0)
    assert watch.silent_for(MemberRow("A", "1"), 9.5) == 0.5


def test_commits_are_due_by_number_or_by_time_and_never_for_nothing() -> None:
    policy = CommitPolicy(every=10, seconds=2.0)
    assert policy.due(10, 0.0)
    assert policy.due(1, 2.0)
    assert not policy.due(9, 1.9)
    assert not policy.due(0, 100.0)


def test_exactly_one_member_watches_the_leader_closely() -> None:
    led = Group(8, "h", "r", leader=B1, leader_epoch=1, members=("B", "A", "C"))
    assert rebalance.watches_leader(led, A1)
    assert not rebalance.watches_leader(led, B1)
    assert not rebalance.watches_leader(led, Owner("C", "1"))
    assert rebalance.watches_leader(replace(led, leader=None), B1), "without a leader it is the first of all"
    assert not rebalance.watches_leader(replace(led, members=("B",)), A1)
