"""Spark pipelines with an SQL sink: rows with the checkpoints, rows aside, big frames, bad rows, and a backfill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import pxrs
from pxrs.model import Range
from pxrs.sinks.output import SMALL
from pxrs.spark import Pipeline
from pxrs.testing.servers.postgres import PostgresServer
from tests.sinks.sql.support import KEYED, PLAIN, SqlPlace, elsewhere, place_name
from tests.sinks.support import batch_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]
SENT = 60
SETTINGS = pxrs.Settings(lease_ms=20_000, backoff_ms=1)


@pytest.fixture
def table(postgres_server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[SqlPlace]:
    made = SqlPlace(postgres_server, place_name(request.node.nodeid))
    yield made
    made.close()


@pytest.fixture
def queue(table: SqlPlace, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[pxrs.Queue]:
    """A queue whose registry is in the table's database, or elsewhere."""
    table.registry_elsewhere = elsewhere(tmp_path) if request.param == "aside" else ""
    with table.opened(f"file:{tmp_path}/log", partitions=3, settings=SETTINGS) as queue:
        with queue.producer() as producer:
            for number in range(SENT):
                producer.send(f"k{number % 7}", f"v{number:03d}".encode())
        yield queue


def plain(frame: DataFrame, _: Any) -> DataFrame:
    return frame.select(F.col("key").cast("string").alias("key"), F.col("value").cast("string").alias("value"))


EXPECTED = [f"v{number:03d}" for number in range(SENT)]
BOTH = pytest.mark.parametrize("queue", ["together", "aside"], indirect=True)


@BOTH
def test_a_pipeline_writes_each_message_once(spark: SparkSession, queue: pxrs.Queue, table: SqlPlace) -> None:
    table.make(PLAIN)
    Pipeline(spark, queue, "g", plain, sink=table.sink()).run(until_end=True)
    assert table.values() == EXPECTED and table.staged() == 0
    assert queue.group("g").describe().total_lag == 0
    assert ("_pxrs_staged" in table.tables()) == bool(table.registry_elsewhere)


@BOTH
def test_b70_a_row_that_the_table_refuses_costs_its_message_only(
    spark: SparkSession, queue: pxrs.Queue, table: SqlPlace
) -> None:
    table.make(KEYED)
    table.run(f"INSERT INTO {table.table} (value) VALUES ('v007')")
    Pipeline(spark, queue, "g", plain, sink=table.sink()).run(until_end=True)
    assert table.values() == EXPECTED
    assert [letter.value for letter in queue.group("g").dead_letters] == [b"v007"]


@pytest.mark.parametrize("queue", ["together"], indirect=True)
def test_a_backfill_shows_everything_at_its_end(spark: SparkSession, queue: pxrs.Queue, table: SqlPlace) -> None:
    Pipeline(spark, queue, process=plain, sink=table.sink(create=True)).run()
    assert table.values() == EXPECTED and table.staged() == 0


def test_a_big_frame_goes_by_way_of_files(spark: SparkSession, table: SqlPlace) -> None:
    sink, rows = table.sink(create=True), SMALL + 5
    frame = spark.range(rows, numPartitions=3).select(F.format_string("%06d", "id").alias("value"))
    batch = batch_of(Range(0, 0, rows, 1))
    sink.publish(sink.stage(batch, frame))
    assert table.values() == [f"{number:06d}" for number in range(rows)]
