"""``df.write.format("pxrs")`` in a real Spark: what is stored, in which order, and what is refused before it begins."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

import pxrs
from pxrs.spark import routed
from tests.spark.write.helpers import left_behind, texts_of

pytestmark = pytest.mark.xdist_group("spark")

PARTITIONS = 4


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[pxrs.Queue]:
    with pxrs.open(f"file:{tmp_path}/orders", partitions=PARTITIONS) as queue:
        yield queue


@pytest.fixture
def url(queue: pxrs.Queue) -> str:
    return f"file:{queue.log.directory}"


def numbers(spark: SparkSession, count: int, tasks: int = 3) -> DataFrame:
    """Keys of several lengths, in unicode too; the value says which row it is."""
    text = "concat('k', repeat('ä', int(id % 4)), cast(id % 40 as string))"
    return spark.range(0, count, 1, tasks).selectExpr(f"{text} AS key", "cast(id as string) AS value")


def write(df: DataFrame, url: str, **options: object) -> None:
    df.write.format("pxrs").mode("append").options(**options).save(url)  # type: ignore[arg-type]  # numbers are fine


def everything(queue: pxrs.Queue) -> list[pxrs.Message]:
    return [m for p, end in queue.ends().items() for m in queue.read(partition=p, offset=0, limit=end + 1)]


# ---- what is stored --------------------------------------------------------------------------------------------------


def test_every_row_is_a_message_where_a_producer_would_have_put_it(
    spark: SparkSession, queue: pxrs.Queue, url: str
) -> None:
    write(numbers(spark, 1_000), url)
    found = everything(queue)
    assert sorted(int(m.text) for m in found) == list(range(1_000))
    assert all(m.partition == queue.partitioner.partition(m.key) for m in found)
    assert len({m.id for m in found}) == 1_000
    assert left_behind(queue) == []


def test_all_columns_arrive(spark: SparkSession, queue: pxrs.Queue, url: str) -> None:
    df = spark.sql(
        "SELECT cast('k' AS binary) AS key, 'v' AS value, timestamp'2026-01-31 12:00:00Z' AS timestamp,"
        " 'acme' AS tenant, 3L AS partition, array(named_struct('key', 'source', 'value', binary('web'))) AS headers"
    )
    write(df, url)
    [message] = everything(queue)
    assert (message.key, message.value, message.partition, message.tenant) == (b"k", b"v", 3, "acme")
    assert message.timestamp == datetime(2026, 1, 31, 12, tzinfo=UTC) and message.headers == {"source": b"web"}


def test_rows_without_a_key_go_round_robin(spark: SparkSession, queue: pxrs.Queue, url: str) -> None:
    values = spark.range(0, 4_000, 1, 1).selectExpr("cast(id as string) AS value")
    write(values, url)
    assert set(queue.ends().values()) == {1_000}
    mixed = values.selectExpr("if(value % 4 = 0, null, 'one key') AS key", "value")  # each fourth row, four partitions
    write(mixed, url)
    keyless = Counter(m.partition for m in everything(queue)[:] if m.key is None and m.offset >= 1_000)
    assert set(keyless.values()) == {250}


def test_the_order_of_a_key_is_that_of_the_frame(spark: SparkSession, queue: pxrs.Queue, url: str) -> None:
    """Also over the borders of tasks: their rows are appended in the order of the frame's partitions."""
    falling = spark.range(1_999, -1, -1, 5).selectExpr("cast(id % 40 AS string) AS key", "cast(id AS string) AS value")
    assert falling.rdd.getNumPartitions() == 5
    write(falling, url)
    per_key = defaultdict(list)
    for message in everything(queue):
        per_key[message.key].append(int(message.text))
    assert len(per_key) == 40 and all(rows == sorted(rows, reverse=True) for rows in per_key.values())


def test_a_queue_is_created_with_partitions(spark: SparkSession, tmp_path: Path) -> None:
    url = f"file:{tmp_path}/new"
    write(numbers(spark, 100), url, partitions=3, hash="xxh64", reduce="jump")
    with pxrs.open(url) as queue:
        assert queue.partitioner == pxrs.Partitioner(3, "xxh64", "jump")
        assert all(m.partition == queue.partitioner.partition(m.key) for m in everything(queue))
    write(numbers(spark, 1), url, partitions=3)
    with pytest.raises(PySparkException, match="was created with partitions = 3, and is opened with 4"):
        write(numbers(spark, 1), url, partitions=4)


def test_messages_of_another_queue_are_passed_on_as_they_are(
    spark: SparkSession, queue: pxrs.Queue, url: str, tmp_path: Path
) -> None:
    write(numbers(spark, 200), url)
    source = spark.read.format("pxrs").option("includeId", True).load(url)
    write(source, f"file:{tmp_path}/more", partitions=7)
    with pxrs.open(f"file:{tmp_path}/more") as more:
        assert texts_of(more) == texts_of(queue)
        assert all(m.partition == more.partitioner.partition(m.key) for m in everything(more))


# ---- routing in Spark's own words ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["string", "binary"])
@pytest.mark.parametrize(
    ("hash_name", "reduce"),
    [
        ("xxh64-spark", "pmod"),
        ("xxh64-spark", "abs"),
        ("xxh64-spark", "mask"),
        ("xxh64-spark", "jump"),
        ("kafka", "mask"),
    ],
)
def test_routed_is_the_producers_choice_bit_for_bit(
    spark: SparkSession, kind: str, hash_name: str, reduce: str
) -> None:
    part = pxrs.Partitioner(13, hash_name, reduce)
    keys = numbers(spark, 3_000).selectExpr(f"cast(repeat(value, int(value % 9)) AS {kind}) AS key")
    rows = routed(keys.union(spark.sql("SELECT cast(null AS string) AS key")), part).collect()
    assert [row.partition for row in rows] == [None if row.key is None else part.partition(row.key) for row in rows]
    assert len(rows) == 3_001 and rows[-1].partition is None


def plan_of(df: DataFrame) -> str:
    return str(df._jdf.queryExecution().toString())  # what explain(True) prints


def test_the_default_hash_needs_no_python(spark: SparkSession, queue: pxrs.Queue) -> None:
    plan = plan_of(routed(numbers(spark, 10), queue))
    assert "pmod(xxhash64(key" in plan and "Python" not in plan
    assert "ArrowEvalPython" in plan_of(routed(numbers(spark, 10), pxrs.Partitioner(4, "sha256")))


def test_a_text_with_a_collation_is_routed_by_its_bytes(spark: SparkSession) -> None:
    keys = spark.sql("SELECT key COLLATE UTF8_LCASE AS key FROM VALUES ('ACCT-1'), ('acct-1') AS t(key)")
    part = pxrs.Partitioner(1_000)
    assert [row.partition for row in routed(keys, 1_000).collect()] == [
        part.partition("ACCT-1"),
        part.partition("acct-1"),
    ]


def test_a_routed_frame_is_written_where_it_says_also_after_a_shuffle(
    spark: SparkSession, queue: pxrs.Queue, url: str
) -> None:
    df = numbers(spark, 300).union(spark.sql("SELECT null AS key, cast(id AS string) AS value FROM range(300, 320)"))
    write(routed(df, queue).repartition(2, "partition"), url)
    found = everything(queue)
    assert sorted(int(m.text) for m in found) == list(range(320))
    assert all(m.key is None or m.partition == queue.partitioner.partition(m.key) for m in found)


def test_a_hash_that_only_the_driver_knows_is_routed_there(spark: SparkSession, tmp_path: Path) -> None:
    def first_byte(key: bytes) -> int:
        return key[0] if key else 0

    url = f"file:{tmp_path}/own"
    with pxrs.open(url, partitions=4, hash=first_byte) as queue:
        df = spark.range(100).selectExpr("cast(id AS string) AS key", "cast(id AS string) AS value")
        with pytest.raises(PySparkException, match=r"add the column partition with pxrs.spark.routed"):
            write(df, url)
        write(routed(df, queue), url)
        assert all(m.key and m.partition == m.key[0] % 4 for m in everything(queue)) and len(everything(queue)) == 100


# ---- what is refused before a task runs (test_sink_refusals.py has the rest) -----------------------------------------


def test_what_does_not_fit_is_refused_with_the_cast_to_write(spark: SparkSession, queue: pxrs.Queue, url: str) -> None:
    with pytest.raises(PySparkException, match=r"column 'key' is bigint, .* write CAST\(key AS STRING\) AS key"):
        write(spark.sql("SELECT 1L AS key, 'v' AS value"), url)
    assert everything(queue) == [] and left_behind(queue) == []


@pytest.mark.parametrize(
    ("mode", "said"), [("overwrite", "a queue only grows"), ("error", "ErrorIfExists"), ("ignore", "Ignore")]
)
def test_modes_other_than_append_are_refused(
    spark: SparkSession, queue: pxrs.Queue, url: str, mode: str, said: str
) -> None:
    with pytest.raises(PySparkException, match=said):
        numbers(spark, 1).write.format("pxrs").mode(mode).save(url)
    assert everything(queue) == []


def test_a_frame_that_was_routed_for_another_queue_is_refused(spark: SparkSession, url: str) -> None:
    with pytest.raises(PySparkException, match=r"was routed for .*5 xxh64-spark pmod.*has .*4 xxh64-spark pmod"):
        write(routed(numbers(spark, 1), 5), url)


# ---- what fails in tasks ---------------------------------------------------------------------------------------------


def failing(spark: SparkSession) -> dict[str, DataFrame]:
    good = numbers(spark, 500, tasks=1)  # a second task may still write when the first has failed: that is swept later
    return {
        "DIVIDE_BY_ZERO": good.selectExpr("key", "string(1 / (value - 450)) AS value"),
        "column 'value' holds a null": good.selectExpr("key", "if(value = '450', null, value) AS value"),
        "column 'partition' holds 4": good.selectExpr("value", "int(if(value = '450', 4, 0)) AS partition"),
        "column 'partition' holds -1": good.selectExpr("value", "int(if(value = '450', -1, 0)) AS partition"),
    }


def test_a_write_that_fails_stores_nothing_and_leaves_nothing(spark: SparkSession, queue: pxrs.Queue, url: str) -> None:
    for said, df in failing(spark).items():
        with pytest.raises(PySparkException, match=said):
            write(df, url)
        assert everything(queue) == [] and left_behind(queue) == []


# ---- writes that are repeated ----------------------------------------------------------------------------------------


def test_a_named_write_is_stored_once_however_its_rows_come(spark: SparkSession, queue: pxrs.Queue, url: str) -> None:
    name: dict[str, Any] = {"pxrs.producer.name": "import", "pxrs.producer.sequence": 7}
    write(numbers(spark, 500), url, **name)
    before = texts_of(queue)
    write(numbers(spark, 500, tasks=1).orderBy(col("value").desc()), url, **name)
    assert texts_of(queue) == before and len(before) == 500
    assert left_behind(queue) == ["7.done"]
    with pytest.raises(PySparkException, match=r"has stored its write 7 .* now comes with 6"):
        write(numbers(spark, 500), url, **{**name, "pxrs.producer.sequence": 6})
    write(numbers(spark, 3), url, **{**name, "pxrs.producer.sequence": 8})
    assert len(texts_of(queue)) == 503 and left_behind(queue) == ["8.done"]


def test_two_writes_without_a_name_are_two(spark: SparkSession, queue: pxrs.Queue, url: str) -> None:
    for _ in range(2):
        write(numbers(spark, 20), url)
    assert len(texts_of(queue)) == 40


def test_a_write_of_nothing_leaves_nothing(spark: SparkSession, queue: pxrs.Queue, url: str) -> None:
    write(numbers(spark, 20).where("false"), url)
    assert everything(queue) == [] and left_behind(queue) == []
