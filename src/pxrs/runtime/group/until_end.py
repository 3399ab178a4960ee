"""Working up to the end: it is enough when a group has passed the ends that the queue had at the start."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import inf
from typing import Protocol

from pxrs.errors import PxrsError, Unavailable
from pxrs.io.clock import Clock
from pxrs.model import Partition
from pxrs.runtime.group.admin import GroupHandle
from pxrs.runtime.views.tables import ranges

logger = logging.getLogger("pxrs.consumer")

_FIRST_LOOK, _LAST_LOOK = 0.005, 0.2
"""Seconds between two looks: short at first, since little may be left; longer later, since others may need long."""
QUIET_SECONDS, _QUIET_MOST = 10.0, 60.0
"""A line says what is waited for after this time without a move; the pause to the next line doubles up to a minute."""
_NAMED = 5
"""The most partitions that such a line names one by one."""


class WorkingMember(Protocol):
    """The member that works, as seen from here."""

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it has ended, after this time at the latest."""

    def where(self, partition: int) -> int | None:
        """Its position, None if it does not work on this partition."""

    def done(self, partition: int) -> int | None:
        """The offset up to which all is done, without output that waits for its sink; None if it is not begun here."""

    @property
    def member_id(self) -> str: ...

    @property
    def troubles(self) -> Mapping[int, PxrsError]: ...


class FinishLine:
    """The end of each partition when this was made, and the check whether the whole group has passed them.

    Partitions that are paused do not count: nobody works on them, and a wait for them could last forever.
    """

    def __init__(self, group: GroupHandle, clock: Clock) -> None:
        group.refuse_lost_log()
        self._group = group
        self._clock = clock
        self._ends = {p: end for p, end in group.resolve("latest").items() if end}
        self._seen: dict[int, int | None] = {}

    def wait(self, member: WorkingMember, timeout: float | None = None) -> bool:
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

    def _moves(self, member: WorkingMember) -> bool:
        """Whether this member has made progress since the last look, and is not through."""
        before, self._seen = self._seen, {p: member.where(p) for p in self._ends}
        return before != self._seen and any((self._seen[p] or 0) < end for p, end in self._ends.items())

    def left(self, member: WorkingMember) -> dict[int, Partition] | None:
        """The partitions that are not through, with their rows; None if the registry does not answer now."""
        here = {p: member.done(p) for p in self._ends}
        open_here = [p for p, end in self._ends.items() if (here[p] or 0) < end]
        try:
            rows = self._rows(open_here)
        except PxrsError:
            return None
        short = self._short(rows)[0]
        unshown = {p: row for p, row in rows.items() if owes_output(row, member.member_id, here[p])}
        return short | {p: row for p, row in unshown.items() if row.position >= self._ends[p]}

    def confirm(self, unshown: Mapping[int, int] | None = None) -> None:
        """Check after the leave: the work that was done here must be stored and shown by now.

        ``unshown``: partitions that were given up with output that is not shown, and under which epoch.
        """
        rows = self._rows(list(self._ends))
        left, paused = self._short(rows)
        hidden = [p for p, epoch in (unshown or {}).items() if p in rows and _is_still_left(rows[p], epoch)]
        if left:
            raise Unavailable(
                f"group {self._group.name!r}: partitions {ranges(sorted(left))} were taken away before their end was "
                "committed; run it again"
            )
        if hidden:
            raise Unavailable(
                f"group {self._group.name!r}: the output of partitions {ranges(sorted(hidden))} is committed, and "
                "could not be shown; run it again when the sink works"
            )
        if paused:
            logger.warning(
                "group %s: partitions %s are paused and not at their end; they do not count. "
                "`pxrs group resume` lets them go on",
                self._group.name,
                ranges(paused),
            )

    def describe(self, left: Mapping[int, Partition] | None, member: WorkingMember) -> str:
        """The partitions that are waited for, in words."""
        if left is None:
            return "the registry, which does not answer"
        lines = [self._place(row, member) for row in left.values()]
        more = f" and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
        return "; ".join(lines[:_NAMED]) + more

    def _place(self, row: Partition, member: WorkingMember) -> str:
        here, trouble = member.where(row.number), member.troubles.get(row.number)
        owner = f"owner {row.owner.id}" if row.owner else "no owner"
        at = f"partition {row.number} at {row.position if here is None else here} of {self._ends[row.number]} ({owner})"
        return f"{at}, held up: {trouble}" if trouble else at

    def _rows(self, partitions: list[int]) -> dict[int, Partition]:
        held = self._group.registry.read_partitions(partitions) if partitions else {}
        return {p: held[p].row for p in partitions}

    def _short(self, rows: Mapping[int, Partition]) -> tuple[dict[int, Partition], list[int]]:
        """The rows that are not at their end, and the numbers of those that are paused there."""
        short = {p: row for p, row in rows.items() if row.position < self._ends[p]}
        return {p: row for p, row in short.items() if not row.paused}, [p for p, row in short.items() if row.paused]


def owes_output(row: Partition, me: str, here: int | None) -> bool:
    """Whether what this row's note names may be committed and not shown; ``here``: what is done by ``me``, if begun.

    An owner shows what the note names, first of all. So a partition without an owner may owe it, and one
    that is in these hands owes it until all is done; for those of other members these see to it.
    """
    if not row.note or (row.paused and here is None):
        return False
    return row.owner is None or (row.owner.id == me and (here is None or here < row.position))


def _is_still_left(row: Partition, epoch: int) -> bool:
    """Whether nobody has claimed it since it was given up under this epoch: giving up has moved it on by one."""
    return bool(row.note) and row.owner is None and row.epoch == epoch + 1


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
