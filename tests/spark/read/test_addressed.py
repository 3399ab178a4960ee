"""Dead letters that were sent again for one group: in Spark too, the other groups do not see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import pxrs
from pxrs.errors import Refused
from pxrs.logs.base import ENTRY_SCHEMA
from pxrs.rules.addressing import ONLY_FOR, Reader
from pxrs.spark import Pipeline, frame
from pxrs.spark.read.frame import frame_of, frame_spec, table_of
from pxrs.spark.read.plan import check_ranges, slices_of
from pxrs.spark.stream.group_reader import GroupReader
from pxrs.spark.write.task import Routing, WriteJob, to_body
from tests.spark.stream.helpers import Checkpoint, Query, member_of

pytestmark = pytest.mark.xdist_group("spark")

ROWS = 400
HEADERS = ENTRY_SCHEMA.field("headers").type


def fill(queue: pxrs.Queue, rows: int) -> None:
    """Every tenth message is for group "billing" alone."""
    mark = {"key": ONLY_FOR, "value": Reader(queue.log.identity.id, "billing").mark(7)}
    other = {"key": "trace", "value": b"1"}
    for start in range(0, rows, 50):
        part = range(start, start + 50)
        headers = [[other, mark] if n % 10 == 0 else [other] if n % 3 else None for n in part]
        columns = {
            "timestamp": pa.array([0] * 50, ENTRY_SCHEMA.field("timestamp").type),
            "value": pa.array([b"%0200d" % n for n in part], pa.binary()),
            "headers": pa.array(headers, HEADERS),
            "id": pa.array([b"%016d" % n for n in part], ENTRY_SCHEMA.field("id").type),
        }
        arrays = [columns.get(field.name, pa.nulls(50, field.type)) for field in ENTRY_SCHEMA]
        queue.log.append({0: pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)})


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pxrs.Queue]:
    """A sealed part and one that is not."""
    settings = pxrs.Settings(segment_bytes=20_000, seal="manual")
    place = tmp_path_factory.mktemp("log")
    with pxrs.open(f"file:{place}/orders", partitions=1, settings=settings) as queue:
        fill(queue, ROWS)
        assert queue.log.seal(0)
        yield queue


def numbers(values: list[bytes]) -> list[int]:
    return sorted(map(int, values))


OWN = list(range(ROWS))
OTHERS = [n for n in OWN if n % 10]


@pytest.mark.parametrize(("group", "wanted"), [("billing", OWN), ("audit", OTHERS)])
def test_a_group_passes_over_what_is_for_another_one_however_it_reads(
    spark: SparkSession, queue: pxrs.Queue, group: str, wanted: list[int]
) -> None:
    ranges, reader = {0: (0, ROWS)}, Reader(queue.log.identity.id, group)
    spec = frame_spec("orders", ["value"], None, None).of_group(reader)
    mapped = frame_spec("orders", ["value"], lambda batch: batch, None).of_group(reader)
    wanted_ranges = check_ranges(queue.log, ranges)
    slices = slices_of(queue.log, wanted_ranges)
    for by_jvm_or_tasks in (spec, mapped):
        assert numbers([row.value for row in frame_of(spark, slices, by_jvm_or_tasks).collect()]) == wanted
    table, passed_over = table_of(queue.log, wanted_ranges, spec)
    assert numbers(table.column("value").to_pylist()) == wanted and passed_over == ROWS - len(wanted)
    assert len(frame(spark, queue, ranges).collect()) == ROWS, "who reads without a group sees everything"


def test_a_pipeline_of_another_group_counts_what_it_passes_over(spark: SparkSession, queue: pxrs.Queue) -> None:
    seen: list[bytes] = []

    def process(df: DataFrame) -> None:
        seen.extend(row.value for row in df.collect())

    pipeline = Pipeline(spark, queue, group="audit", process=process, columns=["value"])
    pipeline.run(until_end=True)
    assert numbers(seen) == OTHERS
    assert (pipeline.tally.passed_over, pipeline.tally.handled) == (ROWS - len(OTHERS), len(OTHERS))


@pytest.mark.parametrize("fast_rows", ["0", "1000"])
def test_a_stream_of_another_group_passes_over_it_in_tasks_and_in_the_source(tmp_path: Path, fast_rows: str) -> None:
    with pxrs.open(f"file:{tmp_path}/orders", partitions=1) as queue:
        fill(queue, 50)
        reader = member_of(tmp_path, **{"pxrs.fast.rows": fast_rows})
        try:
            rows = Query(reader, Checkpoint()).run()
            assert [offset for _, offset in rows] == [n for n in range(50) if n % 10]
            assert isinstance(reader, GroupReader) and reader._life is not None
            counted = reader._life.member.shares.tally().passed_over
            assert counted == (0 if fast_rows == "0" else 5), "what tasks pass over is not counted"
        finally:
            reader.stop()


def test_a_batch_write_refuses_the_mark_and_a_stream_drops_it() -> None:
    rows = pa.RecordBatch.from_arrays(
        [pa.array([b"v"]), pa.array([[{"key": ONLY_FOR, "value": b"x"}]], HEADERS)], names=["value", "headers"]
    )
    job = WriteJob(Routing("q", 1, "xxh3", "modulo"), ("value", "headers"), False)
    with pytest.raises(Refused, match=ONLY_FOR):
        to_body(rows, job)
    assert to_body(rows, job._replace(passes_on=True)).column("headers").to_pylist() == [[]]
    with pytest.raises(Refused, match="larger than this log takes"):
        to_body(pa.RecordBatch.from_pydict({"value": [b"x" * 1_000]}), job._replace(largest=999))
