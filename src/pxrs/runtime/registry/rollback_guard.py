"""Refuses rows older than this process has seen: the store was restored, failed over or wiped.

A store can be restored from a copy, fail over to a replica that lacks the last writes, or be wiped. Epochs that were
granted would then be granted again, to others. A process that has seen a higher number refuses the lower one.
"""

from __future__ import annotations

from pxrs.errors import WentBack
from pxrs.model import Group, Partition


def refuse_older_partition(group: str, row: Partition, epoch: int) -> None:
    """``epoch`` is the highest one that this process has seen in the row of this partition."""
    if row.epoch < epoch:
        raise WentBack(
            f"partition {row.number} of group {group!r} went back from epoch {epoch} to {row.epoch}: {_CAUSE}"
        )


def refuse_older_group(name: str, row: Group, last: Group) -> None:
    """``last`` is the row of this group as this process has seen it before."""
    if last.born and row.born and last.born != row.born:
        raise WentBack(f"group {name!r} was made anew: the registry store was wiped, or the group deleted")
    for what in ("generation", "leader_epoch"):
        before, found = getattr(last, what), getattr(row, what)
        if found < before:
            words = what.replace("_", " ")
            raise WentBack(f"group {name!r} went back from {words} {before} to {found}: {_CAUSE}")


_CAUSE = "the registry store has lost writes, or was restored from a copy"
