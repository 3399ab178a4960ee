"""One Spark application in a process of its own, with its own JVM: a pipeline into a shared directory of Parquet files.

It writes a JSON line for each thing that happens, as ``member_process`` does, and waits where a test asks it to: at
the gates "process" (the batch has begun), "task" (in a worker of the executor), "staged" (the output is written, not
committed) and "committed" (committed, not published).

    python -m tests.acceptance.spark_process '{"url": ..., "member": ..., "out": ..., "sink": ..., "gates": ...}'
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import pxrs
from pxrs.errors import PxrsError
from pxrs.model import Batch, Grant
from pxrs.runtime.ports.sink import Sink
from pxrs.sinks import ParquetSink
from pxrs.spark import Pipeline
from pxrs.spark.pipeline.runner import about
from pxrs.testing.spark import lean_session
from tests.acceptance.member_process import Writer

COLUMNS = ["partition", "offset", "key", "value", "id", "epoch"]
LONGEST_HOLD = 120.0
"""Nobody waits for ever for a test that is gone."""


@dataclass(frozen=True)
class Gate:
    """Where a test can hold this application. A hold is a file: who comes first takes it, and waits until it goes."""

    directory: str
    member: str
    out: str

    def wait(self, point: str, **facts: Any) -> None:
        asked = Path(self.directory, f"{self.member}.{point}")
        taken = asked.with_suffix(f".{point}-taken")
        try:
            asked.rename(taken)
        except FileNotFoundError:
            return
        Writer(self.out, self.member).line("held", point=point, **facts)
        end = time.monotonic() + LONGEST_HOLD
        while taken.exists() and time.monotonic() < end:
            time.sleep(0.01)


class GatedSink:
    """A sink with a gate on either side of the commit."""

    def __init__(self, sink: Sink, gate: Gate) -> None:
        self._sink = sink
        self._gate = gate
        self._facts: dict[str, Any] = {}

    def stage(self, batch: Batch, output: Any) -> str:
        note = self._sink.stage(batch, output)
        self._facts = facts_of(batch)
        self._gate.wait("staged", **self._facts)
        return note

    def publish(self, note: str) -> None:
        self._gate.wait("committed", **self._facts)
        self._sink.publish(note)

    def discard(self, batch: Batch) -> None:
        self._sink.discard(batch)

    def recover(self, queue: str, log: str, group: str, grant: Grant, note: str) -> None:
        self._sink.recover(queue, log, group, grant, note)


class SparkWriter(Writer):
    """Lines that name the JVM too."""

    def __init__(self, path: str, member: str, jvm: int) -> None:
        super().__init__(path, member)
        self._who["jvm"] = jvm


def facts_of(batch: Batch) -> dict[str, Any]:
    return {"batch": batch.number, "name": batch.name, "ranges": [list(part) for part in batch.ranges]}


def work(writer: Writer, gate: Gate) -> Callable[[DataFrame, Batch], DataFrame]:
    """The pipeline's function: each row with who has written it, so that the output is its own history."""

    def process(df: DataFrame, batch: Batch) -> DataFrame:
        writer.line("working", attempt=batch.attempt, **facts_of(batch))
        gate.wait("process", **facts_of(batch))
        who = {"member": batch.member, "pid": os.getpid(), "batch": batch.number}
        return df.select(*COLUMNS, *(F.lit(value).alias(name) for name, value in who.items()))

    return process


def in_task(gate: Gate) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Runs next to the log, in the executor's worker, and changes nothing."""

    def pass_on(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows:
            gate.wait("task")
        return rows

    return pass_on


def warm_up(spark: SparkSession) -> None:
    """The first job of a JVM takes seconds: before joining, not when others wait for the end of a batch."""
    spark.createDataFrame(pa.table({"n": [1]})).toArrow()


def main(config: dict[str, Any]) -> None:
    member, out = config["member"], config["out"]
    spark = lean_session(f"story-{member}", "local[1]")
    warm_up(spark)
    writer = SparkWriter(out, member, int(about(spark)["jvm"]))
    gate = Gate(config["gates"], member, out)
    queue = pxrs.open(config["url"], settings=pxrs.Settings(**config["settings"]))
    pipeline = Pipeline(
        spark,
        queue,
        "g",
        process=work(writer, gate),
        map_arrow=in_task(gate) if config["in_task"] else None,
        sink=GatedSink(ParquetSink(config["sink"]), gate),
        member=member,
        columns=COLUMNS,
        report=writer.report,
        progress=False,
    )
    writer.line("ready", app=spark.sparkContext.applicationId)
    try:
        pipeline.run()
        error = None
    except PxrsError as failure:
        error = f"{type(failure).__name__}: {failure}"
    writer.line("ended", state=pipeline.state, error=error)
    queue.close()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
