"""The writers that Spark carries about: to the tasks, which write rows aside, and to the driver, which commits.

This module is imported in tasks, so what only a commit needs is loaded when it commits.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pxrs.errors import Unavailable
from pxrs.spark.write.paths import WritePaths, query_producer
from pxrs.spark.write.task import File, WriteJob, stage

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""The local properties under which Spark tells its tasks what they belong to."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The message of a task to the commit: its file, its write, and its part of the frame."""

    place: WritePaths
    task: int
    file: File
    host: str


class TargetQueue(NamedTuple):
    """The queue to which a commit appends. It stays with the driver."""

    log: str
    settings: dict[str, Any]


def _stage(batches: Iterator[pa.RecordBatch], job: WriteJob, place: WritePaths) -> Staged:
    task = TaskContext.get()
    number = 0 if task is None else task.partitionId()
    return Staged(place, number, stage(batches, job, place), socket.gethostname())


def _commits() -> Any:
    return import_module("pxrs.spark.write.commit")  # not imported by name: tasks load this module


class BatchWriter(DataSourceArrowWriter):
    """One write of a frame. Spark hands this object to tasks and commit, so it holds no password: where the target has
    one, it holds the path of a file that the driver kept.
    """

    def __init__(self, job: WriteJob, place: WritePaths, target: TargetQueue | str) -> None:
        self.job = job
        self.place = place
        self.target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _stage(iterator, self.job, self.place)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commits = _commits()
        commits.commit(commits.recall(self.target), self.place, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's signature
        commits = _commits()
        commits.forget(self.target)
        commits.give_up(self.place)


class StreamWriter(DataSourceStreamArrowWriter):
    """The batches of a query. Only the task side is pickled; the driver makes the writer anew for each commit."""

    def __init__(
        self, job: WriteJob, root: str, target: TargetQueue | None = None, checkpoint: str | None = None
    ) -> None:
        self.job = job
        self.root = root
        self._target = target
        self._checkpoint = checkpoint

    def __reduce__(self) -> tuple[type[StreamWriter], tuple[WriteJob, str]]:
        return StreamWriter, (self.job, self.root)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        query, batch = (None, None) if task is None else (task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH))
        if query is None or batch is None:
            raise Unavailable(f"this version of Spark does not tell its tasks the streaming query ({_QUERY}, {_BATCH})")
        return _stage(iterator, self.job, WritePaths(self.root, query_producer(query), int(batch)))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        place = self._place(messages, batchId)
        if place is not None:
            _commits().commit_batch(self._target, place, messages, self._checkpoint)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        place = self._place(messages, batchId)
        if place is not None:
            _commits().give_up(place)

    def _place(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> WritePaths | None:
        """Known from the tasks; if none has come to its end, from the checkpoint, where that can be read here."""
        for message in messages:
            if isinstance(message, Staged):
                return message.place._replace(sequence=batch)
        query = _commits().query_of(self._checkpoint)
        return None if query is None else WritePaths(self.root, query_producer(query), batch)
