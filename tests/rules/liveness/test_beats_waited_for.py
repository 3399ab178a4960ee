"""The wait of people for a member's next beat, and times of its row that are fresh enough not to wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pxrs.model import MemberRow
from pxrs.rules.liveness import Onlooker, Sign, beat_seconds, has_fresh_time

YEARS = 5 * 365 * 86_400.0
WALL = 1_800_000_000.0


def row(**more: object) -> MemberRow:
    return replace(MemberRow("A", "life", beat=7, lease_ms=10_000), **more)  # type: ignore[arg-type]


def test_the_next_beat_is_waited_for_one_interval_and_a_bit_whatever_the_lease() -> None:
    assert beat_seconds(row()) == pytest.approx(4.0)
    assert beat_seconds(row(lease_ms=60_000, beat_ms=300)) == pytest.approx(0.36)
    assert beat_seconds(row(beat_ms=6_000)) == pytest.approx(7.2)


@pytest.mark.parametrize(("age", "fresh"), [(0.0, True), (9.9, True), (10.0, False), (-9.9, True), (-YEARS, False)])
def test_a_time_is_fresh_within_a_lease_also_if_the_clocks_differ_a_little(age: float, fresh: bool) -> None:
    assert has_fresh_time(row(seen=WALL - age), WALL) is fresh


@pytest.mark.parametrize("skew", [-YEARS, YEARS])
def test_a_counter_that_moved_means_alive_whatever_the_clocks_say(skew: float) -> None:
    onlooker = Onlooker()
    onlooker.see([row(seen=WALL + skew)], 0.0)
    assert onlooker.judge(row(seen=WALL + skew), WALL, 0.0) is Sign.OPEN
    moved = row(seen=WALL + skew + 3, beat=8)
    onlooker.see([moved], 3.0)
    assert onlooker.judge(moved, WALL + 3, 3.0) is Sign.ALIVE
    onlooker.see([moved], 13.0)
    assert onlooker.judge(moved, WALL + 13, 13.0) is Sign.DEAD


def test_a_member_that_beats_seldom_is_not_called_dead_between_two_beats() -> None:
    seldom, usual = row(beat_ms=6_000), row()
    for member, sign in ((usual, Sign.DEAD), (seldom, Sign.OPEN)):
        onlooker = Onlooker()
        onlooker.see([member], 0.0)
        onlooker.see([member], 5.0)
        assert onlooker.judge(member, WALL, 5.0) is sign
