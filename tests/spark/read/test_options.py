"""The options of the batch source: what they ask for, and how a wrong one is refused. No Spark runs here."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

import pxrs
from pxrs.errors import BadSetting, NotFound, OutOfRange, PxrsError, Refused
from pxrs.model import Range
from pxrs.spark.read.columns import PLAIN, TYPES
from pxrs.spark.read.options import check_selection, parse
from pxrs.spark.read.ranges import check_queue, open_log, plan_request, ranges_of, split
from tests.spark.helpers import EACH, PARTITIONS, TIME_MS

ALL = dict.fromkeys(range(PARTITIONS), (0, EACH))


def everywhere_the_same(start: int, end: int) -> dict[int, tuple[int, int]]:
    return dict.fromkeys(range(PARTITIONS), (start, end))


def per_partition(**values: int) -> str:
    """``_0=5`` is ``{"orders": {"0": 5}}``."""
    return json.dumps({"orders": {name[1:]: value for name, value in values.items()}})


def everywhere(value: int) -> str:
    return json.dumps({"orders": {str(p): value for p in range(PARTITIONS)}})


@pytest.fixture
def ask(orders: pxrs.Queue) -> Any:
    """The ranges that options ask for, as ``{partition: (start, end)}``."""

    def ask(**options: str) -> dict[int, tuple[int, int]]:
        found = ranges_of(parse({"path": "file:x", **options}), orders.log)
        return {part.partition: (part.start, part.end) for part in found}

    return ask


# ---- what is asked for -----------------------------------------------------------------------------------------------


def test_without_options_everything_is_read(ask: Any) -> None:
    assert ask() == ALL


def test_offsets_for_each_partition(ask: Any) -> None:
    start, end = per_partition(_0=3, _1=-2, _2=25, _3=0), per_partition(_0=5, _1=-1, _2=25, _3=10)
    assert ask(startingOffsets=start, endingOffsets=end) == {0: (3, 5), 1: (0, 25), 3: (0, 10)}


def test_names_are_read_in_any_case_as_spark_hands_them_over(ask: Any) -> None:
    assert ask(startingoffsets=everywhere(20), ENDINGOFFSETS="LATEST") == everywhere_the_same(20, 25)


def test_assigned_partitions_only(ask: Any) -> None:
    assert ask(assign='{"orders": [2, 0, 2]}') == {0: (0, 25), 2: (0, 25)}
    assert ask(assign='{"orders": [1]}', startingOffsets=per_partition(_1=7)) == {1: (7, 25)}


def test_times(ask: Any) -> None:
    assert ask(startingTimestamp=str(TIME_MS + 4_500), endingTimestamp=str(TIME_MS + 9_000)) == dict.fromkeys(
        range(PARTITIONS), (5, 9)
    )


def test_times_for_each_partition(ask: Any) -> None:
    start = per_partition(_0=TIME_MS, _1=TIME_MS + 24_000, _2=TIME_MS + 10_000, _3=0)
    end = per_partition(_0=TIME_MS + 1_000, _1=TIME_MS + 99_000, _2=TIME_MS + 10_000, _3=TIME_MS)
    found = ask(startingOffsetsByTimestamp=start, endingOffsetsByTimestamp=end)
    assert found == {0: (0, 1), 1: (24, 25)}


def test_a_time_goes_before_times_by_partition_and_these_before_offsets(ask: Any) -> None:
    offsets, times = everywhere(1), everywhere(TIME_MS + 2_000)
    assert ask(startingOffsets=offsets, startingOffsetsByTimestamp=times)[0] == (2, 25)
    assert ask(startingOffsets=offsets, startingOffsetsByTimestamp=times, startingTimestamp=str(TIME_MS))[0] == (0, 25)


def test_a_time_after_the_last_message_is_an_error_or_the_end(ask: Any) -> None:
    late = str(TIME_MS + 99_000)
    with pytest.raises(BadSetting, match=r"'startingTimestamp': partition 0.*startingOffsetsByTimestampStrategy"):
        ask(startingTimestamp=late)
    assert ask(startingTimestamp=late, startingOffsetsByTimestampStrategy="latest") == {}


def test_lost_offsets_are_an_error_or_left_out(ask: Any) -> None:
    with pytest.raises(OutOfRange, match="'endingOffsets': partition 0 holds the offsets 0 to 24, not 30"):
        ask(endingOffsets=everywhere(30))
    assert ask(endingOffsets=everywhere(30), failOnDataLoss="false") == ALL
    assert ask(startingOffsets=everywhere(30), failOnDataLoss="FALSE") == {}


def test_columns_that_are_asked_for() -> None:
    assert parse({"path": "file:x"}).columns == PLAIN
    assert parse({"path": "file:x", "includeHeaders": "true", "includeId": "True"}).columns == tuple(TYPES)


# ---- how tasks share it ----------------------------------------------------------------------------------------------


def test_one_task_for_each_partition_unless_more_are_asked_for() -> None:
    ranges = [Range(0, 0, 100), Range(1, 50, 60)]
    assert split(ranges, None, None) == ranges
    assert split(ranges, 2, 100) == ranges


def test_long_ranges_are_cut() -> None:
    assert split([Range(0, 10, 35)], None, 10) == [Range(0, 10, 18), Range(0, 18, 26), Range(0, 26, 35)]


@pytest.mark.parametrize("least", [3, 7, 10, 64, 110, 500])
def test_enough_tasks_with_every_row_once(least: int) -> None:
    ranges = [Range(0, 0, 100), Range(1, 50, 60)]
    parts = split(ranges, least, 40)
    assert len(parts) >= min(least, 110) and max(part.rows for part in parts) <= 40
    assert [(part.partition, offset) for part in parts for offset in range(part.start, part.end)] == [
        (part.partition, offset) for part in ranges for offset in range(part.start, part.end)
    ]


def test_the_plan_holds_files_and_offsets(orders: pxrs.Queue, url: str) -> None:
    plan = plan_request(parse({"path": url, "assign": '{"orders": [3]}', "minPartitions": "2"}), ("key",))
    assert plan.topic == "orders" and plan.columns == ("key",)
    assert [(part.partition, part.start, part.end) for [part] in plan.tasks] == [(3, 0, 12), (3, 12, 25)]
    assert all(piece.path.startswith(url.removeprefix("file:")) for [part] in plan.tasks for piece in part.pieces)


# ---- what is refused -------------------------------------------------------------------------------------------------

WRONG = [
    ({"startingOffset": "earliest"}, "option 'startingOffset' is not known.*'startingOffsets'"),
    ({"kafka.bootstrap.servers": "h:1"}, "option 'kafka.bootstrap.servers' is not known"),
    ({"pxrs.registry": "sqlite:x"}, "option 'pxrs.registry' is not used here"),
    ({"pxrs.group.id": "billing"}, "option 'pxrs.group.id' is not used here.*Pipeline"),
    ({"pxrs.log": "file:other"}, "'path' = 'file:x' and 'pxrs.log' = 'file:other'"),
    ({"startingOffsets": "latest"}, "'startingOffsets' = 'latest': nothing would be read"),
    ({"endingOffsets": "earliest"}, "'endingOffsets' = 'earliest': nothing would be read"),
    ({"startingOffsets": everywhere(-1)}, "'startingOffsets' = .*-2 is earliest"),
    ({"endingOffsets": everywhere(-2)}, "'endingOffsets' = .*-1 is latest"),
    ({"startingOffsets": "newest"}, "'startingOffsets' = 'newest': JSON such as"),
    ({"startingOffsets": '{"orders": {"0": "7"}}'}, "'startingOffsets' = .*by partition"),
    ({"startingOffsets": '{"orders": {"x": 7}}'}, "'startingOffsets' = .*by partition"),
    ({"startingOffsets": '{"orders": {"0": true}}'}, "'startingOffsets' = .*by partition"),
    ({"startingOffsets": '{"a": {"0": 1}, "b": {"0": 1}}'}, "'startingOffsets' = .*one queue"),
    ({"startingOffsets": "[]"}, "'startingOffsets' = .*one queue"),
    ({"startingTimestamp": "yesterday"}, "'startingTimestamp' = 'yesterday': a time in milliseconds"),
    ({"endingTimestamp": "-5"}, "'endingTimestamp' = '-5'"),
    ({"endingOffsetsByTimestamp": everywhere(-1)}, "'endingOffsetsByTimestamp' = "),
    ({"startingOffsetsByTimestampStrategy": "newest"}, "'startingOffsetsByTimestampStrategy' = 'newest': error or"),
    ({"assign": '{"orders": 3}'}, "'assign' = .*list of partitions"),
    ({"assign": '{"orders": []}'}, "'assign' = .*list of partitions"),
    ({"assign": '{"orders": [-1]}'}, "'assign' = .*list of partitions"),
    ({"assign": '{"orders": [0]}', "subscribe": "orders"}, "'assign' and 'subscribe'"),
    ({"minPartitions": "0"}, "'minPartitions' = '0': a whole number from 1"),
    ({"maxRecordsPerPartition": "many"}, "'maxRecordsPerPartition' = 'many': a whole number from 1"),
    ({"failOnDataLoss": "maybe"}, "'failOnDataLoss' = 'maybe': true or false"),
    ({"includeHeaders": "1"}, "'includeHeaders' = '1': false or true"),
    ({"includeId": ""}, "'includeId' = ''"),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_an_unknown_or_ill_formed_option_is_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        parse({"path": "file:x", **options})


def test_an_ill_formed_option_is_named_also_where_another_goes_before_it() -> None:
    with pytest.raises(BadSetting, match="startingOffsets"):
        parse({"path": "file:x", "startingTimestamp": "5", "startingOffsets": "?"})


def test_a_queue_must_be_named() -> None:
    with pytest.raises(BadSetting, match="'path' is missing"):
        parse({})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "bills"}, "option 'subscribe' names the queue 'bills'.*is 'orders'"),
        ({"assign": '{"bills": [0]}'}, "option 'assign' names the queue 'bills'"),
        ({"endingOffsets": '{"bills": {"0": 1}}'}, "option 'endingOffsets' names the queue 'bills'"),
        ({"assign": '{"orders": [4]}'}, "no partition 4"),
        ({"startingOffsets": per_partition(_0=1, _7=1)}, r"'startingOffsets'.*leaves out \[1, 2, 3\].*names \[7\]"),
        ({"startingOffsets": everywhere(9), "endingOffsets": everywhere(8)}, "'startingOffsets' is offset 9, behind"),
    ],
)
def test_what_contradicts_the_queue_is_refused(ask: Any, options: dict[str, str], said: str) -> None:
    with pytest.raises(PxrsError, match=said):
        ask(**options)


def test_what_is_no_queue_is_refused_and_stays_as_it_is(tmp_path: Any) -> None:
    with pytest.raises(NotFound, match="no queue in"):
        check_queue(parse({"path": f"file:{tmp_path}/nothing"}))
    assert list(tmp_path.iterdir()) == []


def test_a_log_in_memory_is_refused_with_advice() -> None:
    with pytest.raises(Refused, match=r"memory of one process.*pxrs\.spark\.frame"):
        open_log("memory:orders")


# ---- a schema of the user's ------------------------------------------------------------------------------------------


def test_a_schema_selects_columns() -> None:
    assert check_selection(pa.schema([("offset", pa.int64()), ("key", pa.binary())])) == ("offset", "key")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (pa.schema([("keys", pa.binary())]), "no column 'keys'.*'key'"),
        (pa.schema([("key", pa.string())]), "column 'key' is binary in a queue, and string"),
        (pa.schema([("key", pa.binary()), ("key", pa.binary())]), "'key' is asked for twice"),
        (pa.schema([pa.field("key", pa.binary(), nullable=False)]), "'key' is declared NOT NULL"),
        (pa.schema([]), "no column"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_by_column(schema: pa.Schema, said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        check_selection(schema)
