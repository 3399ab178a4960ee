"""Log lines for people: one for each rebalance with its reason, and one for each thing that went wrong."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

logger = logging.getLogger("pxrs.group")

_WARNINGS = {
    "lost": "{group}: {member} lost partition {partition} (epoch {epoch})",
    "refused": "{group}: a late commit of {member} was refused: {error}",
    "fenced": "{group}: {member} stops: {error}",
    "forced": "{group}: leader {member} took partitions {partitions} from owners that are gone or late",
    "created_behind": "{group}: {member} made this group anew, without checkpoints, over a log of {messages} messages "
    "which has had groups before, in a registry that is lost or replaced: set the checkpoints with `pxrs group seek`",
    "stalled": "{group}: {member} beats but makes no progress; its partitions go to others",
    "damaged": "{group}: {member} leaves partition {partition} alone: {error}",
    "troubled": "{group}: {member} will try again: {error}",
}
_NOTES = {
    "created": "{group}: {member} made this group, over a log of {messages} messages",
    "joined": "{group}: {member} joined",
    "left": "{group}: {member} left",
    "sought": "{group}: partition {partition} was moved by a seek; {member} goes on at the new place",
    "elected": "{group}: {member} leads (leader epoch {leader_epoch})",
    "active": "{group}: {member} makes progress again",
    "batch": "{group}: {member} batch {batch} {outcome}: {rows} rows in {seconds:.3f} s, {owned} partitions, lag {lag}",
}
_DETAILS = {
    "claimed": "{group}: {member} claimed partition {partition} at {checkpoint} (epoch {epoch})",
    "draining": "{group}: {member} drains partition {partition}",
    "released": "{group}: {member} released partition {partition} at {position}",
    "committed": "{group}: {member} committed partition {partition} at {checkpoint}",
}


class Journal:
    """Writes what a member reports to the log."""

    def __init__(self, queue: str, group: str) -> None:
        self._group = f"{queue}/{group}"

    def __call__(self, kind: str, facts: Mapping[str, Any]) -> None:
        if kind == "settled":
            logger.info("%s: %s", self._group, rebalance_line(facts))
        for level, lines in ((logging.WARNING, _WARNINGS), (logging.INFO, _NOTES), (logging.DEBUG, _DETAILS)):
            if kind in lines and logger.isEnabledFor(level):
                logger.log(level, lines[kind].format(group=self._group, **facts))


def rebalance_line(facts: Mapping[str, Any]) -> str:
    """What one rebalance was about: why, what moved, who stands by, and how long each phase took."""
    total, revoke = facts["total_s"], facts["revoke_s"]
    idle = f"; idle: {' '.join(facts['idle'])}" if facts["idle"] else ""
    return (
        f"rebalance {facts['generation']} {facts['how']} after {total:.3f} s "
        f"(revoke {revoke:.3f}, claim {max(0, total - revoke):.3f}): "
        f"{facts['reason']}; moved {_listed(facts['moved'])}; members {' '.join(facts['members'])}{idle}"
    )


def _listed(partitions: Sequence[int]) -> str:
    shown = " ".join(map(str, partitions[:20]))
    more = f" and {len(partitions) - 20} more" if len(partitions) > 20 else ""
    return f"{len(partitions)} partitions ({shown}{more})" if partitions else "nothing"
