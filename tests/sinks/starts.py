"""Starts of consumers with many partitions and a sink, with traffic and a member that joins and leaves.

    python -m tests.sinks.starts 256 20          # partitions, starts: for both sinks

Each start is a new group: all partitions are claimed at once while there is much to stage, then another member takes
half of them and gives them back. Nobody may end, and each message's output is shown once.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.dataset as ds

import pxrs
from pxrs.errors import NotFound
from pxrs.sinks import ParquetSink, QueueSink

SECONDS = 120.0


class Start(NamedTuple):
    """What became of one start."""

    sent: int
    shown: int
    seconds: float
    errors: list[str]


class Member(Protocol):
    """One of a group: a consumer, a pipeline, a query."""

    def start(self) -> Any: ...
    def stop(self) -> Any: ...
    def check(self) -> Any: ...


def consumer(queue: pxrs.Queue, group: str, member: str, sink: Any) -> Member:
    return queue.consumer(group, handler=_handle, deliver="arrow", sink=sink, member=member)


def run_starts(
    directory: Path, kind: str, partitions: int, starts: int, rows: int, make: Callable[..., Member] = consumer
) -> Iterator[Start]:
    with pxrs.open(f"file:{directory}/{kind}-source", partitions=partitions) as queue:
        for number in range(starts):
            _send(queue, partitions * rows)
            yield _start(queue, directory / f"{kind}-{number}", kind, partitions * rows, make)


def _start(queue: pxrs.Queue, place: Path, kind: str, more: int, make: Callable[..., Member]) -> Start:
    began, group = time.monotonic(), queue.group(place.name)
    with ExitStack() as closing:
        members = [make(queue, group.name, f"m{n}", _sink(closing, place, kind)) for n in range(2)]
        members[0].start()
        _until(lambda: _has_committed(group), members)
        members[1].start()
        _send(queue, more)
        _until(lambda: {line.owner for line in group.describe()} == {"m0", "m1"}, members)
        members[1].stop()
        _until(lambda: group.describe().total_lag == 0, members)
        members[0].stop()
        errors = [text for member in members if (text := _error_of(member))]
        sent = sum(end for _, end in (queue.log.bounds(p) for p in range(queue.partitions)))
        return Start(sent, _shown(place, kind), time.monotonic() - began, errors)


def _send(queue: pxrs.Queue, count: int) -> None:
    with queue.producer() as producer:
        producer.send_batch(pa.table({"key": [f"k{n}" for n in range(count)], "value": ["v"] * count})).result()


def _sink(closing: ExitStack, place: Path, kind: str) -> ParquetSink | QueueSink:
    if kind == "parquet":
        return ParquetSink(place)
    return QueueSink(closing.enter_context(pxrs.open(f"file:{place}", partitions=4)))


def _handle(batch: pa.RecordBatch) -> pa.Table:
    return pa.table({"value": batch.column("value")})


def _has_committed(group: Any) -> bool:
    try:
        return any(line.checkpoint for line in group.describe())
    except NotFound:  # its first member has just begun
        return False


def _until(condition: Any, members: list[Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition() and not any(map(_error_of, members)):
        assert time.monotonic() < deadline, "too slow"
        time.sleep(0.02)


def _error_of(member: Any) -> str:
    try:
        member.check()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _shown(place: Path, kind: str) -> int:
    if kind == "parquet":
        return int(ds.dataset(str(place), format="parquet").count_rows())
    with pxrs.open(f"file:{place}") as queue:
        return sum(queue.log.bounds(p)[1] for p in range(queue.partitions))


if __name__ == "__main__":
    for sort in ("parquet", "queue"):
        with tempfile.TemporaryDirectory() as folder:
            for found in run_starts(Path(folder), sort, int(sys.argv[1]), int(sys.argv[2]), rows=100):
                print(sort, found, flush=True)
