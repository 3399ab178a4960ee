"""The interval at which a waiting member looks into a database that reports no changes."""

from __future__ import annotations

import pytest

from pxrs.stores.sql.store import Looks


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def pauses(looks: Looks, clock: Clock, seconds: float, mark: int = 7) -> list[float]:
    """The pauses of who waits for so long, and sees nothing but this mark."""
    found, ends = [], clock.now + seconds
    while clock.now < ends:
        found.append(looks.pause("bells/", mark))
        clock.now += found[-1]
    return found


def test_the_longer_nothing_happens_the_rarer_are_the_looks_down_to_the_beats() -> None:
    clock = Clock()
    found = pauses(Looks(None, beat_ms=3_000, clock=clock), clock, 60)
    assert found[0] == pytest.approx(0.1)
    assert found == sorted(found)
    assert found[-1] == pytest.approx(3.0)


def test_a_group_at_rest_costs_no_more_looks_than_beats() -> None:
    clock = Clock()
    looks = Looks(None, beat_ms=3_000, clock=clock)
    pauses(looks, clock, 60)
    assert len(pauses(looks, clock, 300)) <= 300 / 3 + 1


def test_what_is_noticed_is_late_by_no_more_than_a_tenth_of_the_rest_before_it() -> None:
    clock = Clock()
    began, late = clock.now, []
    looks = Looks(None, beat_ms=3_600_000, clock=clock)
    for _ in range(100):
        late.append(looks.pause("bells/", 7) - max(0.1, 0.1 * (clock.now - began)))
        clock.now += 1
    assert max(late) <= 1e-9


def test_after_a_change_they_are_frequent_again() -> None:
    clock = Clock()
    looks = Looks(None, beat_ms=3_000, clock=clock)
    pauses(looks, clock, 60)
    assert looks.pause("bells/", 8) == pytest.approx(0.1)


def test_what_is_said_in_the_url_counts_always() -> None:
    clock = Clock()
    assert set(pauses(Looks(50, beat_ms=3_000, clock=clock), clock, 60)) == {0.05}


def test_a_beat_that_is_shorter_than_a_look_changes_nothing() -> None:
    clock = Clock()
    assert set(pauses(Looks(None, beat_ms=20, clock=clock), clock, 10)) == {0.1}
