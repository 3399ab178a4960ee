"""An onlooker says which members are alive: clocks may save a look, and only the counter decides."""

from __future__ import annotations

import pytest

from pxrs.model import MemberRow
from pxrs.rules.liveness import Onlooker, Sign, beat_seconds

LEASE = 10_000
YEARS = 3e8


def row(beat: int, seen: float = 0.0, inc: str = "1") -> MemberRow:
    return MemberRow("A", inc, beat=beat, lease_ms=LEASE, seen=seen)


def test_a_fresh_time_is_a_sign_of_life_at_the_first_look() -> None:
    onlooker = Onlooker()
    onlooker.see([row(1, seen=1000.0)], now=0.0)
    assert onlooker.judge(row(1, seen=1000.0), wall=1009.0, now=0.0) is Sign.ALIVE


@pytest.mark.parametrize("wall", [1000.0 + YEARS, 1000.0 - YEARS, 1011.0])
def test_an_old_time_says_nothing_before_the_second_look(wall: float) -> None:
    onlooker, seen = Onlooker(), row(1, seen=1000.0)
    onlooker.see([seen], now=0.0)
    assert onlooker.judge(seen, wall, now=0.0) is Sign.OPEN
    onlooker.see([seen], now=beat_seconds(seen))
    assert onlooker.judge(seen, wall, now=beat_seconds(seen)) is Sign.DEAD


@pytest.mark.parametrize("later", [row(2), row(1, inc="2")], ids=["the counter moved", "another life"])
def test_what_moved_is_alive_for_a_lease_whatever_the_clocks_say(later: MemberRow) -> None:
    onlooker = Onlooker()
    onlooker.see([row(1)], now=0.0)
    onlooker.see([later], now=4.0)
    assert onlooker.judge(later, YEARS, now=13.9) is Sign.ALIVE
    assert onlooker.judge(later, YEARS, now=14.0) is Sign.DEAD


def test_members_that_left_are_forgotten() -> None:
    onlooker = Onlooker()
    onlooker.see([row(1)], now=0.0)
    onlooker.see([], now=1.0)
    onlooker.see([row(1)], now=100.0)
    assert onlooker.judge(row(1), YEARS, now=100.0) is Sign.OPEN
