"""A whole Spark application for spark-submit: it fills a queue, works it off as two members, and says what it saw.

A pipeline and a streaming query share the group; both write into one directory. With ``speculate`` one task of each
write is slow, until Spark has started it a second time. It imports nothing of the tests.

    spark-submit --master spark://… --py-files pxrs.zip job.py '{"log": ..., "registry": ..., "home": ...}'
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import pxrs
from pxrs.model import Batch
from pxrs.sinks import ParquetSink, output
from pxrs.spark import Pipeline, fenced, frame, session

ROWS = 400
PATIENCE = 120.0
COLUMNS = ["partition", "offset", "value"]
Attempts = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Job:
    """One run. Everything that it writes stands below ``home``, which all machines share."""

    def __init__(self, spark: SparkSession, config: dict[str, Any]) -> None:
        self.spark = spark
        self.config = config
        self.home = Path(config["home"])
        settings = pxrs.Settings(poll_ms=500, revoke_timeout_ms=20_000, fast_rows=0)  # tasks read every batch
        self.queue = pxrs.open(log=config["log"], registry=config["registry"], partitions=4, settings=settings)

    def fill(self, rows: DataFrame) -> None:
        options = {"path": self.config["log"], "pxrs.staging": str(self.home / "staging")}
        rows.write.format("pxrs").options(**options).mode("append").save()

    def share(self) -> dict[str, Any]:
        """Two members, one group: returns how many partitions each had when it began."""
        sink = ParquetSink(self.home / "shared")
        pipeline = Pipeline(self.spark, self.queue, "g", process=by("A"), sink=sink, member="A").start()
        options = {"pxrs.group.id": "g", "pxrs.member.id": "S", "pxrs.registry": self.config["registry"]}
        stream = self.spark.readStream.format("pxrs").options(**options, **{"pxrs.poll.ms": "500"})
        writing = stream.load(self.config["log"]).writeStream.foreachBatch(fenced(by("S"), sink=sink))
        query = writing.option("checkpointLocation", str(self.home / "checkpoint")).start()
        wait(lambda: sorted(self._owners()) == ["A", "A", "S", "S"] or bool(query.exception()), "the members to share")
        self.fill(numbers(self.spark))
        wait(lambda: self._lag() == 0 or bool(query.exception()), "everything to be done")
        failed = query.exception()
        query.stop()
        pipeline.stop()
        pipeline.check()
        return {"error": str(failed) if failed else None}

    def _owners(self) -> list[str]:
        return [line.owner or "" for line in self.queue.group("g").describe()]

    def _lag(self) -> int:
        ends = sum(self.queue.ends().values())
        return self.queue.group("g").describe().total_lag if ends >= ROWS else ROWS

    def speculate(self) -> dict[str, Any]:
        """Twice the same: into a sink by a pipeline, and into the queue. Returns which attempts there were."""
        marks = {name: self.home / name for name in ("sink", "write")}
        for path in marks.values():
            path.mkdir()

        def slowly(df: DataFrame) -> DataFrame:
            return df.select(*COLUMNS).mapInArrow(slow_first(marks["sink"]), "partition int, offset long, value binary")

        sink = ParquetSink(self.home / "speculated")
        Pipeline(self.spark, self.queue, "speculating", process=slowly, sink=sink).run(until_end=True)
        self.fill(numbers(self.spark).mapInArrow(slow_first(marks["write"]), "key string, value string"))
        return {name: sorted(mark.name for mark in path.iterdir()) for name, path in marks.items()}

    def look(self) -> list[dict[str, Any]]:
        """What executors have: their Python, where PXRS is from, and what it has loaded."""
        ranges = dict.fromkeys(range(4), (0, 1))
        found = frame(self.spark, self.queue, ranges, map_arrow=about_python, schema="facts string").collect()
        return [json.loads(row.facts) for row in found]


def by(member: str) -> Callable[[DataFrame, Batch], DataFrame]:
    return lambda df, batch: df.select(*COLUMNS, F.lit(member).alias("member"))


def numbers(spark: SparkSession) -> DataFrame:
    key, value = F.concat(F.lit("key-"), F.col("id") % 40), F.col("id").cast("string")
    return spark.range(0, ROWS, 1, 2).select(key.alias("key"), value.alias("value"))


def slow_first(marks: Path) -> Attempts:
    """For ``mapInArrow``: the first attempt at task 0 does not end before there is a second one."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        (marks / f"task-{task.partitionId()}-attempt-{task.attemptNumber()}").touch()
        if task.partitionId() == 0:
            wait((marks / "task-0-attempt-1").exists, "a second attempt")
        yield from batches

    return run


def about_python(rows: pa.RecordBatch) -> pa.RecordBatch:
    known = ("aetcd", "grpc", "psycopg", "sqlalchemy", "sqlite3", "pxrs.runtime", "pxrs.stores")
    loaded = [name for name in known if name in sys.modules]
    facts = {"python": sys.executable, "home": pxrs.__file__, "loaded": loaded}
    return pa.RecordBatch.from_pydict({"facts": [json.dumps(facts)] * (rows.num_rows > 0)})


def wait(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(0.05)


def main(config: dict[str, Any]) -> None:
    output.SMALL = 0  # executors write every batch
    spark = session("cluster-job")
    job = Job(spark, config)
    said: dict[str, Any] = {"share": job.share(), "executors": job.look()}
    if config.get("speculate"):
        said["attempts"] = job.speculate()
        said["stored"] = (
            job.spark.read.format("pxrs").load(config["log"]).groupBy("value").count().toArrow().to_pylist()
        )
    (job.home / "said.json").write_text(json.dumps(said, default=bytes.decode))
    job.queue.close()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
