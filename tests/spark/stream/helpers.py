"""Spark's side of a streaming query without Spark: the same questions in the same order, and the same two logs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import pxrs
from pxrs.model import Range
from pxrs.spark.read.columns import schema_of
from pxrs.spark.read.source import DefaultSource
from pxrs.spark.stream.group_reader import GroupReader
from pxrs.spark.stream.offsets import decode
from pxrs.spark.stream.plain_reader import StreamReader

QUICK = {"pxrs.lease.ms": "3000", "pxrs.poll.ms": "100", "pxrs.revoke.timeout.ms": "20000"}
COLUMNS = ("partition", "offset", "epoch")
DEADLINE = 60.0

Row = tuple[int, int]
"""Partition and offset."""


def eventually(condition: Callable[[], Any], what: str, deadline: float = DEADLINE) -> None:
    end = time.monotonic() + deadline
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"waited {deadline:.0f} s in vain: {what}")
        time.sleep(0.02)


def reader_of(directory: object, **options: str) -> StreamReader:
    """A reader as Spark's source process makes it."""
    source = DefaultSource({"path": f"file:{directory}/orders", **options})
    found = source.streamReader(from_arrow_schema(schema_of(COLUMNS)))
    assert isinstance(found, StreamReader)
    return found


def member_of(directory: object, member: str = "A", **options: str) -> StreamReader:
    return reader_of(directory, **{"pxrs.group.id": "g", "pxrs.member.id": member, **QUICK, **options})


class Checkpoint:
    """The offset log and the commit log of one query."""

    def __init__(self) -> None:
        self.offsets: list[str] = []
        self.commits = 0


class Query:
    """One run of a query: what MicroBatchExecution asks, up to the point at which a test wants it to die."""

    def __init__(self, reader: StreamReader, checkpoint: Checkpoint) -> None:
        self.reader = reader
        self.checkpoint = checkpoint

    @property
    def limit(self) -> ReadLimit:
        return self.reader.getDefaultReadLimit()

    def offset(self, batch: int) -> dict[str, Any]:
        """As Spark hands it over: through JSON. Before the first batch stands the initial offset."""
        text = self.checkpoint.offsets[batch] if batch >= 0 else json.dumps(self.reader.initialOffset())
        found: dict[str, Any] = json.loads(text)
        return found

    @property
    def unfinished(self) -> bool:
        return self.checkpoint.commits < len(self.checkpoint.offsets)

    def plan(self) -> bool:
        """Ask for the next batch, and write it into the offset log. False: there is none."""
        assert not self.unfinished
        start = self.offset(self.checkpoint.commits - 1)
        end = json.dumps(self.reader.latestOffset(start, self.limit))
        self.reader.reportLatestOffset()
        if end == json.dumps(start):
            return False
        self.checkpoint.offsets.append(end)
        if self.checkpoint.commits:
            self.reader.commit(start)
        return True

    def execute(self) -> list[Row]:
        """The rows of the batch that stands in the offset log, read as the tasks read them."""
        batch = len(self.checkpoint.offsets) - 1
        parts = self.reader.partitions(self.offset(batch - 1), self.offset(batch))
        batches = [rows for part in parts for rows in self.reader.task_side.read(part)]
        return sorted((p, o) for rows in batches for p, o in zip(*map(list, _pairs(rows)), strict=True))

    def finish(self) -> None:
        self.checkpoint.commits = len(self.checkpoint.offsets)

    def run(self) -> list[Row]:
        """One whole batch, the unfinished one first; empty if there is none."""
        if not self.unfinished and not self.plan():
            return []
        rows = self.execute()
        self.finish()
        return rows

    @property
    def ranges(self) -> tuple[Range, ...]:
        """What the last batch in the offset log has planned."""
        return decode(self.offset(len(self.checkpoint.offsets) - 1)).ranges

    def crash(self) -> None:
        """The source process is gone: nothing is flushed, nothing released."""
        assert isinstance(self.reader, GroupReader) and self.reader._life is not None
        self.reader._life.member._membership.kill()


def _pairs(rows: Any) -> tuple[list[int], list[int]]:
    return rows.column("partition").to_pylist(), rows.column("offset").to_pylist()


TOO_SLOW = "Python worker failed to connect back"
"""Spark gives a new source process ten seconds to start; where much else runs that is too little."""


def begin(writer: DataStreamWriter, path: str | None = None) -> StreamingQuery:
    """Start a query; once more if Spark had no patience with its source process."""
    query = writer.start(path)
    eventually(lambda: not _is_starting(query), "the query to start", 2 * DEADLINE)
    if query.isActive or TOO_SLOW not in str(query.exception()):
        return query
    return begin(writer, path)


def _is_starting(query: StreamingQuery) -> bool:
    return query.isActive and "Initializing" in query.status["message"]


def owners(queue: pxrs.Queue) -> list[str | None]:
    if "g" not in queue.groups():
        return []
    return [line.owner for line in queue.group("g").describe()]


def checkpoints(queue: pxrs.Queue) -> list[int]:
    return [line.checkpoint for line in queue.group("g").describe()]


def offsets_in(directory: Path) -> dict[int, dict[str, Any]]:
    """Spark's offset log: the source's offset of each batch."""
    files = [path for path in (directory / "offsets").iterdir() if path.name.isdecimal()]
    return {int(path.name): json.loads(path.read_text().splitlines()[-1]) for path in sorted(files)}
