"""An aggregation over the sealed history of a queue: through ``frame``, and by Spark's own reader of the same files."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pxrs
from benchmarks.harness import Result, require_equal
from benchmarks.parts.applications import spark_application
from benchmarks.parts.messages import PARTITIONS, fill
from benchmarks.parts.races import seconds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TITLE = "aggregation over sealed segments"


def run_sealed(result: Result, place: Path, messages: int, warm_up: int, rounds: int) -> None:
    """In an application of its own."""
    with spark_application(memory="2g") as spark:
        race_sealed(spark, result, place, messages, warm_up, rounds)


def race_sealed(spark: SparkSession, result: Result, place: Path, messages: int, warm_up: int, rounds: int) -> None:
    """Seconds of both, in turns, after some rounds that do not count: the JVM gets faster with time."""
    from pxrs.spark import frame

    settings = pxrs.Settings(segment_bytes=16 << 20, seal="manual", durability="flush")
    with pxrs.open(f"file:{place}/history", partitions=PARTITIONS, settings=settings) as queue:
        fill(queue, messages)
        sealed = {partition: queue.log.seal(partition) for partition in range(PARTITIONS)}
        ranges = {partition: (0, chunks[-1].end) for partition, chunks in sealed.items()}
        files = [chunk.path for chunks in sealed.values() for chunk in chunks]
        sides: dict[str, Callable[[], Any]] = {
            "ours": lambda: _by_account(frame(spark, queue, ranges, columns=["key", "value", "offset"])),
            "peer": lambda: _by_account(spark.read.parquet(*files)),
        }
        require_equal(TITLE, sides["ours"](), sides["peer"]())
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(warm_up + rounds):
            for name, side in sides.items():
                times[name].append(seconds_of(side))
    rows = sum(end for _, end in ranges.values())
    ours, peer = (statistics.median(times[name][warm_up:]) for name in ("ours", "peer"))
    result.figures[f"{TITLE}, M messages/s"] = rows / ours / 1e6
    result.peers[f"{TITLE}, spark.read.parquet, M messages/s"] = rows / peer / 1e6
    result.ratios[f"{TITLE} against spark.read.parquet"] = peer / ours


def _by_account(messages: DataFrame) -> list[Any]:
    from pyspark.sql import functions as F  # noqa: N812 - as every Spark program calls it

    columns = (F.count("*"), F.sum(F.length("value")), F.max("offset"))
    return sorted(messages.groupBy("key").agg(*columns).collect())
