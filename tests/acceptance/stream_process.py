"""One Spark application in a process of its own, with its own JVM: a streaming query, fenced into Parquet files.

It writes the same lines as ``spark_process`` and waits at the same gates. Its member lives in a process that Spark
starts, which this one does not hear: a claim is told when the first batch under it begins.

    python -m tests.acceptance.stream_process '{"url": ..., "member": ..., "out": ..., "sink": ..., "gates": ...}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from pxrs.model import Batch, Grant
from pxrs.sinks import ParquetSink
from pxrs.spark import fenced
from pxrs.spark.pipeline.runner import about
from pxrs.testing.spark import lean_session
from tests.acceptance.spark_process import COLUMNS, Gate, GatedSink, SparkWriter, facts_of, in_task, warm_up, work

TOO_SLOW = "Python worker failed to connect back"
"""Spark gives a new source process ten seconds to start; where many applications start at once that is too little."""


class ToldSink(GatedSink):
    """Writes down what a member's own report would say: claims, commits, and what became of a batch."""

    def __init__(self, sink: ParquetSink, gate: Gate, writer: SparkWriter) -> None:
        super().__init__(sink, gate)
        self._writer = writer
        self._claimed: set[tuple[int, int]] = set()
        self._batch: Batch | None = None

    def begin(self, batch: Batch) -> None:
        self._batch = batch
        for part in batch.ranges:
            if (part.partition, part.epoch) not in self._claimed:
                self._claimed.add((part.partition, part.epoch))
                self._writer.line("claimed", partition=part.partition, epoch=part.epoch, checkpoint=part.start)

    def publish(self, note: str) -> None:
        batch = self._batch
        if batch is not None and batch.name in note:  # and not one that another member has left
            self._batch = None
            for part in batch.ranges:
                self._writer.line("committed", partition=part.partition, epoch=part.epoch, checkpoint=part.end)
            self._writer.line("batch", outcome="committed", **facts_of(batch))
        super().publish(note)

    def discard(self, batch: Batch) -> None:
        self._writer.line("batch", outcome="refused", **facts_of(batch))
        super().discard(batch)

    def recover(self, queue: str, log: str, group: str, grant: Grant, note: str) -> None:
        kept, self._batch = self._batch, None
        super().recover(queue, log, group, grant, note)
        self._batch = kept


def main(config: dict[str, Any]) -> None:
    member, out = config["member"], config["out"]
    spark = lean_session(f"story-{member}", "local[1,3]")
    warm_up(spark)
    writer = SparkWriter(out, member, int(about(spark)["jvm"]))
    gate = Gate(config["gates"], member, out)
    sink = ToldSink(ParquetSink(config["sink"]), gate, writer)
    process = work(writer, gate)

    def each(df: DataFrame, batch: Batch) -> DataFrame:
        sink.begin(batch)
        return process(df, batch)

    reader = spark.readStream.format("pxrs").options(**{"pxrs.group.id": "g", "pxrs.member.id": member})
    settings = {f"pxrs.{name.replace('_', '.')}": value for name, value in config["settings"].items()}
    stream = reader.options(**settings, includeId="true", **config["options"]).load(config["url"])
    stream = stream.select(*COLUMNS)
    stream = stream.mapInArrow(_each_batch(gate), stream.schema)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    writing = stream.writeStream.foreachBatch(fenced(each, sink=sink))
    writing = writing.option("checkpointLocation", config["checkpoint"])
    query = writing.start()
    writer.line("ready", app=spark.sparkContext.applicationId)
    while not over.wait(0.05) and (query.isActive or TOO_SLOW in str(query.exception())):
        if not query.isActive:
            query = writing.start()
    writer.line("ended", state="stopped", error=end_of(query))
    spark.stop()


def end_of(query: StreamingQuery) -> str | None:
    """Stop the query; what has ended it, if something has before."""
    try:
        query.stop()
        query.awaitTermination()
    except StreamingQueryException as failure:
        return str(failure)
    return None


def _each_batch(gate: Gate) -> Any:
    """For ``mapInArrow``: a gate in the executor's worker."""
    pass_on = in_task(gate)
    return lambda batches: map(pass_on, batches)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    os._exit(0)
