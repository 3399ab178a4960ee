"""``frame``: exact ranges of a queue as one DataFrame, and a Python function next to the log."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import pxrs
from pxrs.errors import BadSetting, BeyondEnd, NotFound, Refused
from pxrs.model import Range
from pxrs.spark import frame
from pxrs.spark.read.columns import PLAIN, TYPES, schema_of
from pxrs.spark.read.frame import frame_spec
from pxrs.spark.read.plan import Plan, Slice, pack, slices_of, spread
from pxrs.spark.read.task import ENOUGH_ROWS, MOST_ROWS, ReadSpec, batches_of
from tests.spark.helpers import EACH, PARTITIONS, arrow_of, messages, values_of

pytestmark = pytest.mark.xdist_group("spark")

EVERYTHING = dict.fromkeys(range(PARTITIONS), (0, EACH))


def values(table: pa.Table) -> list[bytes]:
    return sorted(table.column("value").to_pylist())


# ---- ranges ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ranges",
    [{0: (0, 1)}, {0: (9, 11), 3: (24, 25)}, {1: (3, 22)}, EVERYTHING, {0: (7, 7), 2: (10, 20)}],
)
def test_exactly_the_ranges_are_read(
    spark: SparkSession, orders: pxrs.Queue, ranges: dict[int, tuple[int, int]]
) -> None:
    assert sorted(row.value for row in frame(spark, orders, ranges).collect()) == values_of(ranges)
    assert values(arrow_of(orders, ranges)) == values_of(ranges)


def test_epochs_travel_with_ranges_and_a_partition_may_have_several(spark: SparkSession, orders: pxrs.Queue) -> None:
    ranges = [Range(2, 6, 9, epoch=7), Range(2, 0, 5, epoch=7), Range(1, 0, 2, epoch=3)]
    rows = frame(spark, orders, ranges, columns=["partition", "offset", "epoch"], tasks=1).collect()
    assert [tuple(row) for row in rows] == [(1, 0, 3), (1, 1, 3), *((2, n, 7) for n in (0, 1, 2, 3, 4, 6, 7, 8))]


def test_no_messages_is_an_empty_frame_with_its_columns(spark: SparkSession, orders: pxrs.Queue) -> None:
    found = frame(spark, orders, {0: (5, 5)}, columns=["headers", "key"])
    assert found.columns == ["headers", "key"] and found.collect() == []
    table = arrow_of(orders, {0: (0, 5)}, list(TYPES), map_arrow=lambda batch: batch.slice(0, 0))
    assert spark.createDataFrame(table).collect() == [], "nothing is left, and Spark takes that too"


def test_both_ways_of_reading_give_the_same(spark: SparkSession, orders: pxrs.Queue) -> None:
    every = list(TYPES)
    here = arrow_of(orders, EVERYTHING, columns=every)
    by_tasks = frame(spark, orders, EVERYTHING, columns=every).toArrow()
    order = [("partition", "ascending"), ("offset", "ascending")]
    assert here.schema.equals(schema_of(every))
    assert by_tasks.sort_by(order).to_pylist() == here.sort_by(order).to_pylist()


def test_what_was_read_here_goes_into_a_frame(spark: SparkSession, orders: pxrs.Queue) -> None:
    table = arrow_of(orders, {0: (2, 3), 1: (4, 5)}, columns=["headers", "key", "tenant", "value"])
    assert table.column("headers").null_count == 2, "the case that Spark stumbles over if it is not copied"
    assert spark.createDataFrame(table).toArrow().to_pylist() == table.to_pylist()


def test_a_log_in_memory_is_read_here(spark: SparkSession) -> None:
    with pxrs.open("memory:", partitions=2) as queue:
        queue.log.append({1: messages(1, range(5))})
        assert sorted(row.value for row in frame(spark, queue, {1: (1, 5)}).collect()) == values_of({1: (1, 5)})
        mapped = frame(spark, queue, {1: (1, 5)}, map_arrow=lambda batch: batch.select(["offset"]).slice(1))
        assert [row.offset for row in mapped.collect()] == [2, 3, 4]


@pytest.mark.parametrize(
    ("ranges", "error", "said"),
    [
        ({0: (0, 26)}, BeyondEnd, "partition 0: offset 26 is ahead of the log, which ends at 25"),
        ({4: (0, 1)}, NotFound, "no partition 4"),
        ({0: (5, 4)}, Refused, r"partition 0: \[5, 4\) is no range"),
        ({0: (-1, 4)}, Refused, r"\[-1, 4\) is no range"),
        ([Range(1, 0, 5), Range(1, 4, 6)], Refused, r"partition 1: \[0, 5\) and \[4, 6\) overlap"),
    ],
)
def test_ranges_that_are_not_there_are_refused(
    spark: SparkSession, orders: pxrs.Queue, ranges: dict[int, tuple[int, int]], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        frame(spark, orders, ranges)
    with pytest.raises(error, match=said):
        arrow_of(orders, ranges)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["vlaue"], "no column 'vlaue' .did you mean 'value'"),
        ("key", "a list of names"),
        ([], "no column is asked for"),
    ],
)
def test_columns_that_are_not_there_are_refused(orders: pxrs.Queue, columns: list[str], said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        arrow_of(orders, {0: (0, 1)}, columns=columns)


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_tasks_get_about_as_many_rows_and_whole_partitions() -> None:
    assert pack({0: 100, 1: 10, 2: 60, 3: 50, 4: 10}, 2) == [[0, 1, 4], [2, 3]]
    assert pack({5: 1, 3: 1}, 8) == [[3], [5]]
    assert pack({}, 2) == []


def test_at_least_one_task(spark: SparkSession, orders: pxrs.Queue) -> None:
    with pytest.raises(BadSetting, match="tasks = 0"):
        frame(spark, orders, {0: (0, 1)}, tasks=0)


def test_a_partition_is_read_by_one_task_in_order(spark: SparkSession, orders: pxrs.Queue) -> None:
    found = frame(spark, orders, EVERYTHING, tasks=3)
    tasks = found.select("partition", "offset").rdd.glom().collect()
    assert len(tasks) == 3
    assert sorted(p for task in tasks for p in {row.partition for row in task}) == list(range(PARTITIONS))
    for task in tasks:
        assert [tuple(row) for row in task] == sorted(tuple(row) for row in task)


# ---- sizes of batches ------------------------------------------------------------------------------------------------


def sizes(stored: list[int], columns: tuple[str, ...] = PLAIN) -> list[int]:
    """How large the batches are that are made of stored ones of these sizes; all rows come, in order."""
    given = [messages_like(sum(stored[:n]), rows) for n, rows in enumerate(stored)]
    reading = ReadSpec("orders", columns, schema_of(columns))
    made = list(batches_of(reading, [Slice(0, 0, sum(stored))], lambda _: given))
    offsets = [offset for batch in made for offset in batch.column("offset").to_pylist()]
    assert offsets == list(range(sum(stored)))
    return [batch.num_rows for batch in made]


def messages_like(first: int, rows: int, size: int = 10) -> pa.RecordBatch:
    from pxrs.logs.base import SCHEMA

    column = {
        "offset": pa.array(range(first, first + rows), pa.int64()),
        "timestamp": pa.array([0] * rows, TYPES["timestamp"]),
        "value": pa.array([b"x" * size] * rows),
    }
    return pa.RecordBatch.from_arrays([column.get(f.name, pa.nulls(rows, f.type)) for f in SCHEMA], schema=SCHEMA)


def test_small_stored_batches_are_put_together() -> None:
    assert sizes([1] * 1_000) == [1_000]
    assert sizes([1_000] * 20) == [17_000, 3_000] and ENOUGH_ROWS < 17_000


def test_large_stored_batches_are_passed_on_and_very_large_ones_cut() -> None:
    assert sizes([10, 10_000, 10, 10, 10_000]) == [10, 10_000, 20, 10_000]
    assert sizes([MOST_ROWS + 5_000]) == [MOST_ROWS, 5_000]


def test_few_but_heavy_messages_are_not_piled_up() -> None:
    heavy = [messages_like(n, 1, size=300_000) for n in range(20)]
    made = list(batches_of(ReadSpec("q", PLAIN, schema_of(PLAIN)), [Slice(0, 0, 20)], lambda _: heavy))
    assert max(batch.nbytes for batch in made) < 4 << 20 and sum(batch.num_rows for batch in made) == 20


def test_b78_a_task_that_runs_again_reads_the_same(orders: pxrs.Queue) -> None:
    from pxrs.spark.read.source import PlannedReader

    plan = Plan("orders", PLAIN, spread(slices_of(orders.log, [Range(0, 3, 20), Range(1, 0, 25)]), tasks=1))
    [partition] = PlannedReader(plan, schema_of(PLAIN)).partitions()
    runs = [list(PlannedReader(plan, schema_of(PLAIN)).read(partition)) for _ in range(2)]
    assert runs[0] == runs[1] and sum(batch.num_rows for batch in runs[0]) == 42


# ---- a function next to the log --------------------------------------------------------------------------------------


def test_the_function_runs_in_the_tasks_and_its_schema_is_found_out(spark: SparkSession, orders: pxrs.Queue) -> None:
    def even(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.equal(pc.bit_wise_and(batch.column("offset"), 1), 0))

    found = frame(spark, orders, EVERYTHING, columns=["partition", "offset"], map_arrow=even)
    assert found.columns == ["partition", "offset"]
    assert sorted(map(tuple, found.collect())) == [(p, n) for p in range(PARTITIONS) for n in range(0, EACH, 2)]


def test_each_call_gets_one_partition_in_order(spark: SparkSession, orders: pxrs.Queue) -> None:
    def seen(batch: pa.RecordBatch) -> pa.RecordBatch:
        offsets = batch.column("offset").to_pylist()
        partitions = pc.unique(batch.column("partition")).to_pylist()
        return pa.RecordBatch.from_pydict({"partitions": [partitions], "offsets": [offsets]})

    schema = "partitions array<int>, offsets array<long>"
    rows = frame(spark, orders, EVERYTHING, map_arrow=seen, schema=schema, tasks=1).collect()
    assert [(row.partitions, row.offsets) for row in rows] == [([p], list(range(EACH))) for p in range(PARTITIONS)]


def test_none_empty_and_several_batches(spark: SparkSession, orders: pxrs.Queue) -> None:
    def some(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch] | None:
        if batch.column("partition")[0].as_py() == 0:
            return None
        return iter([batch.slice(0, 0), batch.slice(0, 2), batch.slice(20, 1)])

    schema = "offset long, partition int"
    found = frame(spark, orders, EVERYTHING, ["offset", "partition"], map_arrow=some, schema=schema)
    assert sorted(row.offset for row in found.collect()) == [0] * 3 + [1] * 3 + [20] * 3


def test_columns_are_found_by_name_and_cast(orders: pxrs.Queue) -> None:
    def loose(batch: pa.RecordBatch) -> pa.RecordBatch:
        text = batch.column("value").cast(pa.string()).cast(pa.large_string())
        return pa.RecordBatch.from_pydict({"text": text, "n": pa.array([1] * batch.num_rows, pa.int32())})

    table = arrow_of(orders, {0: (0, 2)}, map_arrow=loose, schema="n long, text string")
    assert table.to_pydict() == {"n": [1, 1], "text": ["0/0", "0/1"]}
    assert table.schema == pa.schema([("n", pa.int64()), ("text", pa.string())])


@pytest.mark.parametrize(
    "schema",
    ["n long", StructType([StructField("n", LongType())]), pa.schema([("n", pa.int64())])],
    ids=["ddl", "spark", "arrow"],
)
def test_a_schema_can_be_said_in_three_ways(spark: SparkSession, schema: str | StructType | pa.Schema) -> None:
    assert frame_spec("orders", None, lambda batch: batch, schema).schema == StructType([StructField("n", LongType())])


def test_a_function_that_fails_names_the_place(spark: SparkSession, orders: pxrs.Queue) -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("no such account")

    with pytest.raises(PythonException, match=r"(?s)no such account.*partition 2, 4 rows, offsets 5 to 8"):
        frame(spark, orders, {2: (5, 9)}, map_arrow=fail, schema="n long").count()


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (pa.RecordBatch.from_pydict({"m": [1]}), r"returned the columns \['m'\], and \['n'\] were declared"),
        (pa.RecordBatch.from_pydict({"n": ["x"]}), "returned 'n' as string, not int64"),
        (pa.RecordBatch.from_pydict({"n": pa.array([None], pa.int64())}), "returned a null in 'n'"),
        ({"n": 1}, "returned a str"),
        (7, "returned a int"),
    ],
)
def test_what_does_not_fit_the_schema_is_refused(orders: pxrs.Queue, returned: object, said: str) -> None:
    with pytest.raises(Exception, match=said):
        arrow_of(
            orders, {0: (0, 1)}, map_arrow=lambda _: returned, schema=pa.schema([pa.field("n", pa.int64(), False)])
        )


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda _: None, "returned nothing for an empty batch: say with schema="),
        (lambda batch: 1 / batch.num_rows, "failed on an empty batch, ZeroDivisionError"),
        (lambda _: 7, "returned a int"),
    ],
)
def test_a_function_that_says_nothing_of_its_schema_is_refused(orders: pxrs.Queue, function: object, said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        arrow_of(orders, {0: (0, 1)}, map_arrow=function)


def test_a_schema_without_a_function_is_refused(orders: pxrs.Queue) -> None:
    with pytest.raises(BadSetting, match="there is no map_arrow"):
        arrow_of(orders, {0: (0, 1)}, schema="n long")


def test_a_function_that_cannot_travel_is_refused_by_name(spark: SparkSession, orders: pxrs.Queue) -> None:
    lock = threading.Lock()

    def locked(batch: pa.RecordBatch) -> pa.RecordBatch:
        with lock:
            return batch

    with pytest.raises(BadSetting, match="map_arrow cannot be sent to Spark's workers"):
        frame(spark, orders, {0: (0, 1)}, map_arrow=locked)
