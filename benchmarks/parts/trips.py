"""The way of a few messages from their append to their commit: through a pipeline, and through streaming queries.

Each gives a function that makes one trip and says how long it took.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import pxrs
from benchmarks.parts.messages import PARTITIONS, chunk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 10
"""Messages in one append: over several partitions, and little enough to count as nothing."""
TUNED = {
    "fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""What docs/tuning.md says of small batches: checkpoint files without checksum files beside them."""

Trip = Callable[[int], float]
Process = Callable[["DataFrame", int], None]


@contextmanager
def through_pipeline(spark: SparkSession, url: str) -> Iterator[Trip]:
    """From before the send to after the commit of the last message; the send is on the disk before it counts."""
    from pxrs.spark import Pipeline

    committed, seen = threading.Semaphore(0), []

    def process(df: DataFrame) -> None:
        seen.extend(df.collect())

    def report(kind: str, facts: Mapping[str, Any]) -> None:
        if kind == "batch" and facts["outcome"] == "committed":
            committed.release(facts["rows"])

    with pxrs.open(url, partitions=PARTITIONS, settings=_AT_ONCE) as queue, queue.producer() as producer:

        def trip(number: int) -> float:
            table = chunk(number * ROWS, ROWS)
            began = time.perf_counter()
            producer.send_batch(table)
            for _ in range(ROWS):
                if not committed.acquire(timeout=60):
                    raise RuntimeError("a message was not committed within 60 s")
            took = time.perf_counter() - began
            _check(len(seen), number)
            return took

        with Pipeline(spark, queue, group="latency", process=process, report=report):
            yield trip


_AT_ONCE = pxrs.Settings(linger_ms=0)


def _check(seen: int, number: int) -> None:
    if seen != (number + 1) * ROWS:
        raise RuntimeError(f"{seen} messages were collected, not {(number + 1) * ROWS}")


@contextmanager
def through_stream(spark: SparkSession, place: Path, group: str | None) -> Iterator[Trip]:
    """Our streaming source in a session that is tuned for small batches; with a group, the commit is fenced too.

    From before the send, which is on the disk before it counts, to when the batch stands in the query's commit log.
    """
    from pxrs.spark import fenced

    url = f"file:{place}/queue"
    session = spark.newSession()
    for name, value in TUNED.items():
        session.conf.set(name, value)
    options = {"startingOffsets": "earliest"} if group is None else {"pxrs.group.id": group}
    with pxrs.open(url, partitions=PARTITIONS, settings=_AT_ONCE) as queue, queue.producer() as producer:
        stream = session.readStream.format("pxrs").options(**options).load(url)
        with _query(stream, place / "checkpoint", fenced if group else _as_it_is) as arrival:
            yield lambda number: arrival(number, lambda: producer.send_batch(chunk(number * ROWS, ROWS)))


@contextmanager
def through_files(spark: SparkSession, place: Path) -> Iterator[Trip]:
    """Spark's own source of Parquet files, with its defaults. A file is written aside, renamed, and never synced."""
    files = place / "in"
    files.mkdir(parents=True)
    stream = spark.readStream.schema("key string, value binary").parquet(str(files))
    with _query(stream, place / "checkpoint", _as_it_is) as arrival:
        yield lambda number: arrival(number, lambda: _put(chunk(number * ROWS, ROWS), files, number))


def _as_it_is(process: Process) -> Process:
    return process


def _put(table: pa.Table, files: Path, number: int) -> None:
    aside = files / f"_{number}.parquet"
    pq.write_table(table, aside)
    aside.rename(files / f"{number}.parquet")


@contextmanager
def _query(
    stream: DataFrame, checkpoint: Path, around: Callable[[Any], Any]
) -> Iterator[Callable[[int, Callable[[], object]], float]]:
    """A query that collects. The commit log is looked at every half millisecond, from when the function has its rows:
    nothing sooner can count as committed."""
    seen: list[Any] = []
    collected: list[int] = []
    arrived = threading.Semaphore(0)

    def process(df: DataFrame, batch: Any) -> None:
        rows = df.collect()
        seen.extend(rows)
        collected.append(batch if isinstance(batch, int) else batch.number)
        for _ in rows:
            arrived.release()

    query = stream.writeStream.foreachBatch(around(process)).option("checkpointLocation", str(checkpoint)).start()

    def arrival(number: int, send: Callable[[], object]) -> float:
        began = time.perf_counter()
        send()
        for _ in range(ROWS):
            if not arrived.acquire(timeout=60):
                raise RuntimeError(f"a query has not processed its messages within 60 s: {query.exception()}")
        _await(checkpoint / "commits" / str(collected[-1]))
        took = time.perf_counter() - began
        _check(len(seen), number)
        return took

    try:
        yield arrival
    finally:
        query.stop()


def _await(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise RuntimeError(f"a query has not written {path.name} to its commit log within 60 s")
        time.sleep(0.0005)
