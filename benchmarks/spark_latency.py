"""Small batches, joins and memory on Spark: append → processed and committed, against Structured Streaming."""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pxrs
from benchmarks.harness import HERE, PeerFailed, Result
from benchmarks.parts import joining, memory
from benchmarks.parts.applications import spark_application
from benchmarks.parts.handlers import COLUMNS, EACH_ROW
from benchmarks.parts.messages import PARTITIONS, fill
from benchmarks.parts.trips import Trip, through_files, through_pipeline, through_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUMMARY = "append → processed and committed, against Structured Streaming; a join; memory over 5 GB (not with --quick)"

WARM_UP = 15
ROUNDS = 3
REST_SECONDS = 0.05
"""Between two trips: both sides are idle when the next message comes."""
LONG_RUN = 50_000_000
"""Messages of 100 bytes in 5 GB."""
PEER = "Structured Streaming, "
PREFIXES = ("", "streaming source tuned, fenced, ", "streaming source tuned, alone, ")
"""A pipeline; a streaming query that is a member of a group; one without a group."""


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
    times: dict[str, list[list[float]]] = {name: [] for name in (*PREFIXES, PEER)}
    for number in range(ROUNDS):
        ways = _ways(spark, place / str(number))
        for name in PREFIXES:
            times[name].append(_times(ways[name], trips))
        try:
            times[PEER].append(_times(ways[PEER], trips))
        except Exception as error:
            raise PeerFailed(f"Structured Streaming: {error}") from error
    for word, part in (("p50", 0.5), ("p95", 0.95)):
        middle = {name: _middle(rounds, part) for name, rounds in times.items()}
        for name in PREFIXES:
            result.figures[f"{name}append → committed, {word} ms"] = middle[name]
            result.ratios[f"{name}append → processed and committed, {word}"] = middle[PEER] / middle[name]
        result.peers[f"{PEER}append → committed, {word} ms"] = middle[PEER]


def _ways(spark: SparkSession, place: Path) -> dict[str, AbstractContextManager[Trip]]:
    pipeline, member, alone = PREFIXES
    return {
        pipeline: through_pipeline(spark, f"file:{place}/pipeline"),
        member: through_stream(spark, place / "member", "latency"),
        alone: through_stream(spark, place / "alone", None),
        PEER: through_files(spark, place / "files"),
    }


def _middle(rounds: list[list[float]], part: float) -> float:
    return 1000 * statistics.median(sorted(times)[int(part * len(times))] for times in rounds)


def _times(way: AbstractContextManager[Trip], trips: int) -> list[float]:
    times = []
    with way as trip:
        for number in range(WARM_UP + trips):
            time.sleep(REST_SECONDS)
            times.append(trip(number))
    return times[WARM_UP:]


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
