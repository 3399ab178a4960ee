"""Turns the options of a read into exact ranges, by looking at the log; and shares them out to tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise

from pxrs.drivers import find_driver, split_url
from pxrs.errors import BadSetting, NotFound, OutOfRange, Refused, masked_url
from pxrs.logs.base import Log, OpenOptions
from pxrs.logs.batches import check_partition
from pxrs.model import Range
from pxrs.settings import Settings
from pxrs.spark.read.options import EARLIEST, LATEST, Bound, Request
from pxrs.spark.read.plan import Plan, slices_of


def open_log(url: str) -> Log:
    """The log, which must exist: reading creates nothing, and needs no registry."""
    if split_url(url)[0] == "memory":
        raise Refused(
            f"{masked_url(url)!r} lives in the memory of one process, and Spark reads in others: use pxrs.spark.frame"
        )
    found: Log = find_driver("pxrs.logs", url).open(url, OpenOptions(), Settings(), False)
    return found


def check_queue(request: Request) -> None:
    """Refuse what is not there: the queue, or a partition that is asked for."""
    with closing(open_log(request.log)) as log:
        partitions_of(request, log)


def plan_request(request: Request, columns: tuple[str, ...]) -> Plan:
    """Look at the log and decide which task reads what."""
    with closing(open_log(request.log)) as log:
        parts = split(ranges_of(request, log), request.min_tasks, request.max_rows)
        return Plan(log.identity.name, columns, tuple(slices_of(log, [part]) for part in parts))


def partitions_of(request: Request, log: Log) -> tuple[int, ...]:
    """The partitions to read; every name and number that the options mention is checked."""
    name, count = log.identity.name, log.identity.partitions
    for option, topic in request.topics.items():
        if topic != name:
            raise NotFound(
                f"option {option!r} names the queue {topic!r}; the one in {masked_url(request.log)!r} is {name!r}"
            )
    chosen = tuple(range(count)) if request.partitions is None else request.partitions
    for partition in chosen:
        check_partition(name, partition, count)
    for bound in (request.start, request.end):
        _check_covered(bound, chosen)
    return chosen


def _check_covered(bound: Bound, chosen: tuple[int, ...]) -> None:
    if isinstance(bound.value, int) or set(bound.value) == set(chosen):
        return
    missing, strange = sorted(set(chosen) - set(bound.value)), sorted(set(bound.value) - set(chosen))
    raise BadSetting(
        f"option {bound.option!r} must name the partitions that are read, {list(chosen)}: "
        + "; ".join([f"it leaves out {missing}"] * bool(missing) + [f"it also names {strange}"] * bool(strange))
    )


def ranges_of(request: Request, log: Log) -> list[Range]:
    """The range of each partition that is read; empty ranges are left out."""
    found = (_range(request, log, partition) for partition in partitions_of(request, log))
    return [part for part in found if part.rows]


def _range(request: Request, log: Log, partition: int) -> Range:
    bounds = log.bounds(partition)
    start, end = (offset_of(bound, request, log, partition, bounds) for bound in (request.start, request.end))
    if start > end:
        raise BadSetting(
            f"partition {partition}: {request.start.option!r} is offset {start}, "
            f"behind {request.end.option!r}, which is {end}"
        )
    return Range(partition, start, end)


def offset_of(bound: Bound, request: Request, log: Log, partition: int, bounds: tuple[int, int]) -> int:
    """The offset that a bound means in this partition, whose log holds these offsets now."""
    value = bound.value if isinstance(bound.value, int) else bound.value[partition]
    if bound.is_time:
        found = log.offset_at(partition, value * 1_000)
        if bound is request.start and request.must_find_time and found >= bounds[1]:
            raise BadSetting(
                f"option {bound.option!r}: partition {partition} has no message of {value} ms or later; "
                "set startingOffsetsByTimestampStrategy to 'latest' to read nothing of it"
            )
        return min(found, bounds[1])
    if value in (EARLIEST, LATEST):
        return bounds[0] if value == EARLIEST else bounds[1]
    if request.fail_on_loss and not bounds[0] <= value <= bounds[1]:
        raise OutOfRange(
            f"option {bound.option!r}: partition {partition} holds the offsets {bounds[0]} to {bounds[1] - 1}, not "
            f"{value}; set failOnDataLoss to 'false' to read what is there"
        )
    return min(max(value, bounds[0]), bounds[1])


def split(ranges: list[Range], min_tasks: int | None, max_rows: int | None) -> list[Range]:
    """One range for each task: none longer than ``max_rows``, and at least ``min_tasks`` if there are rows enough."""
    parts = [piece for part in ranges for piece in _cut(part, -(-part.rows // max_rows) if max_rows else 1)]
    if min_tasks is None or len(parts) >= min_tasks:
        return parts
    rows = sum(part.rows for part in parts)
    return [piece for part in parts for piece in _cut(part, min(part.rows, -(-part.rows * min_tasks // rows)))]


def _cut(part: Range, count: int) -> Iterator[Range]:
    """Cut the range into this many pieces of about one size."""
    edges = [part.start + part.rows * number // count for number in range(count + 1)]
    for start, end in pairwise(edges):
        yield part._replace(start=start, end=end)
