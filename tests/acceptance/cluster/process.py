"""One Spark application on a cluster, in a process of its own: a pipeline, or a streaming query, of one group.

It writes the same lines as ``spark_process`` and waits at the same gates. Its tasks run in executors, which have
nothing but what the application brings them: of each batch there they write down where they have PXRS from.

    python -m tests.acceptance.cluster.process '{"log": ..., "registry": ..., "member": ..., "engine": "stream", ...}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib import metadata
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import pxrs
from pxrs.errors import PxrsError
from pxrs.model import Batch
from pxrs.sinks import ParquetSink
from pxrs.spark import Pipeline, fenced, session
from pxrs.spark.pipeline.runner import about
from tests.acceptance import member_process, spark_process
from tests.acceptance.spark_process import COLUMNS, Gate, GatedSink, SparkWriter, in_task, warm_up, work
from tests.acceptance.stream_process import ToldSink, end_of

Config = dict[str, Any]


def told_in_task(gate: Gate) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Runs in the executor's worker: a gate, and a word about its Python."""
    pass_on = in_task(gate)

    def tell(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows:
            installed = [found.name for found in metadata.distributions() if "pxrs" in found.name]
            facts = {"python": sys.executable, "home": pxrs.__file__, "installed": installed}
            member_process.Writer(gate.out, gate.member).line("task", **facts)
        return pass_on(rows)

    return tell


def run_pipeline(spark: SparkSession, config: Config, writer: SparkWriter, gate: Gate) -> str | None:
    settings = pxrs.Settings(**config["settings"], fast_rows=0)
    queue = pxrs.open(log=config["log"], registry=config["registry"], settings=settings)
    pipeline = Pipeline(
        spark,
        queue,
        "g",
        process=work(writer, gate),
        map_arrow=told_in_task(gate),
        sink=GatedSink(ParquetSink(config["sink"]), gate),
        member=config["member"],
        columns=COLUMNS,
        report=writer.report,
        progress=False,
    )
    writer.line("ready", app=spark.sparkContext.applicationId)
    try:
        pipeline.run()
    except PxrsError as failure:
        return f"{type(failure).__name__}: {failure}"
    finally:
        queue.close()
    return None


def run_stream(spark: SparkSession, config: Config, writer: SparkWriter, gate: Gate) -> str | None:
    sink = ToldSink(ParquetSink(config["sink"]), gate, writer)
    process, tell = work(writer, gate), told_in_task(gate)

    def each(df: DataFrame, batch: Batch) -> DataFrame:
        sink.begin(batch)
        return process(df, batch)

    reader = spark.readStream.format("pxrs").options(**{"pxrs.group.id": "g", "pxrs.member.id": config["member"]})
    settings = {f"pxrs.{name.replace('_', '.')}": value for name, value in config["stream_settings"].items()}
    reader = reader.options(**settings, **{"pxrs.registry": config["registry"]}, includeId="true")
    stream = reader.load(config["log"]).select(*COLUMNS)
    stream = stream.mapInArrow(lambda batches: map(tell, batches), stream.schema)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    writing = stream.writeStream.foreachBatch(fenced(each, sink=sink))
    query = writing.option("checkpointLocation", config["checkpoint"]).start()
    writer.line("ready", app=spark.sparkContext.applicationId)
    while not over.wait(0.05) and query.isActive:
        pass
    return end_of(query)


def main(config: Config) -> None:
    for module in (spark_process, member_process):  # executors do not have them; this one is __main__, and travels
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # pyspark has it untyped
    member, out = config["member"], config["out"]
    spark = session(f"story-{member}", memory="512m", config=config["spark"])
    warm_up(spark)
    writer = SparkWriter(out, member, int(about(spark)["jvm"]))
    run = run_stream if config["engine"] == "stream" else run_pipeline
    error = run(spark, config, writer, Gate(config["gates"], member, out))
    writer.line("ended", state="stopped", error=error)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    os._exit(0)
