"""DataFrames in sinks: small ones collected, big ones written by the executors, and plain readers of both."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import pxrs
from pxrs.model import Batch, Owner, Range
from pxrs.sinks import ParquetSink, QueueSink
from pxrs.sinks.output import SMALL

pytestmark = pytest.mark.xdist_group("spark")


def batch(number: int, rows: int) -> Batch:
    return Batch("orders", "log-1", "etl", Owner("A", "a" * 32), number, (Range(0, 0, rows, 1),))


def rows_of(spark: SparkSession, start: int, end: int) -> DataFrame:
    """Rows with a type of each kind that files of Spark and of Arrow could disagree about."""
    header = "array(named_struct('key', 'n', 'value', cast(string(id) as binary))) as headers"
    frame = spark.range(start, end, numPartitions=2)
    return frame.select(
        F.col("id").cast("string").alias("value"),
        F.timestamp_micros(F.col("id")).alias("timestamp"),
        F.expr(header),
        (F.col("id") % 2).alias("half"),
    )


@pytest.mark.parametrize("partition_by", [(), ("half",)])
def test_small_and_big_frames_make_one_directory_that_plain_readers_read(
    partition_by: tuple[str, ...], spark: SparkSession, tmp_path: Path
) -> None:
    sink = ParquetSink(tmp_path / "out", partition_by)
    for number, (start, end, rows) in enumerate([(0, 5, 5), (5, 12, SMALL + 1), (12, 15, 3)]):
        sink.publish(sink.stage(batch(number, rows), rows_of(spark, start, end)))
    assert sink.stage(batch(9, SMALL + 1), rows_of(spark, 0, 0)) == ""
    by_arrow = ds.dataset(str(tmp_path / "out"), format="parquet", partitioning="hive").to_table().to_pylist()
    by_spark = spark.read.parquet(f"file:{tmp_path}/out").toArrow().to_pylist()
    for found in (by_arrow, by_spark):
        assert sorted(int(row["value"]) for row in found) == list(range(15))
        assert all(row["timestamp"].microsecond == int(row["value"]) for row in found)
        assert all(row["half"] == int(row["value"]) % 2 for row in found)
    assert all(name.name.startswith("part-etl-") for name in (tmp_path / "out").rglob("*") if name.is_file())
    assert os.listdir(tmp_path / "_out.staging") == ["plans"]


def test_a_big_frame_becomes_messages_in_the_order_of_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    with pxrs.open(f"file:{tmp_path}/target", partitions=2) as queue:
        sink = QueueSink(queue)
        frame = rows_of(spark, 0, 30).withColumn("key", F.col("half").cast("string")).drop("half")
        sink.publish(sink.stage(batch(1, SMALL + 1), frame))
        found = [message for p in range(2) for message in queue.read(p, 0, limit=100)]
        assert sorted(int(message.text) for message in found) == list(range(30))
        for key in (b"0", b"1"):
            numbers = [int(message.text) for message in found if message.key == key]
            assert numbers == sorted(numbers) and len(numbers) == 15
        assert all(message.timestamp_us == int(message.text) and "n" in message.headers for message in found)
