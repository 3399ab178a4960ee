"""History that is sealed: the JVM reads the files by itself, and every message is there once."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import pxrs
from pxrs.errors import Damaged
from pxrs.logs.pieces import read_range
from pxrs.spark import Pipeline, frame

pytestmark = pytest.mark.xdist_group("spark")

ROUNDS, ROWS, PARTITIONS = 30, 200, 2
ALL = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "id", "tenant", "epoch"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A name that Spark would take for a pattern, and that looks different in a URL."""
    return tmp_path_factory.mktemp("q") / "p+ [1] %41"


@pytest.fixture(scope="module")
def queue(place: Path) -> Iterator[pxrs.Queue]:
    settings = pxrs.Settings(segment_bytes=20_000, seal="manual")
    with pxrs.open(f"file:{place}/orders", partitions=PARTITIONS, settings=settings) as queue:
        with queue.producer() as producer:
            for number in range(ROUNDS):
                producer.send_batch(batch_of(number))
                producer.flush()
        for partition in range(PARTITIONS):
            assert len(queue.log.seal(partition)) >= 3
        yield queue


def batch_of(number: int) -> pa.Table:
    rows = range(number * ROWS, (number + 1) * ROWS)
    return pa.table(
        {
            "key": [b"k%d" % (row % 7) for row in rows],
            "value": [b"value-%06d" % row for row in rows],
            "headers": pa.array([[("n", b"%d" % row)] if row % 3 else None for row in rows], HEADERS),
        }
    )


HEADERS = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))


@contextmanager
def few_segments(place: Path, **settings: Any) -> Iterator[pxrs.Queue]:
    """One partition of a few segments, none of them sealed yet."""
    chosen = pxrs.Settings(segment_bytes=10_000, seal="manual", **settings)
    with pxrs.open(f"file:{place}/orders", partitions=1, settings=chosen) as queue:
        with queue.producer() as producer:
            for number in range(4):
                producer.send_batch(batch_of(number))
                producer.flush()
        yield queue


def sealed_end(queue: pxrs.Queue, partition: int) -> int:
    return max(chunk.end for chunk in queue.log.chunks(partition) if chunk.kind == "parquet")


def explained(df: DataFrame) -> str:
    with redirect_stdout(io.StringIO()) as shown:
        df.explain()
    return shown.getvalue()


def rows_of(df: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in df.select("partition", "offset", "value").collect())


def expected(queue: pxrs.Queue, ranges: dict[int, tuple[int, int]]) -> list[tuple[object, ...]]:
    found = (message for p, (start, end) in ranges.items() for message in queue.read(p, start, end - start))
    return sorted((message.partition, message.offset, bytearray(message.value)) for message in found)


def test_only_the_live_tail_goes_through_python(spark: SparkSession, queue: pxrs.Queue) -> None:
    everything = {partition: (0, end) for partition, end in queue.ends().items()}
    df = frame(spark, queue, everything, columns=["key"])
    plan = explained(df)
    assert "FileScan parquet" in plan and "ReadSchema: struct<key:binary>" in plan
    assert plan.count("MapInArrow") == 1
    history = {partition: (0, sealed_end(queue, partition)) for partition in range(PARTITIONS)}
    assert "MapInArrow" not in explained(frame(spark, queue, history))
    assert df.count() == ROUNDS * ROWS


@pytest.mark.parametrize("from_end", [0, 1])
@pytest.mark.parametrize("start", [0, 1, 500])
def test_exact_ranges_across_the_seam(spark: SparkSession, queue: pxrs.Queue, start: int, from_end: int) -> None:
    ranges = {partition: (start, end - from_end) for partition, end in queue.ends().items()}
    assert rows_of(frame(spark, queue, ranges)) == expected(queue, ranges)


def test_ranges_inside_one_sealed_file(spark: SparkSession, queue: pxrs.Queue) -> None:
    ranges = {0: (3, 9), 1: (0, sealed_end(queue, 1))}
    df = frame(spark, queue, ranges)
    assert "MapInArrow" not in explained(df)
    assert rows_of(df) == expected(queue, ranges)


def test_every_column_is_the_same_sealed_or_not(spark: SparkSession, queue: pxrs.Queue) -> None:
    ranges = [pxrs.model.Range(0, 0, 50, 3), pxrs.model.Range(1, 0, 50, 4)]
    sealed = frame(spark, queue, ranges, columns=ALL)
    through_python = frame(spark, queue, ranges, columns=ALL, map_arrow=lambda batch: batch, schema=sealed.schema)
    assert "MapInArrow" in explained(through_python) and "MapInArrow" not in explained(sealed)
    assert sorted(sealed.collect()) == sorted(through_python.collect())


def test_a_batch_source_reads_history_and_tail(spark: SparkSession, queue: pxrs.Queue) -> None:
    df = spark.read.format("pxrs").load(f"file:{queue.log.directory}")
    assert rows_of(df) == expected(queue, {p: (0, end) for p, end in queue.ends().items()})


def test_a_pipeline_over_history_takes_each_message_once(spark: SparkSession, queue: pxrs.Queue) -> None:
    seen: list[tuple[object, ...]] = []
    settings = pxrs.Settings(fast_rows=0)
    pipeline = Pipeline(
        spark, queue, group="history", process=lambda df: seen.extend(rows_of(df)), settings=settings
    )  # fmt: skip
    pipeline.run(until_end=True)
    assert sorted(seen) == expected(queue, {p: (0, end) for p, end in queue.ends().items()})


def test_a_task_that_was_planned_before_the_seal_reads_on(tmp_path: Path) -> None:
    with few_segments(tmp_path) as queue:
        end = queue.ends()[0]
        planned = queue.log.pieces(0, 7, end)
        assert queue.log.seal(0)
        assert not Path(planned[0].path).exists()
        read = [value for batch in read_range(planned, 7, end, ["value"]) for value in batch["value"].to_pylist()]
        assert read == [message.value for message in queue.read(0, 7, end)]


def test_a_flipped_bit_in_a_page_fails_the_job(spark: SparkSession, tmp_path: Path) -> None:
    with few_segments(tmp_path, seal_compression="none") as queue:
        [first, *_] = queue.log.seal(0)
        df = frame(spark, queue, {0: (first.start, first.end)})
        data = bytearray(Path(first.path).read_bytes())
        data[data.index(b"value-000000") + 11] ^= 1
        Path(first.path).write_bytes(data)
        with pytest.raises(Exception, match=r"(?i)checksum"):
            df.collect()
    with pxrs.open(f"file:{tmp_path}/orders") as queue, pytest.raises(Damaged, match=f"{first.path}: .* offsets 0 to"):
        queue.read(0, 0)


def test_a_file_that_is_gone_is_never_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.files.ignoreMissingFiles", True)
    try:
        with few_segments(tmp_path) as queue:
            [first, *_] = queue.log.seal(0)
            df = frame(spark, queue, {0: (0, queue.ends()[0])})
            Path(first.path).unlink()
            with pytest.raises(Exception, match=r"(?i)not.*exist|not found"):
                df.collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")
