"""How the log behaves as it grows: in bytes, in partitions, and in the length of its history."""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import pxrs
from benchmarks.parts.log_rounds import elsewhere
from benchmarks.parts.log_work import KEYS, VALUE, fill, new_queue, read_all, stored_bytes, table
from benchmarks.parts.peers_machine import raw_append
from pxrs.logs.base import FewRows
from pxrs.logs.formats.manifest import NAME, Manifest, Sealed, Summary, write_manifest

ROW_BYTES = 153
"""What a message of the benchmark takes in a segment."""
PROBE_ROWS = 200_000
ROUNDS = 3


class Rates(NamedTuple):
    """Megabytes of log a second."""

    append: float
    read: float
    raw: float
    """Of the same bytes, written and synced with nothing between, into as many files, in the same rounds."""


def with_size(place: Path, sizes: list[int]) -> dict[int, Rates]:
    """Rates of one more probe of messages, when the queue already holds so many megabytes."""
    chunk, found = table(PROBE_ROWS), {}
    with new_queue(place) as queue:
        directory = next(path.parent for path in place.rglob("queue.json"))
        held = 0
        for size in sizes:
            rows = max(0, size * 10**6 // ROW_BYTES - held)
            fill(queue, rows, chunk)
            found[size], held = _probe(queue, directory, held + rows), held + rows + ROUNDS * PROBE_ROWS
    return found


def _probe(queue: pxrs.Queue, directory: Path, held: int) -> Rates:
    """Append at the end, and read as much from the middle: no step is special there."""
    appends, reads, raws = [], [], []
    chunk, size = table(PROBE_ROWS), PROBE_ROWS * ROW_BYTES / 1e6
    partitions = len(queue.ends())
    for _ in range(ROUNDS):
        began = time.perf_counter()
        fill(queue, PROBE_ROWS, chunk)
        appends.append(size / (time.perf_counter() - began))
        reads.append(size / read_all(str(directory), held // partitions // 2, PROBE_ROWS // partitions, find=False))
        raws.append(size / raw_append(directory.parent / "raw", round(size * 1e6), partitions))
    return Rates(*map(statistics.median, (appends, reads, raws)))


def with_partitions(place: Path, counts: list[int], rows: int = PROBE_ROWS) -> dict[int, Rates]:
    """Rates of the same messages, sent as one table of so many rows and spread over so many partitions."""
    return {count: _spread(place, count, rows) for count in counts}


def _spread(place: Path, partitions: int, rows: int) -> Rates:
    chunk, appends, reads, raws = table(rows), [], [], []
    with new_queue(place, partitions) as queue:
        directory = next(path.parent for path in place.rglob("queue.json"))
        fill(queue, rows, chunk)  # the first use of a partition makes its first file
        for _ in range(ROUNDS):
            began, before = time.perf_counter(), stored_bytes(place)
            fill(queue, rows, chunk)
            took = time.perf_counter() - began
            stored = stored_bytes(place)
            appends.append((stored - before) / 1e6 / took)
            reads.append(stored / 1e6 / read_all(str(directory), find=False))
            raws.append((stored - before) / 1e6 / raw_append(directory.parent / "raw", stored - before, partitions))
    return Rates(*map(statistics.median, (appends, reads, raws)))


def with_small_batches(place: Path, partitions: int) -> float:
    """Megabytes a second of reading one partition whose batches are as small as those that so many partitions get: what
    is left of the difference is due to the partitions themselves."""
    rows = PROBE_ROWS // partitions
    with new_queue(place, 1, durability="flush") as queue:
        directory = next(path.parent for path in place.rglob("queue.json"))
        batch = FewRows([0] * rows, [KEYS[0].encode()] * rows, [VALUE] * rows, bytes(16 * rows)).batch()
        for _ in range((ROUNDS + 1) * partitions):
            queue.log.append({0: batch})
        size = stored_bytes(place) / 1e6
        return statistics.median(size / read_all(str(directory), find=False) for _ in range(ROUNDS))


class Opening(NamedTuple):
    seconds: float
    megabytes: float
    manifest_megabytes: float


def opening(place: Path, partitions: int, files: int) -> Opening:
    """Open a queue whose partitions have long histories, in a fresh process, and ask each for its end."""
    directory = place / "history"
    with pxrs.open(f"file:{directory}", partitions=partitions):
        pass
    homes = sorted(directory.glob("partition-*")) or [directory / f"partition-{n}" for n in range(partitions)]
    for home in homes:
        home.mkdir(exist_ok=True)
    write_manifest(str(homes[0]), _long_history(files))
    for home in homes[1:]:
        shutil.copyfile(homes[0] / NAME, home / NAME)
    size = len(homes) * (homes[0] / NAME).stat().st_size / 1e6
    seconds, megabytes = elsewhere(_open, str(directory), files)
    shutil.rmtree(directory)
    return Opening(seconds, megabytes, size)


def _long_history(files: int) -> Manifest:
    rows = 800_000
    sealed = tuple(
        Sealed(f"{n * rows:020d}.parquet", n * rows, (n + 1) * rows, n, n + 1, 128 * 2**20, f"{n:016x}")
        for n in range(files)
    )
    return Manifest(Summary(0, files * rows), sealed)


def _open(directory: str, files: int) -> tuple[float, float]:
    before = _peak_megabytes()
    began = time.perf_counter()
    with pxrs.open(f"file:{directory}") as queue:
        ends = queue.ends()
        took = time.perf_counter() - began
    expected = _long_history(files).summary.sealed_end
    if set(ends.values()) != {expected}:
        raise RuntimeError(f"not all partitions end at {expected}: {ends}")
    return took, _peak_megabytes() - before


def _peak_megabytes() -> float:
    """What this process has ever held at once. (``getrusage`` would count in what its parent held.)"""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024 / 1e6
