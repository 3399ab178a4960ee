"""Judges which members are alive by the observer's clock: silence is the time since a heartbeat counter last moved.

No wall clocks are compared and no stored time is read, so a jumping clock on any machine changes nothing.
An observer that has just begun to watch judges nobody before it has watched a whole lease itself; nor does one that
has not looked for a lease, because the whole machine slept.

Silence is counted from the look that first showed the last beat, so a late look notices a crash late. Beats
come at a known pace: an observer looks when the next one is due, and a tenth of a lease later if it was not there.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from pxrs.model import MemberRow

LOOKS = 11
"""The most looks in one lease: a heartbeat is seen within a tenth of a lease, with time left to ask the store."""
_BEATS = 3
"""A member beats that often in a lease, or more often."""
_EARLY = 0.97
"""Each look comes earlier by this much: an observer that always finds the beat cannot tell how late it looks."""


class _Seen(NamedTuple):
    """The counter as it was last seen, and when it was first seen so."""

    row: MemberRow
    since: float
    after: float
    """The beat came after this moment, as far as is known."""


class Watch:
    """Keeps what one observer has seen of the members' heartbeats; the time is handed in.

    ``share``: this part of a lease passes from one beat to the next. It only decides when to look, never who is dead.
    """

    def __init__(self, share: float = 1 / _BEATS) -> None:
        self._share = min(share, 1 / _BEATS)
        self._seen: dict[str, _Seen] = {}
        self._looked = 0.0

    def see(self, members: Iterable[MemberRow], now: float) -> None:
        """Take in the rows as they are now. Members that are not among them are forgotten."""
        self._seen = {member.id: self._note(member, now) for member in members}
        self._looked = now

    def _note(self, member: MemberRow, now: float) -> _Seen:
        before = self._seen.get(member.id)
        blind = (now - self._looked) * 1000 > member.lease_ms
        if before is None or blind or before.row.inc != member.inc:
            return _Seen(member, now, now - self._interval(member))
        if before.row.beat == member.beat:
            return _Seen(member, before.since, before.after)
        if member.beat != before.row.beat + 1:  # nobody knows when the last of several beats came
            return _Seen(member, now, now - self._interval(member))
        return _Seen(member, now, max(before.after + self._interval(member), self._looked))

    def _interval(self, member: MemberRow) -> float:
        """Seconds from one heartbeat to the next, at least."""
        return _EARLY * self._share * member.lease_ms / 1000

    def silent_for(self, member: MemberRow, now: float) -> float:
        """Seconds since this member's counter was last seen to move; 0 if it was never seen."""
        seen = self._seen.get(member.id)
        return 0.0 if seen is None else now - seen.since

    def is_silent(self, member: MemberRow, now: float) -> bool:
        """Whether its lease has passed: another member may lead instead."""
        return self.silent_for(member, now) * 1000 >= member.lease_ms

    def is_dead(self, member: MemberRow, now: float) -> bool:
        """Whether its lease and its grace time have passed: its partitions go to others."""
        return self.silent_for(member, now) * 1000 >= member.patience_ms

    def shortest_lease(self) -> float:
        """The shortest lease in seconds: a member must be looked at several times within its lease."""
        return min([seen.row.lease_ms / 1000 for seen in self._seen.values()], default=float("inf"))

    def next_verdict(self, now: float) -> float | None:
        """The first moment after ``now`` at which a member may have to be judged: the time to look again."""
        first = None
        for row, since, _ in self._seen.values():
            for moment in (since + row.lease_ms / 1000, since + row.patience_ms / 1000):
                if moment > now and (first is None or moment < first):
                    first = moment
        return first

    def next_look(self, now: float) -> float | None:
        """The time of the next look, so that each heartbeat is seen at most a tenth of its lease after it came. None:
        no member's heartbeat is awaited.
        """
        awaited = [seen for seen in self._seen.values() if (now - seen.since) * 1000 < seen.row.patience_ms]
        if not awaited:
            return None
        return max(min(map(self._due, awaited)), now + min(map(_step, awaited)))

    def _due(self, seen: _Seen) -> float:
        """The time at which the next heartbeat of this member must be there, if heartbeats come at their pace."""
        due = min(seen.since, seen.after + _step(seen)) + self._interval(seen.row)
        return due if due > self._looked else self._looked + _step(seen)


def _step(seen: _Seen) -> float:
    return seen.row.lease_ms / 1000 / LOOKS


# ---- for people: nothing that is decided here changes a row ----------------------------------------------------------


class Sign(Enum):
    """The state of a member as an onlooker sees it now."""

    ALIVE = "it shows life"
    DEAD = "its counter did not move while it was looked at, and by its own time it has been silent for a lease"
    OPEN = "it has to be looked at again, a beat later"


BEAT_SLACK = 1.2
"""The next beat is waited for a bit longer than its interval: the machine may be busy."""


def has_fresh_time(row: MemberRow, wall: float) -> bool:
    """Whether its last beat is younger than its lease, by both wall clocks. "No" means nothing: clocks can differ."""
    return abs(wall - row.seen) * 1000 < row.lease_ms


def beat_seconds(row: MemberRow) -> float:
    """Seconds to wait for a member's next heartbeat before one may say that there was none."""
    return BEAT_SLACK * (row.beat_ms or row.lease_ms / _BEATS) / 1000


class _LastMove(NamedTuple):
    """A counter as it was first seen at its present number, when that was, and whether it has ever moved."""

    life: str
    beat: int
    since: float
    moved: bool


class Onlooker:
    """Tells people which members are alive, from outside the group. Kept between looks, it needs no second one.

    The time in a row saves the second look where clocks agree. Where it says nothing, only the counter counts: one
    that moved is alive, whatever the clocks say.
    """

    def __init__(self) -> None:
        self._sights: dict[str, _LastMove] = {}

    def see(self, rows: Iterable[MemberRow], now: float) -> None:
        """Take in the rows as they are now. Members that are not among them are forgotten."""
        self._sights = {row.id: self._sight(row, now) for row in rows}

    def _sight(self, row: MemberRow, now: float) -> _LastMove:
        before = self._sights.get(row.id)
        if before is None:
            return _LastMove(row.inc, row.beat, now, moved=False)
        if (before.life, before.beat) != (row.inc, row.beat):
            return _LastMove(row.inc, row.beat, now, moved=True)
        return before

    def judge(self, row: MemberRow, wall: float, now: float) -> Sign:
        """Judge one of the rows that were last seen."""
        sight = self._sights[row.id]
        silent = now - sight.since
        if has_fresh_time(row, wall) or (sight.moved and silent * 1000 < row.lease_ms):
            return Sign.ALIVE
        return Sign.DEAD if sight.moved or silent >= beat_seconds(row) else Sign.OPEN
