"""Starts of pipelines and of streaming queries with many partitions, as ``tests.sinks.starts`` has them of consumers.

python -m tests.spark.starts 256 20          # partitions, starts: a pipeline with each sink, and a query
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import pxrs
from pxrs.sinks import QueueSink
from pxrs.spark import Pipeline
from pxrs.testing.spark import lean_session
from tests.sinks.starts import run_starts


def pipeline(spark: SparkSession, queue: pxrs.Queue, group: str, member: str, sink: Any) -> Pipeline:
    return Pipeline(spark, queue, group, sink=sink, member=member, columns=["value"], progress=False)


class Query:
    """A query that is a member of a group, and writes into a queue."""

    def __init__(self, spark: SparkSession, queue: pxrs.Queue, group: str, member: str, sink: QueueSink) -> None:
        reading = spark.readStream.format("pxrs").option("pxrs.group.id", group).option("pxrs.member.id", member)
        target = Path(sink._queue.log.directory or "")
        self._writing = (
            reading.load(f"file:{queue.log.directory}").select("value").writeStream.format("pxrs")
            .option("checkpointLocation", f"{target}-{member}").option("path", f"file:{target}")
        )  # fmt: skip

    def start(self) -> None:
        self._query = self._writing.start()

    def check(self) -> None:
        if hasattr(self, "_query") and (error := self._query.exception()):
            raise error

    def stop(self) -> None:
        self._query.stop()


if __name__ == "__main__":
    partitions, starts = int(sys.argv[1]), int(sys.argv[2])
    session = lean_session()
    for kind, make in (("parquet", pipeline), ("queue", pipeline), ("queue", Query)):
        with tempfile.TemporaryDirectory() as folder:
            for found in run_starts(Path(folder), kind, partitions, starts, 20, partial(make, session)):
                print(make.__name__, kind, found, flush=True)
    session.stop()
