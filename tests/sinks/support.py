"""Helpers of the tests of sinks: rows of a registry, the life of an owner, and faults at every change of the files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import pxrs
from pxrs.errors import Fenced, Unavailable
from pxrs.logs.memory import MemoryLog
from pxrs.model import Batch, Grant, Owner, Range
from pxrs.runtime.ports.sink import Sink
from pxrs.sinks import ParquetSink, QueueSink

QUEUE, LOG, GROUP = "orders", "log-1", "etl"
PARTITIONS = (0, 1)


def batch_of(*ranges: Range, number: int = 1, life: str = "a" * 32, attempt: int = 1, group: str = GROUP) -> Batch:
    return Batch(QUEUE, LOG, group, Owner("A", life), number, ranges, attempt)


def output_of(batch: Batch) -> pa.Table:
    """A row for each message: its id, and a column with few values."""
    ids = [f"{part.partition}-{offset}" for part in batch.ranges for offset in range(part.start, part.end)]
    return pa.table({"key": [name[-1] for name in ids], "value": pa.array(ids, pa.string())})


@dataclass
class Rows:
    """The rows of two partitions: what a commit moves, all together or not at all."""

    end: int
    checkpoints: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    epochs: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    notes: dict[int, str] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, ""))

    @property
    def expected(self) -> list[str]:
        return sorted(f"{partition}-{offset}" for partition in PARTITIONS for offset in range(self.end))

    def claim(self, owner: Owner) -> list[Grant]:
        """Take all partitions over from whoever has them: released by force, then claimed."""
        for partition in PARTITIONS:
            self.epochs[partition] += 2
        return [Grant(partition, owner, self.epochs[partition]) for partition in PARTITIONS]

    def commit(self, batch: Batch, note: str) -> bool:
        if any(self.epochs[part.partition] != part.epoch for part in batch.ranges):
            return False
        for part in batch.ranges:
            self.checkpoints[part.partition], self.notes[part.partition] = part.end, note
        return True


def live(rows: Rows, sink: Sink, life: str, size: int = 3) -> None:
    """The life of one owner: take over, then batch after batch to the end, or until it is fenced."""
    grants = rows.claim(Owner("A", life))
    for grant in grants:
        sink.recover(QUEUE, LOG, GROUP, grant, rows.notes[grant.partition])
    for number in itertools.count():
        starts = {grant: rows.checkpoints[grant.partition] for grant in grants}
        if min(starts.values()) >= rows.end:
            return
        ranges = [Range(g.partition, start, min(rows.end, start + size), g.epoch) for g, start in starts.items()]
        batch = batch_of(*ranges, number=number, life=life)
        try:
            note = sink.stage(batch, output_of(batch))
        except (Fenced, Unavailable):
            note = "never committed"
        if not rows.commit(batch, note):
            sink.discard(batch)
            return
        sink.publish(note)


def recover_all(rows: Rows, sink: Sink) -> None:
    """Take everything over once more, and do nothing."""
    for grant in rows.claim(Owner("Z", "z" * 32)):
        sink.recover(QUEUE, LOG, GROUP, grant, rows.notes[grant.partition])


# ---- places to write to ---------------------------------------------------------------------------------------------


@dataclass
class Place:
    """Somewhere to write, and how a reader that knows nothing of PXRS sees it."""

    directory: Path
    kind: str

    @property
    def _queue(self) -> str | None:
        names = {"queue": f"file:{self.directory}/target", "memory": "memory:" + "-".join(self.directory.parts[-3:])}
        return names.get(self.kind)

    @contextmanager
    def sink(self) -> Iterator[Sink]:
        """A sink as a new process has it."""
        if self._queue:
            with pxrs.open(self._queue, partitions=3) as queue:
                yield QueueSink(queue, staging=self.directory / "target")
        else:
            yield ParquetSink(self.directory / "out", partition_by="key" if self.kind == "hive" else ())

    @property
    def staging(self) -> Path:
        return self.directory / ("target/_staging" if self._queue else "_out.staging")

    def content(self) -> list[str]:
        if not self._queue:
            return values_in(self.directory / "out")
        with pxrs.open(self._queue) as queue:
            return sorted(m.text for p in range(3) for m in queue.read(p, 0, limit=10_000))

    def leftovers(self) -> list[str]:
        found = [path.relative_to(self.staging).as_posix() for path in self.staging.rglob("*")]
        return sorted(set(found) - {"plans", "plans/place.json"})


def values_in(directory: Path) -> list[str]:
    """All values in a directory of Parquet files, as anybody reads them."""
    if not directory.exists():
        return []
    table = ds.dataset(str(directory), format="parquet", partitioning="hive").to_table()
    return sorted(table.column("value").to_pylist()) if table.num_rows else []


# ---- faults ---------------------------------------------------------------------------------------------------------

STEPS = ("open", "write", "fsync", "fdatasync", "rename", "link", "mkdir", "rmdir", "unlink", "ftruncate")


class Crash(BaseException):
    """The process ends here."""


@contextmanager
def before_each_step(hook: Callable[[int], None]) -> Iterator[list[str]]:
    """Call the hook with the number of each change of the file system before it is made; yields their names."""
    seen: list[str] = []

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **more: Any) -> Any:
            seen.append(name)
            hook(len(seen) - 1)
            return None if "sync" in name else function(*args, **more)  # nothing here tests the disk

        return step

    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, watched(name, getattr(os, name)))
        patch.setattr(pq, "write_table", watched("write_table", pq.write_table))
        patch.setattr(MemoryLog, "append", watched("append", MemoryLog.append))
        yield seen


@contextmanager
def crash_at(at: int) -> Iterator[list[str]]:
    """End before the step with this number. Nothing is done from then on, not even in a ``finally``."""

    def hook(number: int) -> None:
        if number >= at:
            raise Crash

    with before_each_step(hook) as seen:
        yield seen


@contextmanager
def pause_at(at: int, action: Callable[[], None]) -> Iterator[list[str]]:
    """Let something else happen before the step with this number, then go on."""
    pausing = False

    def hook(number: int) -> None:
        nonlocal pausing
        if number >= at and not pausing:
            pausing = True
            action()

    with before_each_step(hook) as seen:
        yield seen
