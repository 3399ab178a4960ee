"""Small batches, joins and memory on Spark: append → processed and committed, against Structured Streaming."""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import pxrs
from benchmarks.harness import HERE, PeerFailed, Result
from benchmarks.parts import joining, memory
from benchmarks.parts.applications import spark_application
from benchmarks.parts.handlers import COLUMNS, EACH_ROW
from benchmarks.parts.messages import PARTITIONS, chunk, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUMMARY = "append → processed and committed, against Structured Streaming; a join; memory over 5 GB (not with --quick)"

ROWS = 10
"""Messages in one append: over several partitions, and little enough to count as nothing."""
WARM_UP = 15
ROUNDS = 3
REST_SECONDS = 0.05
"""Between two trips: both sides are idle when the next message comes."""
LONG_RUN = 50_000_000
"""Messages of 100 bytes in 5 GB."""


def run(quick: bool) -> Result:
    result = Result("spark-latency")
    if quick:
        print("quick: fewer trips and joins, and no run of 5 GB for the memory")
    with tempfile.TemporaryDirectory(prefix="pxrs-benchmark-") as place, spark_application() as spark:
        _latency(result, spark, Path(place), trips=30 if quick else 100)
        _joins(result, spark, f"file:{place}/joins", rounds=2 if quick else 5)
        if not quick:
            _memory(result, spark, f"file:{place}/long")
    return result


def _latency(result: Result, spark: SparkSession, place: Path, trips: int) -> None:
    """In turns, each in an application that has nothing else to do; the median of the rounds' medians counts."""
    ours, peer = [], []
    for number in range(ROUNDS):
        with _ours(spark, f"file:{place}/queue-{number}") as trip:
            ours.append(_times(trip, trips))
        try:
            with _peer(spark, place / f"files-{number}") as trip:
                peer.append(_times(trip, trips))
        except Exception as error:
            raise PeerFailed(f"Structured Streaming: {error}") from error
    for side, name, rounds in ((result.figures, "", ours), (result.peers, "Structured Streaming, ", peer)):
        side[f"{name}append → committed, p50 ms"] = _middle(rounds, 0.5)
        side[f"{name}append → committed, p95 ms"] = _middle(rounds, 0.95)
    result.ratios["append → processed and committed, p50"] = _middle(peer, 0.5) / _middle(ours, 0.5)
    result.ratios["append → processed and committed, p95"] = _middle(peer, 0.95) / _middle(ours, 0.95)


def _middle(rounds: list[list[float]], part: float) -> float:
    return 1000 * statistics.median(sorted(times)[int(part * len(times))] for times in rounds)


def _times(trip: Callable[[int], float], trips: int) -> list[float]:
    times = []
    for number in range(WARM_UP + trips):
        time.sleep(REST_SECONDS)
        times.append(trip(number))
    return times[WARM_UP:]


@contextmanager
def _ours(spark: SparkSession, url: str) -> Iterator[Callable[[int], float]]:
    """From before the send to after the commit of the last message; the send is on the disk before it counts."""
    from pxrs.spark import Pipeline

    committed, seen = threading.Semaphore(0), []

    def process(df: DataFrame) -> None:
        seen.extend(df.collect())

    def report(kind: str, facts: Mapping[str, Any]) -> None:
        if kind == "batch" and facts["outcome"] == "committed":
            committed.release(facts["rows"])

    settings = pxrs.Settings(linger_ms=0)
    with pxrs.open(url, partitions=PARTITIONS, settings=settings) as queue, queue.producer() as producer:

        def trip(number: int) -> float:
            table = chunk(number * ROWS, ROWS)
            began = time.perf_counter()
            producer.send_batch(table)
            for _ in range(ROWS):
                if not committed.acquire(timeout=60):
                    raise RuntimeError("a message was not committed within 60 s")
            took = time.perf_counter() - began
            if len(seen) != (number + 1) * ROWS:
                raise RuntimeError(f"{len(seen)} messages were collected, not {(number + 1) * ROWS}")
            return took

        with Pipeline(spark, queue, group="latency", process=process, report=report):
            yield trip


@contextmanager
def _peer(spark: SparkSession, place: Path) -> Iterator[Callable[[int], float]]:
    """From before the file is written to when its batch stands in the query's commit log.

    The file is written aside and renamed, and never synced to the disk. The commit log is looked at every half
    millisecond, from when the function has its rows: nothing sooner can count as committed.
    """
    files, checkpoint = place / "in", place / "checkpoint"
    files.mkdir(parents=True)
    seen: list[Any] = []
    collected: list[int] = []
    arrived = threading.Event()

    def process(df: DataFrame, number: int) -> None:
        rows = df.collect()
        seen.extend(rows)
        collected.append(number)
        if rows:
            arrived.set()

    reader = spark.readStream.schema("key string, value binary").parquet(str(files))
    query = reader.writeStream.foreachBatch(process).option("checkpointLocation", str(checkpoint)).start()

    def trip(number: int) -> float:
        table = chunk(number * ROWS, ROWS)
        arrived.clear()
        began = time.perf_counter()
        _put(table, files, number)
        if not arrived.wait(60):
            raise RuntimeError(f"it has not processed a file within 60 s: {query.exception()}")
        _await(checkpoint / "commits" / str(collected[-1]))
        took = time.perf_counter() - began
        if len(seen) != (number + 1) * ROWS:
            raise RuntimeError(f"it has collected {len(seen)} rows, not {(number + 1) * ROWS}")
        return took

    try:
        yield trip
    finally:
        query.stop()


def _put(table: pa.Table, files: Path, number: int) -> None:
    aside = files / f"_{number}.parquet"
    pq.write_table(table, aside)
    aside.rename(files / f"{number}.parquet")


def _await(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise RuntimeError(f"it has not written {path.name} to its commit log within 60 s")
        time.sleep(0.0005)


def _joins(result: Result, spark: SparkSession, url: str, rounds: int) -> None:
    found = joining.watch_joins(spark, url, rounds)
    figures = {
        f"join row → owning its share, batches of {joining.BATCH_SECONDS} s, s": statistics.median(found.joins),
        "the longest of these joins, s": max(found.joins),
        "longest pause of a partition that stays, during joins, ms": 1000 * found.pause_during,
        "longest pause of a partition, before joins, ms": 1000 * found.pause_before,
    }
    result.figures.update(figures)


def _memory(result: Result, spark: SparkSession, url: str) -> None:
    from pxrs.spark import Pipeline

    with pxrs.open(url, partitions=PARTITIONS) as queue:
        fill(queue, LONG_RUN)
        pipeline = Pipeline(
            spark, queue, group="memory", map_arrow=EACH_ROW.function, columns=COLUMNS, schema=EACH_ROW.schema
        )
        with memory.watched(spark) as curves:
            pipeline.run(until_end=True)
    sizes, growth = curves.latest(), curves.growth()
    result.figures.update({f"memory after 5 GB, {name}, MiB": size for name, size in sizes.items()})
    result.figures.update({f"growth, first to last third, {name}, %": percent for name, percent in growth.items()})
    memory.draw(curves, "One pipeline, 50 M messages of 100 bytes (5 GB)", HERE / "results" / "spark-memory.png")
