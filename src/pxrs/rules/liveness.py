"""Who is alive, judged on the observer's own clock: a beat is a counter, and silence is time since it last moved.

No wall clocks are compared and no stored time is read, so a jumping clock on any machine changes nothing.
An observer that has just begun to watch judges nobody before it has watched a whole lease itself; nor does one that
has not looked for a lease, because the whole machine slept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pxrs.model import MemberRow


class _Seen(NamedTuple):
    """The counter as it was last seen, and when it was first seen so."""

    row: MemberRow
    since: float


class Watch:
    """What one observer has seen of the members' beats; it is told the time."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._looked = 0.0

    def see(self, members: Iterable[MemberRow], now: float) -> None:
        """Take in the rows as they are now. Members that are not among them are forgotten."""
        self._seen = {member.id: self._note(member, now) for member in members}
        self._looked = now

    def _note(self, member: MemberRow, now: float) -> _Seen:
        before = self._seen.get(member.id)
        blind = (now - self._looked) * 1000 > member.lease_ms
        if before is None or blind or (before.row.inc, before.row.beat) != (member.inc, member.beat):
            return _Seen(member, now)
        return _Seen(member, before.since)

    def silent_for(self, member: MemberRow, now: float) -> float:
        """Seconds since this member's counter was last seen to move; 0 if it was never seen."""
        seen = self._seen.get(member.id)
        return 0.0 if seen is None else now - seen.since

    def is_silent(self, member: MemberRow, now: float) -> bool:
        """Whether its lease has passed: another may lead in its place."""
        return self.silent_for(member, now) * 1000 >= member.lease_ms

    def is_dead(self, member: MemberRow, now: float) -> bool:
        """Whether its lease and its grace time have passed: its partitions go to others."""
        return self.silent_for(member, now) * 1000 >= member.patience_ms

    def shortest_lease(self) -> float:
        """In seconds: whoever is to be judged in time must be looked at several times within it."""
        return min((seen.row.lease_ms / 1000 for seen in self._seen.values()), default=float("inf"))

    def next_verdict(self, now: float) -> float | None:
        """The first moment after ``now`` at which somebody may have to be judged: look again then, not later."""
        moments = (seen.since + ms / 1000 for seen in self._seen.values() for ms in _limits(seen.row))
        return min((moment for moment in moments if moment > now), default=None)


def _limits(row: MemberRow) -> tuple[int, int]:
    return row.lease_ms, row.patience_ms
