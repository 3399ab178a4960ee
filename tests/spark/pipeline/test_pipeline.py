"""Pipelines in one Spark session: what a function is given, what is committed, what a sink shows, what fails."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import pxrs
from pxrs.errors import BadSetting, BeyondEnd, HandlerFailed, Refused, StopConsuming
from pxrs.model import Batch
from pxrs.sinks import ParquetSink, QueueSink
from pxrs.spark import Pipeline, frame
from tests.runtime.support import eventually

pytestmark = pytest.mark.xdist_group("spark")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # not importable there

SETTINGS = pxrs.Settings(lease_ms=30_000, backoff_ms=1, commit_interval_ms=50)
BY_TASKS = SETTINGS.with_(fast_rows=0)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[pxrs.Queue]:
    with pxrs.open(f"file:{tmp_path}/orders", partitions=4, settings=SETTINGS) as opened:
        send(opened, 200)
        yield opened


def send(queue: pxrs.Queue, count: int, first: int = 0) -> None:
    with queue.producer() as producer:
        for number in range(first, first + count):
            producer.send(f"acct-{number % 10}", str(number))


def values(directory: Path) -> Counter[int]:
    """What a reader that knows nothing of PXRS finds."""
    return Counter(ds.dataset(directory, format="parquet").to_table().column("number").to_pylist())


def numbers(df: DataFrame) -> DataFrame:
    return df.select(F.col("value").cast("string").cast("int").alias("number"), "partition", "offset")


def lag(queue: pxrs.Queue, group: str = "g") -> int:
    return queue.group(group).describe().total_lag


def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    number = pc.cast(pc.cast(batch.column("value"), pa.string()), pa.int32())
    return pa.RecordBatch.from_arrays([batch.column("offset"), pc.multiply(number, 2)], ["offset", "number"])


@pytest.mark.parametrize("settings", [SETTINGS, BY_TASKS], ids=["in the driver", "by tasks"])
def test_process_gets_every_message_once_with_the_batch_it_belongs_to(
    spark: SparkSession, queue: pxrs.Queue, settings: pxrs.Settings
) -> None:
    seen: Counter[tuple[int, int]] = Counter()

    def process(df: DataFrame, batch: Batch) -> None:
        rows = [(row.partition, row.offset) for row in df.collect()]
        assert len(rows) == batch.rows
        assert all(part.start <= o < part.end for p, o in rows for part in batch.ranges if part.partition == p)
        seen.update(rows)

    Pipeline(spark, queue, "g", process, member="A", settings=settings).run(until_end=True)
    assert seen == Counter((p, o) for p, end in queue.ends().items() for o in range(end))
    assert lag(queue) == 0
    assert {line.owner for line in queue.group("g").describe()} == {None}, "it has left cleanly"


@pytest.mark.parametrize("settings", [SETTINGS, BY_TASKS], ids=["in the driver", "by tasks"])
def test_map_arrow_then_process_then_parquet(
    spark: SparkSession, queue: pxrs.Queue, settings: pxrs.Settings, tmp_path: Path
) -> None:
    def process(df: DataFrame) -> DataFrame:
        return df.where("number % 4 = 0").select("number")

    sink = ParquetSink(tmp_path / "out")
    Pipeline(spark, queue, "g", process, double, sink, settings=settings).run(until_end=True)
    assert values(tmp_path / "out") == Counter(n * 2 for n in range(0, 200, 2))
    read = spark.read.parquet(str(tmp_path / "out"))
    assert read.count() == 100


@pytest.mark.parametrize("settings", [SETTINGS, BY_TASKS], ids=["in the driver", "by tasks"])
def test_map_arrow_sees_each_partition_in_order(
    spark: SparkSession, queue: pxrs.Queue, settings: pxrs.Settings, tmp_path: Path
) -> None:
    def order(batch: pa.RecordBatch) -> pa.RecordBatch:
        assert len(set(batch.column("partition").to_pylist())) <= 1
        offsets = batch.column("offset").to_pylist()
        assert offsets == sorted(offsets)
        return batch.select(["partition", "offset"])

    sink = ParquetSink(tmp_path / "out")
    Pipeline(spark, queue, "g", map_arrow=order, sink=sink, settings=settings).run(until_end=True)
    assert ds.dataset(tmp_path / "out", format="parquet").count_rows() == 200


def test_b27_until_end_does_not_pass_over_a_checkpoint_beyond_the_end(spark: SparkSession, queue: pxrs.Queue) -> None:
    Pipeline(spark, queue, "g", lambda df: None).run(until_end=True)
    queue.group("g").registry.seek({2: 5_000}, {})
    with pytest.raises(BeyondEnd, match="5000"):
        Pipeline(spark, queue, "g", lambda df: None).run(until_end=True)


def test_a_second_run_goes_on_where_the_first_has_stopped(
    spark: SparkSession, queue: pxrs.Queue, tmp_path: Path
) -> None:
    for first in (200, 250):
        pipeline = Pipeline(spark, queue, "g", numbers, sink=ParquetSink(tmp_path / "out"))
        pipeline.run(until_end=True)
        send(queue, 50, first)
    assert pipeline.tally.handled == 50
    assert values(tmp_path / "out") == Counter(range(250))


def test_new_messages_are_processed_while_it_runs_and_a_stop_is_clean(
    spark: SparkSession, queue: pxrs.Queue, tmp_path: Path
) -> None:
    with Pipeline(spark, queue, "g", numbers, sink=ParquetSink(tmp_path / "out"), member="A") as pipeline:
        eventually(lambda: queue.group("g").members() and lag(queue) == 0, "all is committed")
        send(queue, 30, 200)
        eventually(lambda: lag(queue) == 0, "the new ones too")
        assert pipeline.state == "running" and pipeline.partitions == [0, 1, 2, 3]
    assert values(tmp_path / "out") == Counter(range(230))
    assert pipeline.state == "stopped" and queue.group("g").members() == []


def test_queue_to_queue(spark: SparkSession, queue: pxrs.Queue, tmp_path: Path) -> None:
    def process(df: DataFrame) -> DataFrame:
        return df.select(
            "key", F.concat(F.lit("copy of "), F.col("value").cast("string")).cast("binary").alias("value")
        )

    with pxrs.open(f"file:{tmp_path}/copies", partitions=3) as copies:
        Pipeline(spark, queue, "g", process, sink=QueueSink(copies)).run(until_end=True)
        found = [m.text for p in range(3) for m in copies.read(p, 0, 1000)]
        assert Counter(found) == Counter(f"copy of {n}" for n in range(200))
        by_key: dict[bytes | None, list[int]] = {}
        for p in range(3):
            for m in copies.read(p, 0, 1000):
                by_key.setdefault(m.key, []).append(int(m.text.removeprefix("copy of ")))
        assert all(numbers == sorted(numbers) for numbers in by_key.values())


@pytest.mark.parametrize("settings", [SETTINGS, BY_TASKS], ids=["in the driver", "by tasks"])
def test_a_poisoned_message_is_found_and_kept(spark: SparkSession, settings: pxrs.Settings, tmp_path: Path) -> None:
    def fussy(batch: pa.RecordBatch) -> pa.RecordBatch:
        if b"17" in batch.column("value").to_pylist():
            raise ValueError("not 17")
        return double(batch)

    queue = pxrs.open(f"file:{tmp_path}/few", partitions=2, settings=SETTINGS)
    send(queue, 24)

    sink = ParquetSink(tmp_path / "out")
    pipeline = Pipeline(spark, queue, "g", map_arrow=fussy, sink=sink, settings=settings.with_(tries=1))
    pipeline.run(until_end=True)
    assert values(tmp_path / "out") == Counter(n * 2 for n in range(24) if n != 17)
    letters = list(queue.group("g").dead_letters)
    assert [letter.value for letter in letters] == [b"17"]
    assert "not 17" in letters[0].cause + letters[0].stack
    assert pipeline.tally.dead_lettered == 1
    queue.close()


def test_a_function_that_executors_cannot_load_stops_the_pipeline_and_blames_no_message(
    spark: SparkSession, queue: pxrs.Queue
) -> None:
    class Homeless:
        """What the driver can pickle and no executor can load."""

        def __reduce__(self) -> tuple[Any, ...]:
            return __import__, ("nowhere_to_be_found",)

        def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            return double(batch)

    pipeline = Pipeline(spark, queue, "g", map_arrow=Homeless(), settings=BY_TASKS.with_(tries=1))
    with pytest.raises(HandlerFailed, match="nowhere_to_be_found"):
        pipeline.run()
    assert list(queue.group("g").dead_letters) == [] and lag(queue) == 200


def test_output_that_no_sink_can_take_blames_no_message(spark: SparkSession, queue: pxrs.Queue, tmp_path: Path) -> None:
    def strange(df: DataFrame) -> DataFrame:
        return df.selectExpr("interval 1 month as i")

    pipeline = Pipeline(
        spark, queue, "g", strange, sink=ParquetSink(tmp_path / "out"), settings=SETTINGS.with_(tries=1)
    )
    with pytest.raises(HandlerFailed, match="no message is to blame"):
        pipeline.run()
    assert list(queue.group("g").dead_letters) == [] and lag(queue) == 200


def test_stop_consuming_in_a_task_leaves_too(spark: SparkSession, queue: pxrs.Queue) -> None:
    def enough(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows:
            raise StopConsuming("enough")
        return batch.select(["offset"])

    Pipeline(spark, queue, "g", map_arrow=enough, settings=BY_TASKS.with_(tries=1)).run()
    assert list(queue.group("g").dead_letters) == [] and lag(queue) == 200


def test_the_policy_stop_raises_and_names_the_message(spark: SparkSession, queue: pxrs.Queue) -> None:
    def process(df: DataFrame) -> None:
        if df.where("value = '77'").count():
            raise ValueError("not 77")

    pipeline = Pipeline(spark, queue, "g", process, settings=SETTINGS.with_(tries=1, on_failure="stop"))
    with pytest.raises(HandlerFailed, match=r"partition \d offset \d+.*not 77"):
        pipeline.run()
    assert queue.group("g").members() == []


def test_stop_consuming_in_process_leaves(spark: SparkSession, queue: pxrs.Queue) -> None:
    def enough(df: DataFrame) -> None:
        raise StopConsuming

    Pipeline(spark, queue, "g", enough).run()
    assert lag(queue) == 200


def test_a_backfill_touches_no_group_and_shows_all_or_nothing(
    spark: SparkSession, queue: pxrs.Queue, tmp_path: Path
) -> None:
    start, end = {0: 2, 1: 0}, {0: 5, 1: 3}
    sink = ParquetSink(tmp_path / "out")
    Pipeline(spark, queue, process=numbers, sink=sink, start=start, end=end).run()
    rows = ds.dataset(tmp_path / "out", format="parquet").to_table().select(["partition", "offset"]).to_pylist()
    assert Counter((r["partition"], r["offset"]) for r in rows) == Counter(
        [(0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (1, 2)]
    )
    assert queue.groups() == []

    def fail_late(df: DataFrame, batch: Batch) -> DataFrame:
        if batch.number > 1:
            raise ValueError("late")
        return numbers(df)

    settings = SETTINGS.with_(max_batch_rows=50, tries=1, on_failure="stop")
    broken = Pipeline(spark, queue, process=fail_late, sink=ParquetSink(tmp_path / "none"), settings=settings)
    with pytest.raises(HandlerFailed):
        broken.run()
    assert not list((tmp_path / "none").rglob("*.parquet"))


def test_a_backfill_of_everything(spark: SparkSession, queue: pxrs.Queue) -> None:
    counted: list[int] = []
    Pipeline(spark, queue, process=lambda df: counted.append(df.count())).run()
    assert sum(counted) == 200 and queue.groups() == []


def test_a_queue_in_memory_serves_for_tests(spark: SparkSession) -> None:
    with pxrs.open("memory:pipeline-test", partitions=2) as queue:
        send(queue, 20)
        counted: list[int] = []
        Pipeline(spark, queue, "g", lambda df: counted.append(df.count())).run(until_end=True)
        assert sum(counted) == 20


def counted(pipeline: Pipeline) -> dict[str, float]:
    return {sample.metric.name: sample.value for sample in pipeline.meter.samples()}


def test_events_metrics_and_members_tell_what_happens(spark: SparkSession, queue: pxrs.Queue) -> None:
    heard: list[tuple[str, dict[str, Any]]] = []
    done = threading.Event()

    def process(df: DataFrame) -> None:
        df.count()
        done.set()

    with Pipeline(spark, queue, "g", process, member="A", report=lambda k, f: heard.append((k, dict(f)))) as pipeline:
        assert done.wait(60)
        eventually(lambda: lag(queue) == 0, "committed")
        line = queue.group("g").members()[0]
        # They are counted right behind the commit.
        eventually(lambda: counted(pipeline)["pxrs_handled_total"] == 200, "counted")
        assert counted(pipeline)["pxrs_batches_total"] >= 1
        assert (line.engine, line.app) == ("spark", spark.sparkContext.applicationId)
    batches = [facts for kind, facts in heard if kind == "batch"]
    assert sum(facts["rows"] for facts in batches) == 200
    assert batches[-1]["outcome"] == "committed" and batches[-1]["lag"] == 0
    assert list(pipeline.recent) == batches


def test_what_cannot_be_meant_is_refused_at_once(spark: SparkSession, queue: pxrs.Queue, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="something to do"):
        Pipeline(spark, queue, "g")
    with pytest.raises(BadSetting, match="no column 'valeu'"):
        Pipeline(spark, queue, "g", numbers, columns=["valeu"])
    with pytest.raises(BadSetting, match=r"no type to \['n'\].*schema="):
        Pipeline(spark, queue, "g", map_arrow=lambda b: pa.RecordBatch.from_pydict({"n": b["offset"].to_pylist()}))
    with pytest.raises(BadSetting, match="ParquetSink"):
        Pipeline(spark, queue, "g", numbers, sink="./out")  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match="must be a function"):
        Pipeline(spark, queue, "g", "numbers")  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match="is behind end"):
        Pipeline(spark, queue, None, numbers, start={0: 9}, end={0: 3})
    with pytest.raises(BadSetting, match="name the same"):
        Pipeline(spark, queue, None, numbers, start={0: 0}, end={1: 3})
    with pytest.raises(BadSetting, match="is no queue"):
        frame(spark, "file:./orders", {0: (0, 1)})  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match="queue = 5: must be an open queue"):
        Pipeline(spark, 5, "g", numbers)  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match=r"settings = 5: must be pxrs\.Settings"):
        Pipeline(spark, queue, "g", numbers, settings=5)  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match="report = 5: must be a function"):
        Pipeline(spark, queue, "g", numbers, report=5)  # type: ignore[arg-type]
    for wait in (Pipeline(spark, queue, "g", numbers).wait, Pipeline(spark, queue, "g", numbers).stop):
        with pytest.raises(BadSetting, match="timeout = 'x': must be a number of seconds"):
            wait("x")  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match="backfill"):
        Pipeline(spark, queue, "g", numbers, end="latest")
    with pytest.raises(Refused):
        Pipeline(spark, queue, "g", numbers, start="tomorrow")
    with pytest.raises(BadSetting, match="target_batch_ms"):
        Pipeline(spark, queue, "g", numbers, settings=SETTINGS.with_(target_batch_ms=60_000))
    assert queue.groups() == [], "and nothing was created"


def test_a_frame_that_nobody_writes_is_an_error(spark: SparkSession, queue: pxrs.Queue) -> None:
    with pytest.raises(HandlerFailed, match="no sink="):
        Pipeline(spark, queue, "g", numbers).run()
    assert lag(queue) == 200
