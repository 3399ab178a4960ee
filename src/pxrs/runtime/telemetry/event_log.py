"""The events of one member: counted, written to the log for people, and passed to the user's listener.

One line for each rebalance with its reason, and one for each thing that went wrong.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pxrs.io.clock import Clock
from pxrs.runtime.ports.events import Report
from pxrs.runtime.views.tables import counted

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
    "still_troubled": "{group}: {member} has tried {tries} times in {seconds:.0f} s: {error}",
    "answered": "{group}: {member} goes on: the registry answers again, after {seconds:.1f} s",
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
_LINES = _WARNINGS | _NOTES | _DETAILS
_LEVELS = {
    **dict.fromkeys(_WARNINGS, logging.WARNING),
    **dict.fromkeys([*_NOTES, "settled"], logging.INFO),
    **dict.fromkeys(_DETAILS, logging.DEBUG),
}
"""The log level of each kind of event; a kind without a line is counted, and not written."""

AGAIN_SECONDS = 60.0
"""The interval of the lines about a registry that does not answer, after the first one."""


class EventLog:
    """Takes in what one member reports. An outage of the registry is one log line, and then one each minute."""

    def __init__(self, queue: str, group: str, clock: Clock, report: Report | None = None) -> None:
        self.counts: Counter[str] = Counter()
        """The number of events of each kind."""
        self._tell = report
        self._group = f"{queue}/{group}"
        self._clock = clock
        self._tries = 0
        self._since = self._again_at = 0.0

    def __call__(self, kind: str, facts: Mapping[str, Any]) -> None:
        self.counts[kind] += 1
        if kind == "answered":
            self._tries = 0
        if kind == "troubled":
            self._write_trouble(facts)
        elif kind in _LEVELS and logger.isEnabledFor(_LEVELS[kind]):
            self._write(kind, facts)
        if self._tell is not None:
            self._tell(kind, facts)

    def _write_trouble(self, facts: Mapping[str, Any]) -> None:
        """Write a line for a failure that is new, or has lasted for one more minute."""
        now = self._clock.monotonic()
        self._tries += 1
        is_new = self._tries == 1
        if is_new:
            self._since = now
        elif now < self._again_at:
            return
        self._again_at = now + AGAIN_SECONDS
        times = {"tries": self._tries, "seconds": now - self._since}
        self._write("troubled" if is_new else "still_troubled", {**facts, **times})

    def _write(self, kind: str, facts: Mapping[str, Any]) -> None:
        if kind == "settled":
            logger.info("%s: %s", self._group, rebalance_line(facts))
        elif logger.isEnabledFor(_LEVELS[kind]):
            logger.log(_LEVELS[kind], _LINES[kind].format(group=self._group, **facts))


def rebalance_line(facts: Mapping[str, Any]) -> str:
    """The line of one rebalance: why, what moved, which members wait, and how long each phase took."""
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
    return f"{counted(len(partitions), 'partition')} ({shown}{more})" if partitions else "nothing"
