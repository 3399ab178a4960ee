"""Refuses rows older than this process has seen: the store was restored, failed over or wiped.

A store can be restored from a copy, fail over to a replica that lacks the last writes, or be wiped. Epochs that were
granted would then be granted again, to others. A process that has seen a higher number refuses the lower one.
"""

from __future__ import annotations

from pxrs.errors import WentBack
from pxrs.model import Group, Partition


class RollbackGuard:
    """Remembers the highest numbers that it was shown. Used by the one thread that reads the rows."""

    def __init__(self, group: str) -> None:
        self._name = group
        self.last_group: Group | None = None
        self.epochs: dict[int, int] = {}

    def partition(self, row: Partition) -> Partition:
        """The row, if it is not older than what was seen before."""
        epoch = self.epochs.get(row.number, 0)
        if row.epoch < epoch:
            raise WentBack(
                f"partition {row.number} of group {self._name!r} went back from epoch {epoch} to {row.epoch}: {_CAUSE}"
            )
        self.epochs[row.number] = row.epoch
        return row

    def group(self, row: Group) -> Group:
        last = self.last_group
        if last is not None:
            self._compare(last, row)
        self.last_group = row
        return row

    def _compare(self, last: Group, now: Group) -> None:
        if last.born and now.born and last.born != now.born:
            raise WentBack(f"group {self._name!r} was made anew: the registry store was wiped, or the group deleted")
        for what in ("generation", "leader_epoch"):
            before, found = getattr(last, what), getattr(now, what)
            if found < before:
                words = what.replace("_", " ")
                raise WentBack(f"group {self._name!r} went back from {words} {before} to {found}: {_CAUSE}")


_CAUSE = "the registry store has lost writes, or was restored from a copy"
