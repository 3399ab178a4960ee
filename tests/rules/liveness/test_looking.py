"""The times at which an observer looks at beats: soon after each, and not more often than it must."""

from __future__ import annotations

import math

import pytest

from pxrs.model import MemberRow
from pxrs.rules.liveness import LOOKS, Watch

LEASE = 3.0
LONG = 40 * LEASE


def row(name: str, beat: int, lease: float = LEASE) -> MemberRow:
    return MemberRow(name, "1", beat=beat, lease_ms=round(lease * 1000))


def looked(offsets: list[float], interval: float, share: float = 1 / 3) -> tuple[int, float]:
    """Watch members whose first beats come at these moments; how many looks, and how late the latest beat was seen."""
    watch, now, looks, latest = Watch(share), 0.0, 0, 0.0
    while now < LONG:
        beats = [max(0, math.floor((now - offset) / interval)) for offset in offsets]
        rows = [row(str(number), beat) for number, beat in enumerate(beats)]
        watch.see(rows, now)
        looks += 1
        for seen, beat, offset in zip(rows, beats, offsets, strict=True):
            if now > LEASE and watch.silent_for(seen, now) == 0.0:
                latest = max(latest, now - (offset + beat * interval))
        due = watch.next_look(now)
        assert due is not None and due > now
        now = due
    return looks, latest


@pytest.mark.parametrize("pace", [0.98, 1.0, 1.001, 1.02, 1.3])
@pytest.mark.parametrize("phase", [0.0, 0.1, 0.37, 0.6, 0.99])
def test_one_member_is_looked_at_once_for_each_beat_and_seldom_again(phase: float, pace: float) -> None:
    interval = pace * LEASE / 3
    looks, latest = looked([phase * interval], interval)
    assert latest <= LEASE / 10
    often = LONG / interval
    assert looks <= often * (1.25 if pace <= 1.02 else 2.5)


@pytest.mark.parametrize("count", [2, 3, 5, 40])
def test_however_many_members_there_are_each_beat_is_seen_in_time(count: int) -> None:
    looks, latest = looked([LEASE / 3 * number / count for number in range(count)], LEASE / 3)
    assert latest <= LEASE / 10
    assert looks <= LONG / LEASE * LOOKS + 1


def test_members_that_beat_more_often_than_expected_are_looked_at_no_more_often_than_all_are() -> None:
    looks, latest = looked([0.0], LEASE / 30, share=1 / 30)
    assert latest <= LEASE / 10
    assert looks <= LONG / LEASE * LOOKS + 1


def test_nobody_waits_for_the_beats_of_the_dead() -> None:
    watch = Watch()
    assert watch.next_look(0.0) is None
    watch.see([row("A", 1)], 0.0)
    assert watch.next_look(0.0) == pytest.approx(LEASE / LOOKS)
    watch.see([row("A", 1)], LEASE)
    assert watch.next_look(LEASE) is None


def test_a_look_that_was_missed_is_not_made_up_for_by_many() -> None:
    watch = Watch()
    watch.see([row("A", 1)], 0.0)
    assert watch.next_look(LEASE / 2) == pytest.approx(LEASE / 2 + LEASE / LOOKS)


def test_the_shortest_lease_that_is_waited_for_sets_the_least_pause() -> None:
    watch = Watch()
    watch.see([row("A", 1, lease=1.0), row("B", 1, lease=10.0)], 0.0)
    assert watch.next_look(0.0) == pytest.approx(1.0 / LOOKS)
    watch.see([row("A", 1, lease=1.0), row("B", 1, lease=10.0)], 0.9)
    watch.see([row("A", 1, lease=1.0), row("B", 1, lease=10.0)], 1.0)
    assert watch.next_look(1.0) == pytest.approx(2.0 - 1.0 + 10.0 / LOOKS)
