"""What the benchmark of the log does with a queue of ours: send, send batches, read, consume."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count as numbers
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pyarrow as pa

import pxrs
from benchmarks.parts.log_rounds import elsewhere
from benchmarks.parts.peers_machine import counted_syncs
from pxrs.logs.base import OpenOptions
from pxrs.logs.file.log import FileLog

VALUE = b"x" * 100
KEYS = [f"account-{number:05d}" for number in range(1_000)]
PARTITIONS = 8
WAIT_SECONDS = 600.0


def table(rows: int, partitions: str = "by key") -> pa.Table:
    """Messages for ``send_batch``: routed by key, or with partitions that are given, in runs or mixed."""
    keys = np.resize(np.array(KEYS, dtype="S"), rows)
    columns = {"key": pa.array(keys, pa.binary()), "value": pa.array([VALUE] * rows, pa.binary())}
    if partitions != "by key":
        mixed = np.arange(rows) % PARTITIONS
        columns["partition"] = pa.array(np.sort(mixed) if partitions == "in runs" else mixed, pa.int32())
    return pa.table(columns)


@contextmanager
def new_queue(place: Path, partitions: int = PARTITIONS, **settings: object) -> Iterator[pxrs.Queue]:
    """A queue in a directory that goes away with it. Nothing is sealed meanwhile: that is measured elsewhere."""
    with TemporaryDirectory(dir=place) as directory:
        chosen = pxrs.Settings(seal="manual", **settings)  # type: ignore[arg-type]  # names are the caller's
        with pxrs.open(f"file:{directory}/orders", partitions=partitions, settings=chosen) as queue:
            yield queue


def stored_bytes(place: Path) -> int:
    """What stands in the segments below a directory."""
    return sum(path.stat().st_size for path in place.rglob("*.arrow"))


class Sent(NamedTuple):
    seconds: float
    syncs: int
    size: int


def send(place: Path, count: int) -> Sent:
    """One by one, until all are durable."""
    with new_queue(place) as queue, counted_syncs() as syncs:
        began = time.perf_counter()
        with queue.producer() as producer:
            send_one = producer.send
            for number in range(count):
                send_one(KEYS[number % 1_000], VALUE)
        return Sent(time.perf_counter() - began, len(syncs), stored_bytes(place))


def send_batch(place: Path, messages: pa.Table) -> Sent:
    """One call with a whole table, until all is durable."""
    with new_queue(place) as queue, counted_syncs() as syncs:
        began = time.perf_counter()
        with queue.producer() as producer:
            producer.send_batch(messages)
        return Sent(time.perf_counter() - began, len(syncs), stored_bytes(place))


def fill(queue: pxrs.Queue, rows: int, chunk: pa.Table) -> None:
    with queue.producer() as producer:
        for first in range(0, rows, chunk.num_rows):
            producer.send_batch(chunk.slice(0, min(chunk.num_rows, rows - first)))


def read_all(directory: str, start: int = 0, rows: int | None = None, find: bool = True) -> float:
    """Seconds to read each partition as Arrow batches, at most so many rows of each; every checksum is verified.

    By a log that was opened for this alone, because what was verified once is not verified again. Unless ``find``,
    the way to the first batch is not counted: to list the files of a partition, and to walk over the headers. To map
    the file and to verify the first batch always is: its bytes are counted as well.
    """
    log = FileLog.open(f"file:{directory}", OpenOptions(), pxrs.Settings(), create=False)
    partitions = range(log.identity.partitions)
    for partition in () if find else partitions:
        log.pieces(partition, start, min(start + 1, log.bounds(partition)[1]))
    began = time.perf_counter()
    for partition in partitions:
        offset, end = start, start + rows if rows else None
        while (end is None or offset < end) and (batch := log.read(partition, offset, 1_000_000)) is not None:
            offset += batch.num_rows
    took = time.perf_counter() - began
    log.close()
    return took


class Consumed(NamedTuple):
    seconds: float
    cpu_seconds: float


def consume(directory: str, group: str, count: int) -> Consumed:
    """Handle every message one by one, checkpoints included, in a process of its own on one core."""
    return elsewhere(_consume, directory, group, count)


def _consume(directory: str, group: str, count: int) -> Consumed:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    began: list[tuple[float, float]] = []
    calls = numbers()

    def handle(_message: pxrs.Message) -> None:
        next(calls)

    def begin(*_: object) -> None:
        began.append((time.perf_counter(), time.process_time()))

    with pxrs.open(f"file:{directory}") as queue:
        consumer = queue.consumer(group=group, handler=handle, member="A", assigned=begin).start()
        _until_handled(consumer, count)
        consumer.stop()
        ended = time.perf_counter(), time.process_time()
        stored = sum(line.checkpoint or 0 for line in queue.group(group).describe())
    if next(calls) != count or stored != count:
        raise RuntimeError(f"{count} messages were sent, and {stored} are committed")
    return Consumed(ended[0] - began[0][0], ended[1] - began[0][1])


def _until_handled(consumer: pxrs.Consumer, count: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while consumer.tally.handled < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{consumer.tally.handled} of {count} messages handled in {WAIT_SECONDS:g} s")
        time.sleep(0.005)
