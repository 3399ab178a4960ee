"""The JSON in Spark's offset log, in which a person finds the queue, its partitions and the member that planned them.

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
from pxrs.rules.json_fields import BadField, flag, items, mapping, shown, text, whole
from pxrs.settings import MAX_PARTITIONS

Offset = dict[str, Any]
LOG, GROUP, MEMBER, LIFE, PLAN, FENCED = "@log", "@group", "@member", "@life", "@plan", "@fenced"
_ABOUT = frozenset({LOG, GROUP, MEMBER, LIFE, PLAN, FENCED})
_DIGITS = 10
"""The digits of a partition's number that are looked at; a number with more is none."""


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
    """Whether this is the offset of a member of a group, and not of another source. It may be damaged: ``decode``
    tells. Taken for another source's, its batch would be written without a fence."""
    return isinstance(offset, dict) and not offset.keys().isdisjoint(_ABOUT - {LOG})


def decode(offset: Offset) -> Planned:
    """The plan that an offset holds. Every field is checked: one that is not as it was written is Damaged."""
    try:
        fields = mapping("it", offset)
        queue = _queue_in(fields, _ABOUT)
        return Planned(
            queue,
            text(LOG, fields[LOG]),
            text(GROUP, fields[GROUP]),
            text(MEMBER, fields[MEMBER]),
            text(LIFE, fields[LIFE]),
            whole(PLAN, fields[PLAN]),
            flag(FENCED, fields[FENCED]),
            tuple(range_of(_number(key), part) for key, part in mapping(queue, fields[queue]).items()),
        )
    except BadField as error:
        raise _damaged(offset, error) from None


def range_of(partition: int, part: Any) -> Range:
    """Read a range from JSON: start, end and epoch. Raises BadField."""
    name = f"partition {partition}"
    start, end, epoch = (whole(name, value) for value in items(name, part, 3))
    if start > end:
        raise BadField(f"{name} is {shown(part)}, which ends before it starts")
    return Range(partition, start, end, epoch)


def _queue_in(fields: Mapping[str, Any], about: frozenset[str]) -> str:
    """The one name that is not ours; beside it there must be these of ours, and no others."""
    queues = [key for key in fields if not key.startswith("@")]
    if len(queues) != 1:
        raise BadField(f"it names {len(queues)} queues, and not one")
    found = {key for key in fields if key.startswith("@")}
    if found != about:
        missing, strange = sorted(about - found), sorted(found - about)
        parts = [f"{', '.join(missing)} is missing"] * bool(missing) + [f"{shown(strange)} is unknown"] * bool(strange)
        raise BadField("; ".join(parts))
    return queues[0]


def _number(key: str) -> int:
    """A partition's number, written as we write it."""
    if not (key.isascii() and key.isdecimal() and len(key) <= _DIGITS and str(int(key)) == key):
        raise BadField(f"{shown(key)} is no number of a partition")
    if int(key) >= MAX_PARTITIONS:
        raise BadField(f"there is no partition {key}: they end at {MAX_PARTITIONS - 1}")
    return int(key)


def _damaged(offset: Any, error: BadField) -> Damaged:
    return Damaged(
        f"the offset {shown(offset)} in Spark's checkpoint is damaged, or was not written by this version of PXRS: "
        f"{error}; use a new checkpointLocation"
    )


def check_origin(offset: Offset, log: LogIdentity, group: str | None = None) -> None:
    """Refuse an offset of another log, or of another group: its numbers mean nothing here."""
    if not isinstance(offset, dict):
        raise _damaged(offset, BadField("it is no table of names and values"))
    if LOG not in offset or (GROUP in offset) != (group is not None):
        kind = "a stream without a group" if group is not None else "a member of a group"
        raise Mismatch(f"Spark's checkpoint was written by {kind}; use a new checkpointLocation: {shown(offset)}")
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
    """Read the position of each partition; refused if the stream reads other partitions now."""
    check_origin(offset, log)
    try:
        _queue_in(offset, frozenset({LOG}))
        found = mapping(log.name, offset[log.name])
        positions = {_number(key): whole(f"partition {key}", position) for key, position in found.items()}
    except BadField as error:
        raise _damaged(offset, error) from None
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
