"""What stands in Spark's offset log: JSON in which a person finds the queue, its partitions and who planned what.

A stream that reads alone has Kafka's form, ``{"orders": {"0": 12, "1": 7}, "@log": ...}``. A member of a group has
``[start, end, epoch]`` for the partitions of this one batch: each batch can be understood, and judged after a restart,
without those before it. No queue can have a name that begins with "@".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pxrs.errors import Damaged, Mismatch
from pxrs.logs.base import LogIdentity
from pxrs.model import Cause, Grant, Partition, Range

Offset = dict[str, Any]
LOG, GROUP, MEMBER, LIFE, PLAN, FENCED = "@log", "@group", "@member", "@life", "@plan", "@fenced"


@dataclass(frozen=True, slots=True)
class Planned:
    """A batch as a member of a group has planned it. ``life`` and ``number`` tell it from every other plan.

    ``fenced``: commits of this query were seen to come from its sink; then the rows alone tell what is done.
    """

    queue: str
    log: str
    group: str
    member: str
    life: str = ""
    number: int = 0
    fenced: bool = False
    ranges: tuple[Range, ...] = ()

    @property
    def identity(self) -> tuple[str, int]:
        return self.life, self.number

    def encode(self) -> Offset:
        ranges = {str(part.partition): [part.start, part.end, part.epoch] for part in self.ranges}
        about = {LOG: self.log, GROUP: self.group, MEMBER: self.member}
        return {self.queue: ranges, **about, LIFE: self.life, PLAN: self.number, FENCED: self.fenced}


def is_of_group(offset: Any) -> bool:
    """Whether this is the offset of a member of a group, and not of another source."""
    return isinstance(offset, dict) and {LOG, GROUP, MEMBER, LIFE, PLAN} <= offset.keys()


def decode(offset: Offset) -> Planned:
    try:
        [(queue, ranges)] = [(key, value) for key, value in offset.items() if not key.startswith("@")]
        parts = tuple(Range(int(number), *part) for number, part in ranges.items())
        about = (offset[LOG], offset[GROUP], offset[MEMBER], offset[LIFE], offset[PLAN], offset[FENCED])
        return Planned(queue, *about, parts)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"the offset {offset!r} in Spark's checkpoint was not written by this version of PXRS") from error


def check_origin(offset: Offset, log: LogIdentity, group: str | None = None) -> None:
    """Refuse an offset of another log, or of another group: its numbers mean nothing here."""
    if LOG not in offset or (GROUP in offset) != (group is not None):
        kind = "a stream without a group" if group is not None else "a member of a group"
        raise Mismatch(f"Spark's checkpoint was written by {kind}; use a new checkpointLocation: {offset!r}")
    if offset[LOG] != log.id or log.name not in offset:
        raise Mismatch(
            f"Spark's checkpoint was written for another log than that of queue {log.name!r}: was the queue created "
            "anew, with another number of partitions perhaps? Use a new checkpointLocation"
        )
    if group is not None and offset[GROUP] != group:
        raise Mismatch(f"Spark's checkpoint belongs to group {offset[GROUP]!r}, not {group!r}: use a new one")


# ---- a stream that reads alone ---------------------------------------------------------------------------------------


def encode_positions(log: LogIdentity, positions: Mapping[int, int]) -> Offset:
    return {log.name: {str(partition): offset for partition, offset in positions.items()}, LOG: log.id}


def decode_positions(offset: Offset, log: LogIdentity, chosen: tuple[int, ...]) -> dict[int, int]:
    """Where each partition stands; refused if the stream reads other partitions now."""
    check_origin(offset, log)
    positions = {int(number): position for number, position in offset[log.name].items()}
    if set(positions) != set(chosen):
        raise Mismatch(
            f"Spark's checkpoint has the partitions {sorted(positions)} of queue {log.name!r}, and {list(chosen)} are "
            "to be read: use a new checkpointLocation"
        )
    return positions


# ---- after a restart -------------------------------------------------------------------------------------------------


def continues(row: Partition, grant: Grant, part: Range) -> bool:
    """Whether a range that was planned before a restart is still exactly what comes next, under this new grant.

    Nothing of it was committed, no other member has had the partition since, and nobody has moved its checkpoint.
    """
    if row.owner != grant.owner or row.epoch != grant.epoch or row.checkpoint != part.start:
        return False
    lines = {line.epoch: line for line in row.history}
    since = [lines.get(epoch) for epoch in range(part.epoch, row.epoch + 1)]
    first = since[0] if since else None
    return (
        first is not None
        and first.owner == grant.owner.id
        and all(line is not None and line.owner in (None, grant.owner.id) for line in since)
        and all(line is not None and line.cause != Cause.SEEK.value for line in since)
    )
