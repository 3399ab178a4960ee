"""The plan of a Spark job, made in the driver: it travels to the tasks, and holds nothing but files and offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from pxrs.errors import BadSetting, Refused
from pxrs.logs.base import Log, Piece
from pxrs.logs.batches import check_partition, refuse_offset
from pxrs.model import Range

Ranges = Mapping[int, tuple[int, int]] | Iterable[Range]
"""``{partition: (start, end)}``, or ``Range`` objects, also several of one partition."""


class Slice(NamedTuple):
    """The messages ``[start, end)`` of one partition, and the pieces of the log that hold them."""

    partition: int
    start: int
    end: int
    epoch: int = 0
    pieces: tuple[Piece, ...] = ()


class Plan(NamedTuple):
    """The columns of a queue that are read, and the slices that each task reads."""

    topic: str
    columns: tuple[str, ...]
    tasks: tuple[tuple[Slice, ...], ...]


# ---- planning --------------------------------------------------------------------------------------------------------


def check_ranges(log: Log, ranges: Ranges) -> list[Range]:
    """The ranges that hold messages, by partition and start; refused if a message is not in the log, or in two."""
    wanted = sorted(_ranges(ranges))
    for part in wanted:
        _check_range(log, part)
    for one, other in pairwise(wanted):
        if one.partition == other.partition and one.end > other.start:
            raise Refused(f"partition {one.partition}: {_shown(one)} and {_shown(other)} overlap")
    return [part for part in wanted if part.rows]


def _ranges(ranges: Ranges) -> Iterator[Range]:
    if isinstance(ranges, Mapping):
        for partition, (start, end) in ranges.items():
            yield Range(partition, start, end)
    else:
        yield from ranges


def _check_range(log: Log, part: Range) -> None:
    name = log.identity.name
    check_partition(name, part.partition, log.identity.partitions)
    if not 0 <= part.start <= part.end:
        raise Refused(f"queue {name!r}, partition {part.partition}: {_shown(part)} is no range of offsets")
    if not part.rows:
        return
    bounds = log.bounds(part.partition)
    for offset in (part.start, part.end):
        if not bounds[0] <= offset <= bounds[1]:
            refuse_offset(name, part.partition, offset, bounds)


def _shown(part: Range) -> str:
    return f"[{part.start}, {part.end})"


def spread(slices: Iterable[Slice], tasks: int) -> tuple[tuple[Slice, ...], ...]:
    """Share the slices out: at most this many tasks, with about as many rows each, a partition in only one of them."""
    if tasks < 1:
        raise BadSetting(f"tasks = {tasks!r}: at least 1")
    by_partition: dict[int, list[Slice]] = {}
    for part in slices:
        by_partition.setdefault(part.partition, []).append(part)
    rows = {number: sum(part.end - part.start for part in parts) for number, parts in by_partition.items()}
    return tuple(tuple(part for number in group for part in by_partition[number]) for group in pack(rows, tasks))


def slices_of(log: Log, parts: Iterable[Range]) -> tuple[Slice, ...]:
    """Ranges together with the pieces that hold them."""
    return tuple(Slice(*part, tuple(log.pieces(part.partition, part.start, part.end))) for part in parts)


def pack(rows: Mapping[int, int], tasks: int) -> list[list[int]]:
    """Share partitions out over at most this many tasks, evenly by rows.

    A partition is never split, so its order is kept. The heaviest is placed first, each where there is least so far.
    """
    packed: list[list[int]] = [[] for _ in range(min(max(tasks, 1), len(rows)))]
    loads = [0] * len(packed)
    for partition in sorted(rows, key=lambda number: (-rows[number], number)):
        lightest = loads.index(min(loads))
        packed[lightest].append(partition)
        loads[lightest] += rows[partition]
    return [sorted(group) for group in packed]
