"""Rules where a small difference matters: the same member in another life or epoch, the last of a list that is full."""

from __future__ import annotations

import pytest

from pxrs.errors import Fenced
from pxrs.model import EVICTED_LENGTH, Grant, Group, MemberRow, MemberState, Owner
from pxrs.rules import ownership, rebalance
from pxrs.rules.liveness import Watch

A = Owner("A", "life-1")


def test_a_plan_of_an_earlier_leadership_of_the_same_life_is_refused() -> None:
    group = Group(4, "xxh64-spark", "pmod", leader=A, leader_epoch=3)
    with pytest.raises(Fenced, match="led under epoch 2; the group is at 3"):
        ownership.publish(group, Grant(-1, A, 2), ("A",), "target/2-x", "late")
    assert ownership.publish(group, Grant(-1, A, 3), ("A",), "target/3-x", "in time").target == "target/3-x"


def test_a_new_life_that_shows_the_counter_of_the_old_one_is_not_judged_by_its_silence() -> None:
    watch = Watch()
    for tenth in range(0, 20, 5):
        watch.see([MemberRow("A", "life-1", beat=7, lease_ms=10_000)], float(tenth))
    new = MemberRow("A", "life-2", beat=7, lease_ms=10_000)
    watch.see([new], 16.0)
    assert watch.silent_for(new, 17.0) == 1.0 and not watch.is_silent(new, 17.0)


def test_the_last_one_that_was_put_out_is_remembered_however_many_were_before() -> None:
    group = Group(4, "xxh64-spark", "pmod")
    for number in range(EVICTED_LENGTH + 3):
        group = ownership.put_out(group, f"life-{number}")
    with pytest.raises(Fenced, match="was evicted"):
        ownership.require_not_put_out(group, Owner("A", f"life-{EVICTED_LENGTH + 2}"))
    assert len(group.evicted) == EVICTED_LENGTH


def test_where_nobody_else_can_read_one_that_hangs_and_can_read_gets_partitions() -> None:
    """It is not in the present plan; but its log answers, and that of the others does not."""
    blind = MemberRow("A", "1", state=MemberState.ACTIVE, blind=True)
    hangs = MemberRow("B", "1", state=MemberState.STALLED, blind=False)
    assert rebalance.eligible([blind, hangs], frozenset(), planned=("A",)) == ("A", "B")
