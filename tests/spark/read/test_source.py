"""``spark.read.format("pxrs")`` in a real Spark: columns, content, options, and errors that say what is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

import pxrs
from tests.spark.helpers import EACH, PARTITIONS, TIME_MS, messages, open_orders, run_fresh, value_at, values_of

pytestmark = pytest.mark.xdist_group("spark")

EVERYTHING = dict.fromkeys(range(PARTITIONS), (0, EACH))


def test_the_columns_are_those_of_kafkas_source(spark: SparkSession, url: str) -> None:
    plain = spark.read.format("pxrs").load(url)
    assert plain.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    more = spark.read.format("pxrs").option("includeHeaders", True).option("includeId", True).load(url)
    assert more.drop(*plain.columns).schema.simpleString() == (
        "struct<headers:array<struct<key:string,value:binary>>,id:binary,tenant:string,epoch:bigint>"
    )


def test_every_message_comes_once_with_all_that_was_sent(spark: SparkSession, url: str) -> None:
    read = spark.read.format("pxrs").option("includeHeaders", True).option("includeId", True)
    rows = read.load(url).selectExpr("*", "unix_millis(timestamp) AS ms").collect()
    assert sorted(row.value for row in rows) == values_of(EVERYTHING)
    for row in rows:
        assert row.value == value_at(row.partition, row.offset) and row.topic == "orders"
        assert row.key == (f"key-{row.offset % 3}".encode() if row.offset % 5 else None)
        assert row.ms == TIME_MS + 1_000 * row.offset and row.timestampType == 0
        assert row.headers == ([("source", b"web")] if row.offset % 2 else None)
        assert row.id == f"{row.partition:08d}{row.offset:08d}".encode()
        assert row.tenant == ("acme" if row.offset % 4 == 0 else None) and row.epoch == 0


def test_options_choose_what_is_read(spark: SparkSession, url: str) -> None:
    read = spark.read.format("pxrs").option("pxrs.log", url).option("assign", '{"orders": [1, 2]}')
    read = read.option("startingOffsets", '{"orders": {"1": 20, "2": -2}}').option("endingOffsets", "latest")
    found = read.option("maxRecordsPerPartition", 10).load()
    assert sorted(row.value for row in found.collect()) == values_of({1: (20, 25), 2: (0, 25)})
    assert found.rdd.getNumPartitions() == 4


def test_a_schema_selects_columns_in_its_own_order(spark: SparkSession, url: str) -> None:
    found = spark.read.format("pxrs").schema("offset long, headers array<struct<key string, value binary>>").load(url)
    assert found.columns == ["offset", "headers"]
    assert {(row.offset, row.headers is None) for row in found.collect()} == {(n, n % 2 == 0) for n in range(EACH)}


def test_nothing_to_read_is_an_empty_frame(spark: SparkSession, url: str) -> None:
    late = spark.read.format("pxrs").option("startingTimestamp", TIME_MS + 99_000)
    found = late.option("startingOffsetsByTimestampStrategy", "latest").load(url)
    assert found.columns[0] == "key" and found.collect() == []


def test_aggregation_and_sql(spark: SparkSession, url: str) -> None:
    spark.read.format("pxrs").load(url).createOrReplaceTempView("orders")
    rows = spark.sql("SELECT key, count(*) AS n FROM orders WHERE key IS NOT NULL GROUP BY key").collect()
    per_key = {f"key-{k}".encode(): sum(n % 3 == k and n % 5 != 0 for n in range(EACH)) * PARTITIONS for k in range(3)}
    assert {bytes(row.key): row.n for row in rows} == per_key


def test_a_frame_stays_as_it_was_planned_and_the_next_one_sees_more(spark: SparkSession, tmp_path: Path) -> None:
    with open_orders(tmp_path) as queue:
        frame = spark.read.format("pxrs").load(f"file:{tmp_path}/orders")
        assert frame.count() == EACH * PARTITIONS
        queue.log.append({0: messages(0, range(EACH, EACH + 1))})
        assert frame.count() == EACH * PARTITIONS, "twice used in one query, it is the same messages"
        again = spark.read.format("pxrs").load(f"file:{tmp_path}/orders")
        assert again.count() == EACH * PARTITIONS + 1


def test_reading_opens_the_log_only(spark: SparkSession, tmp_path: Path) -> None:
    open_orders(tmp_path).close()
    registry = tmp_path / "orders" / "registry.db"
    for file in registry.parent.glob("registry.db*"):
        file.unlink()
    assert spark.read.format("pxrs").load(f"file:{tmp_path}/orders").count() == EACH * PARTITIONS
    assert not registry.exists()


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("startingOffset", "earliest", "option 'startingoffset' is not known .did you mean 'startingOffsets'"),
        ("minPartitions", "none", "option 'minPartitions' = 'none'"),
        ("subscribe", "bills", "option 'subscribe' names the queue 'bills'"),
    ],
)
def test_a_wrong_option_is_named_when_the_frame_is_made(
    spark: SparkSession, url: str, option: str, value: str, said: str
) -> None:
    with pytest.raises(AnalysisException, match=said):
        spark.read.format("pxrs").option(option, value).load(url)


def test_what_is_no_queue_is_refused_and_not_made_one(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match="NotFound: there is no queue in"):
        spark.read.format("pxrs").load(f"file:{tmp_path}/nothing")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("schema", "said"),
    [("kee binary", "no column 'kee' .did you mean 'key'"), ("value string", "column 'value' is binary in a queue")],
)
def test_a_schema_that_does_not_fit_is_refused(spark: SparkSession, url: str, schema: str, said: str) -> None:
    with pytest.raises(PySparkException, match=said):
        spark.read.format("pxrs").schema(schema).load(url).count()


# ---- with nothing but Spark ------------------------------------------------------------------------------------------

PLAIN_SPARK = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.read.format("pxrs").load(sys.argv[1]).count()
print(json.dumps({"rows": rows, "imported": [name for name in sys.modules if name.startswith("pxrs")]}))
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.processes
def test_spark_finds_the_format_with_no_registration_and_no_import(orders: pxrs.Queue, url: str) -> None:
    assert run_fresh(PLAIN_SPARK, url) == {"rows": EACH * PARTITIONS, "imported": []}
