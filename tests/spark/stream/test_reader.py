"""The contract between Spark and a stream that reads alone: offsets, limits, restarts, losses. No Spark runs here."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.serializers import SpecialLengths
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as SparksOwn
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.streaming.python_streaming_source_runner import PREFETCHED_RECORDS_NOT_FOUND, partitions_func

import pxrs
from pxrs.errors import BadSetting, Expired, Mismatch, PxrsError
from pxrs.spark.read.columns import schema_of
from pxrs.spark.read.options import check_read, parse, parse_stream
from pxrs.spark.read.source import DefaultSource
from pxrs.spark.read.task import TaskReader
from pxrs.spark.spark_internals import VARIABLE
from pxrs.spark.stream.plain_reader import StreamReader
from tests.spark.helpers import EACH, PARTITIONS, messages, open_orders
from tests.spark.stream.helpers import COLUMNS, Checkpoint, Query, member_of, reader_of

EVERYTHING = [(p, offset) for p in range(PARTITIONS) for offset in range(EACH)]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[pxrs.Queue]:
    with open_orders(tmp_path) as queue:
        yield queue


def test_a_new_stream_begins_at_the_end_by_default(queue: pxrs.Queue, tmp_path: Path) -> None:
    late = Query(reader_of(tmp_path), Checkpoint())
    assert late.run() == []
    queue.log.append({1: messages(1, range(EACH, EACH + 2))})
    assert late.run() == [(1, EACH), (1, EACH + 1)]
    assert (
        Query(reader_of(tmp_path, startingOffsets="earliest"), Checkpoint()).run()[: EACH + 1] == EVERYTHING[: EACH + 1]
    )
    some = '{"orders": {"0": 24, "1": -1, "2": -2, "3": 25}}'
    found = Query(reader_of(tmp_path, startingOffsets=some), Checkpoint()).run()
    assert found == [(0, 24), *((2, offset) for offset in range(EACH))]


def test_a_restart_goes_on_where_sparks_checkpoint_is(queue: pxrs.Queue, tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    first = Query(reader_of(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="30"), checkpoint)
    rows = [*first.run(), *first.run()]
    assert first.plan()
    planned = first.execute()
    again = Query(reader_of(tmp_path, startingOffsets="latest", maxOffsetsPerTrigger="100"), checkpoint)
    assert again.run() == planned, "the batch that was planned, before any other"
    assert sorted(rows + planned + again.run()) == EVERYTHING


def test_limits_are_fair_and_spark_may_lift_them(queue: pxrs.Queue, tmp_path: Path) -> None:
    queue.log.append({3: messages(3, range(EACH, EACH + 300))})
    reader = reader_of(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="80")
    assert reader.getDefaultReadLimit() == ReadMaxRows(80)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(80))["orders"] == {str(p): 20 for p in range(PARTITIONS)}
    assert reader.latestOffset(start, ReadMaxRows(120))["orders"] == {"0": 25, "1": 25, "2": 25, "3": 45}
    assert reader.latestOffset(start, ReadAllAvailable())["orders"]["3"] == EACH + 300


def test_a_stream_waits_for_enough_messages_but_not_for_ever(queue: pxrs.Queue, tmp_path: Path) -> None:
    few = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "101"}
    patient = reader_of(tmp_path, **few, maxTriggerDelay="1h")
    assert patient.getDefaultReadLimit() == ReadMinRows(101)
    start = patient.initialOffset()
    assert patient.latestOffset(start, ReadMinRows(101)) == start
    assert patient.latestOffset(start, ReadAllAvailable()) != start, "Spark wants what there is"
    hasty = reader_of(tmp_path, **few, maxTriggerDelay="0s")
    assert hasty.latestOffset(hasty.initialOffset(), ReadMinRows(101)) != start
    ending = reader_of(tmp_path, **few, maxTriggerDelay="1h")
    ending.prepareForTriggerAvailableNow()
    assert ending.latestOffset(ending.initialOffset(), ReadMinRows(101)) != start, "it would end with nothing"


def test_available_now_ends_where_the_log_ended_at_its_start(queue: pxrs.Queue, tmp_path: Path) -> None:
    query = Query(reader_of(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="70"), Checkpoint())
    query.reader.prepareForTriggerAvailableNow()
    queue.log.append({0: messages(0, range(EACH, EACH + 9))})
    assert sorted(query.run() + query.run()) == EVERYTHING
    assert query.run() == []


def test_assigned_partitions_only_and_long_ranges_in_several_tasks(queue: pxrs.Queue, tmp_path: Path) -> None:
    options = {"assign": '{"orders": [2]}', "startingOffsets": "earliest", "maxRecordsPerPartition": "10"}
    query = Query(reader_of(tmp_path, **options), Checkpoint())
    assert query.plan()
    assert len(query.reader.partitions(query.offset(-1), query.offset(0))) == 3
    assert query.execute() == [(2, offset) for offset in range(EACH)]


def handed(query: Query) -> tuple[int, list[tuple[int, int]] | None]:
    """What Spark's own code for the source process makes of a plan: how many tasks, and the rows that come with it."""
    asked, answer = BytesIO(), BytesIO()
    for text in (json.dumps(query.offset(batch)).encode() for batch in (-1, 0)):
        asked.write(len(text).to_bytes(4, "big") + text)
    asked.seek(0)
    partitions_func(query.reader, DefaultSource({}), from_arrow_schema(schema_of(COLUMNS)), 10_000, asked, answer)
    answer.seek(0)
    tasks = _number(answer)
    for _ in range(tasks):
        answer.read(_number(answer))
    if _number(answer) == PREFETCHED_RECORDS_NOT_FOUND:
        return tasks, None
    assert _number(answer) == SpecialLengths.START_ARROW_STREAM
    rows = pa.ipc.open_stream(answer).read_all()
    return tasks, sorted(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


def _number(answer: BytesIO) -> int:
    return int.from_bytes(answer.read(4), "big", signed=True)


def test_a_small_batch_is_read_here_and_goes_to_spark_with_its_plan(
    queue: pxrs.Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned(reader: StreamReader) -> Query:
        query = Query(reader, Checkpoint())
        assert query.plan()
        return query

    quick = planned(reader_of(tmp_path, startingOffsets="earliest"))
    assert handed(quick) == (1, EVERYTHING)
    assert not isinstance(quick.reader, SparksOwn) and quick.reader.getCache({}, {}) is None, "handed over once"
    assert quick.execute() == EVERYTHING, "a task can read them too, where they are lost"
    assert handed(planned(reader_of(tmp_path, startingOffsets="earliest", minPartitions="8"))) == (8, None)
    assert handed(planned(reader_of(tmp_path, startingOffsets="earliest", maxRecordsPerPartition="9"))) == (12, None)
    member = planned(member_of(tmp_path, **{"pxrs.fast.rows": "99"}))
    assert handed(member) == (PARTITIONS, None)
    member.reader.stop()
    for variable, value in (("PXRS_FAST_ROWS", "0"), (VARIABLE, "1")):
        with monkeypatch.context() as patched:
            patched.setenv(variable, value)
            assert handed(planned(reader_of(tmp_path, startingOffsets="earliest"))) == (PARTITIONS, None)
    ends = queue.ends()
    queue.log.append({p: messages(p, range(end, end + 9_999)) for p, end in ends.items() if p < 2})
    assert handed(planned(reader_of(tmp_path, startingOffsets="earliest"))) == (PARTITIONS, None)


def test_b76_the_offset_never_goes_back_and_is_the_same_when_nothing_is_new(queue: pxrs.Queue, tmp_path: Path) -> None:
    reader = reader_of(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="7")
    before = reader.initialOffset()
    for _ in range(40):
        after = reader.latestOffset(before, reader.getDefaultReadLimit())
        assert all(after["orders"][p] >= before["orders"][p] for p in before["orders"])
        grown = sum(after["orders"].values()) - sum(before["orders"].values())
        assert grown == sum(part.end - part.start for task in reader.partitions(before, after) for part in task.value)
        assert (grown == 0) == (after == before)
        before = after
    assert before["orders"] == {str(p): EACH for p in range(PARTITIONS)}
    assert reader.reportLatestOffset() == before


def test_b79_a_checkpoint_of_another_queue_or_of_other_partitions_is_refused(queue: pxrs.Queue, tmp_path: Path) -> None:
    offset = reader_of(tmp_path, startingOffsets="earliest").initialOffset()
    one = reader_of(tmp_path, assign='{"orders": [1]}')
    with pytest.raises(Mismatch, match=r"has the partitions \[0, 1, 2, 3\] .* and \[1\] are"):
        one.latestOffset(offset, ReadAllAvailable())
    (tmp_path / "other").mkdir()
    with pxrs.open(f"file:{tmp_path}/other/orders", partitions=8):
        other = reader_of(tmp_path / "other")
        for question in (
            lambda: other.latestOffset(offset, ReadAllAvailable()),
            lambda: other.partitions(offset, other.initialOffset()),
        ):
            with pytest.raises(Mismatch, match="created anew, with another number of partitions"):
                question()


def test_lost_messages_stop_the_stream_or_are_passed_over(tmp_path: Path) -> None:
    settings = pxrs.Settings(segment_bytes=1, seal="manual")
    with pxrs.open(f"file:{tmp_path}/orders", partitions=1, settings=settings) as queue:
        for first in range(0, 30, 10):
            queue.log.append({0: messages(0, range(first, first + 10))})
        strict = reader_of(tmp_path, startingOffsets="earliest")
        start = strict.initialOffset()
        assert queue.log.trim(0, 20) == 20
        with pytest.raises(Expired, match="offsets 0 to 19 are no longer stored"):
            strict.latestOffset(start, ReadAllAvailable())
        lenient = reader_of(tmp_path, failOnDataLoss="false")
        end = lenient.latestOffset(start, ReadAllAvailable())
        assert end["orders"] == {"0": 30}
        [task] = lenient.partitions(start, end)
        assert [(part.start, part.end) for part in task.value] == [(20, 30)]


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endingOffsets": "latest"}, "'endingOffsets' is not used here: a stream has no end"),
        ({"maxOffsetPerTrigger": "5"}, "'maxOffsetPerTrigger' is not known .did you mean 'maxOffsetsPerTrigger'"),
        ({"maxOffsetsPerTrigger": "0"}, "'maxOffsetsPerTrigger' = '0': a whole number from 1"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "'minOffsetsPerTrigger' = 9 is above"),
        ({"maxTriggerDelay": "soon"}, "'maxTriggerDelay' = 'soon': a time such as"),
        ({"pxrs.registry": "sqlite:x"}, "need 'pxrs.group.id'"),
        ({"pxrs.lease.ms": "5000"}, "need 'pxrs.group.id'"),
        ({"pxrs.group.id": " "}, "'pxrs.group.id' = ' ': must not be empty"),
        ({"pxrs.group.id": "g", "assign": '{"orders": [0]}'}, "'assign' is for streams that read alone"),
        ({"pxrs.group.id": "g", "pxrs.lease.ms": "long"}, "'pxrs.lease.ms' = 'long'"),
        ({"startingOffsets": "newest"}, "'startingOffsets' = 'newest': JSON such as"),
    ],
)
def test_a_wrong_option_of_a_stream_is_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        parse_stream({"path": "file:x", **options})


def test_a_group_begins_at_the_beginning_and_takes_settings_with_dots() -> None:
    found = parse_stream({"path": "file:x", "pxrs.group.id": "g", "pxrs.lease.ms": "5000", "pxrs.max.batch.ms": "9000"})
    assert found.read.start.value == -2 and parse_stream({"path": "file:x"}).read.start.value == -1
    assert found.settings == {"lease_ms": 5000, "progress_limit_ms": 9000}


def test_at_load_it_is_not_known_yet_whether_it_is_a_stream() -> None:
    for options in ({"startingOffsets": "latest"}, {"pxrs.group.id": "g"}, {"endingOffsets": "latest"}, {}):
        assert check_read({"path": "file:x", **options}).log == "file:x"
    with pytest.raises(BadSetting, match="no part in a group; readStream"):
        parse({"path": "file:x", "pxrs.group.id": "g"})
    with pytest.raises(PxrsError, match="'maxOffsetsPerTrigger' = 'x'"):
        check_read({"path": "file:x", "maxOffsetsPerTrigger": "x"})


def test_no_address_travels_to_the_tasks(queue: pxrs.Queue, tmp_path: Path) -> None:
    secret = {"pxrs.group.id": "g", "pxrs.registry": f"sqlite:{tmp_path}/secret-registry.db"}
    source = DefaultSource({"path": f"file:{tmp_path}/./orders", **secret})
    reader = source.streamReader(from_arrow_schema(schema_of(COLUMNS)))
    sent = pickle.dumps((reader, source))
    assert b"secret" not in sent and b"sqlite" not in sent and b"./orders" not in sent
    assert isinstance(pickle.loads(sent)[0], TaskReader)
    assert not (tmp_path / "secret-registry.db").exists(), "to make a reader joins nothing"
