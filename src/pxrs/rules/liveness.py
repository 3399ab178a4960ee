"""Who is alive, judged on the observer's own clock: a beat is a counter, and silence is time since it last moved.

No wall clocks are compared and no stored time is read, so a jumping clock on any machine changes nothing.
An observer that has just begun to watch judges nobody before it has watched a whole lease itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from pxrs.model import MemberRow


class Watch:
    """What one observer has seen of the members' beats; it is told the time."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, int, float]] = {}

    def see(self, members: Iterable[MemberRow], now: float) -> None:
        """Take in the rows as they are now. Members that are not among them are forgotten."""
        seen: dict[str, tuple[str, int, float]] = {}
        for member in members:
            before = self._last.get(member.id)
            moved = before is None or before[:2] != (member.inc, member.beat)
            seen[member.id] = (member.inc, member.beat, now) if moved or before is None else before
        self._last = seen

    def silent_for(self, member: MemberRow, now: float) -> float:
        """Seconds since this member's counter was last seen to move; 0 if it was never seen."""
        entry = self._last.get(member.id)
        return 0.0 if entry is None else now - entry[2]

    def is_silent(self, member: MemberRow, now: float) -> bool:
        """Whether its lease has passed: another may lead in its place."""
        return self.silent_for(member, now) * 1000 >= member.lease_ms

    def is_dead(self, member: MemberRow, now: float) -> bool:
        """Whether its lease and its grace time have passed: its partitions go to others."""
        return self.silent_for(member, now) * 1000 >= member.patience_ms
