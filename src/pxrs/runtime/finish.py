"""Working up to the end: it is enough when a group has passed the ends that the queue had at the start."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import inf
from typing import Protocol

from pxrs.clock import Clock
from pxrs.errors import PxrsError, Unavailable
from pxrs.model import Partition
from pxrs.runtime.group import GroupHandle
from pxrs.views.tables import ranges

logger = logging.getLogger("pxrs.consumer")

_FIRST_LOOK, _LAST_LOOK = 0.005, 0.2
"""Seconds between two looks: short at first, since little may be left; longer later, since others may need long."""
QUIET_SECONDS, _QUIET_MOST = 10.0, 60.0
"""So long nothing may move before a line says what is waited for; the pause to the next line doubles up to a minute."""
_NAMED = 5
"""How many partitions such a line names one by one."""


class Running(Protocol):
    """The member that works, as seen from here."""

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it has ended, after this time at the latest."""

    def where(self, partition: int) -> int | None:
        """Its position, None if it does not work on this partition."""

    @property
    def troubles(self) -> Mapping[int, PxrsError]: ...


class FinishLine:
    """The end of each partition when this was made, and the look whether the whole group has passed them.

    Partitions that are paused do not count: nobody works on them, and a wait for them could last for ever.
    """

    def __init__(self, group: GroupHandle, clock: Clock) -> None:
        group.refuse_lost_log()
        self._group = group
        self._clock = clock
        self._ends = {p: end for p, end in group.resolve("latest").items() if end}
        self._seen: dict[int, int | None] = {}

    def wait(self, member: Running, timeout: float | None = None) -> bool:
        """Block until the group is through (True), or the member has ended or the time is over (False)."""
        deadline = inf if timeout is None else self._clock.monotonic() + timeout
        quiet, pause = _Quiet(self._clock), _FIRST_LOOK
        while not member.wait(pause) and self._clock.monotonic() < deadline:
            pause = min(pause * 2, _LAST_LOOK)
            if self._moves(member):  # there is more to do here: no need to ask the registry
                continue
            left = self.left(member)
            if left is not None and not left:
                return True
            if quiet.is_long((left, self._seen)):
                logger.warning("group %s, until the end: waits for %s", self._group.name, self.describe(left, member))
        return False

    def _moves(self, member: Running) -> bool:
        """Whether this member has made progress since the last look, and is not through."""
        before, self._seen = self._seen, {p: member.where(p) for p in self._ends}
        return before != self._seen and any((self._seen[p] or 0) < end for p, end in self._ends.items())

    def left(self, member: Running) -> dict[int, Partition] | None:
        """The partitions that are not through, with their rows; None if the registry does not answer now."""
        open_here = [p for p, end in self._ends.items() if (member.where(p) or 0) < end]
        try:
            return self._short(open_here)[0] if open_here else {}
        except PxrsError:
            return None

    def confirm(self) -> None:
        """After the leave: what counted because it was done here must be stored by now."""
        left, paused = self._short(list(self._ends))
        if left:
            raise Unavailable(
                f"group {self._group.name!r}: partitions {ranges(sorted(left))} were taken away before their end was "
                "committed; run it again"
            )
        if paused:
            logger.warning(
                "group %s: partitions %s are paused and not at their end; they do not count. "
                "`pxrs group resume` lets them go on",
                self._group.name,
                ranges(paused),
            )

    def describe(self, left: Mapping[int, Partition] | None, member: Running) -> str:
        """What is waited for, in words."""
        if left is None:
            return "the registry, which does not answer"
        lines = [self._place(row, member) for row in left.values()]
        more = f" and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
        return "; ".join(lines[:_NAMED]) + more

    def _place(self, row: Partition, member: Running) -> str:
        here, trouble = member.where(row.number), member.troubles.get(row.number)
        owner = f"owner {row.owner.id}" if row.owner else "no owner"
        at = f"partition {row.number} at {row.position if here is None else here} of {self._ends[row.number]} ({owner})"
        return f"{at}, held up: {trouble}" if trouble else at

    def _short(self, partitions: list[int]) -> tuple[dict[int, Partition], list[int]]:
        """Of these partitions the rows that are not at their end, and the numbers of those that are paused there."""
        held = self._group.registry.read_partitions(partitions)
        short = {p: held[p].row for p in partitions if held[p].row.position < self._ends[p]}
        return {p: row for p, row in short.items() if not row.paused}, [p for p, row in short.items() if row.paused]


class _Quiet:
    """Tells when nothing has moved for long: after ten seconds, then at growing pauses."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: object = None
        self._since = clock.monotonic()
        self._limit = QUIET_SECONDS

    def is_long(self, seen: object) -> bool:
        now = self._clock.monotonic()
        if seen != self._seen:
            self._seen, self._since, self._limit = seen, now, QUIET_SECONDS
            return False
        if now - self._since < self._limit:
            return False
        self._since, self._limit = now, min(self._limit * 2, _QUIET_MOST)
        return True
