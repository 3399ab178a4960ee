"""Streaming queries in a real Spark: with Spark's own sinks, two in one group, fenced into sinks, and restarted."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import pxrs
from pxrs.errors import BadSetting
from pxrs.model import Batch
from pxrs.sinks import ParquetSink, QueueSink
from pxrs.spark import fenced
from pxrs.testing.servers.postgres import PostgresServer
from tests.sinks.sql.support import SqlPlace
from tests.spark.helpers import EACH, PARTITIONS, messages, open_orders
from tests.spark.stream.helpers import begin, checkpoints, eventually, offsets_in, owners

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

EVERYTHING = [(p, offset) for p in range(PARTITIONS) for offset in range(EACH)]
GROUP = {"pxrs.group.id": "g", "pxrs.lease.ms": 10_000, "pxrs.poll.ms": 200, "includeId": "true"}
PATIENCE = 120
Row = tuple[int, int]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[pxrs.Queue]:
    with open_orders(tmp_path) as queue:
        yield queue


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Callable[..., DataFrame]:
    def stream(**options: Any) -> DataFrame:
        found = spark.readStream.format("pxrs").options(**options)
        return found.load(f"file:{tmp_path}/orders")

    return stream


def run(frame: DataFrame, each: Callable[..., Any], checkpoint: Path, mode: str = "append") -> StreamingQuery:
    """Work off what is available now."""
    writer = frame.writeStream.outputMode(mode).foreachBatch(each).option("checkpointLocation", str(checkpoint))
    query = begin(writer.trigger(availableNow=True))
    assert query.awaitTermination(PATIENCE), "the query does not end"
    return query


def places(frame: DataFrame) -> list[Row]:
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def add(queue: pxrs.Queue, rows: int = 1) -> list[Row]:
    """So many more messages in each partition."""
    ends = queue.ends()
    queue.log.append({p: messages(p, range(end, end + rows)) for p, end in ends.items()})
    return [(p, offset) for p, end in ends.items() for offset in range(end, end + rows)]


# ---- without a group -------------------------------------------------------------------------------------------------


def to_files(frame: DataFrame, directory: Path) -> StreamingQuery:
    writer = frame.select("partition", "offset", "value").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", f"{directory}/cp").trigger(availableNow=True)
    query = begin(writer, f"{directory}/out")
    assert query.awaitTermination(PATIENCE), "the query does not end"
    return query


def test_b75_a_stream_that_reads_alone_goes_on_and_a_gap_in_its_checkpoint_is_loud(
    queue: pxrs.Queue, stream: Callable[..., DataFrame], spark: SparkSession, tmp_path: Path
) -> None:
    first = to_files(stream(startingOffsets="earliest", maxOffsetsPerTrigger=60), tmp_path)
    assert [progress["numInputRows"] for progress in first.recentProgress][:2] == [60, 40]
    assert offsets_in(tmp_path / "cp")[0]["orders"] == {"0": 15, "1": 15, "2": 15, "3": 15}
    added = add(queue)
    to_files(stream(minPartitions=4), tmp_path)  # read by tasks, not by the source process
    assert places(spark.read.parquet(f"{tmp_path}/out")) == sorted(EVERYTHING + added)
    (tmp_path / "cp" / "offsets" / "1").unlink()
    (tmp_path / "cp" / "offsets" / ".1.crc").unlink()
    add(queue)
    with pytest.raises(StreamingQueryException, match="batch 1 doesn't exist"):
        to_files(stream(), tmp_path)
    assert places(spark.read.parquet(f"{tmp_path}/out")) == sorted(EVERYTHING + added), "nothing is guessed"


# ---- two queries in one group ----------------------------------------------------------------------------------------


def test_two_queries_share_a_group_and_one_takes_over(
    queue: pxrs.Queue, stream: Callable[..., DataFrame], tmp_path: Path
) -> None:
    done: list[tuple[str, int, Row]] = []

    def start(member: str) -> StreamingQuery:
        def note(df: DataFrame, batch: int) -> None:
            done.extend((member, batch, place) for place in places(df))

        frame = stream(**GROUP, **{"pxrs.member.id": member})
        checkpoint = str(tmp_path / f"cp-{member}")
        return begin(frame.writeStream.foreachBatch(note).option("checkpointLocation", checkpoint))

    def all_done() -> bool:
        return checkpoints(queue) == list(queue.ends().values())

    first = start("A")
    eventually(lambda: owners(queue) == ["A"] * PARTITIONS and all_done(), "A has done what there was", PATIENCE)
    second = start("B")
    eventually(lambda: add(queue) and sorted(map(str, owners(queue))) == ["A", "A", "B", "B"], "both own", PATIENCE)
    add(queue, 3)
    eventually(all_done, "both work", PATIENCE)
    assert {member for member, _, _ in done} == {"A", "B"}
    eventually(lambda: second.lastProgress is not None and _source(second)["@lag"] == 0, "no lag", PATIENCE)
    assert _source(second)["@owned"] == [p for p, owner in enumerate(owners(queue)) if owner == "B"]
    first.stop()
    eventually(lambda: owners(queue) == ["B"] * PARTITIONS, "B takes over at once", PATIENCE)
    add(queue, 2)
    eventually(all_done, "B does the rest", PATIENCE)
    second.stop()
    eventually(lambda: owners(queue) == [None] * PARTITIONS, "nobody is left", PATIENCE)
    times = Counter(place for _, _, place in done)
    assert set(times) == {(p, offset) for p, end in queue.ends().items() for offset in range(end)}, "no loss"
    assert [place for place, count in times.items() if count > 1] == [], "nothing twice: every hand-over was clean"
    for partition in range(PARTITIONS):
        offsets = [offset for _, _, (p, offset) in done if p == partition]
        assert offsets == sorted(offsets), "in order, whoever did it"


def _source(query: StreamingQuery) -> dict[str, Any]:
    """What StreamingQueryProgress says of the source."""
    progress = query.lastProgress
    assert progress is not None
    found: dict[str, Any] = json.loads(progress["sources"][0]["latestOffset"])
    return found


# ---- fenced ----------------------------------------------------------------------------------------------------------


def shown(directory: Path) -> list[Row]:
    table = ds.dataset(directory, format="parquet").to_table(columns=["partition", "offset"])
    return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def test_b77_a_batch_that_lost_a_partition_shows_nothing_and_is_done_again(
    queue: pxrs.Queue, stream: Callable[..., DataFrame], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Batch] = []

    def process(df: DataFrame, batch: Batch) -> DataFrame:
        seen.append(batch)
        if len(seen) == 2:
            partition = batch.ranges[0].partition
            queue.group("g").seek({partition: batch.ranges[0].start})
        return df.select("partition", "offset", "epoch", "value")

    run(stream(**GROUP, maxOffsetsPerTrigger=40), fenced(process, sink=ParquetSink(tmp_path / "out")), tmp_path / "cp")
    assert shown(tmp_path / "out") == EVERYTHING, "each message once"
    again = {part.partition: part for batch in seen[2:] for part in batch.ranges if part.start == 10}
    assert set(again) == set(range(PARTITIONS)), "all of the refused batch was planned again"
    lost = seen[1].ranges[0]
    assert again[lost.partition].epoch > lost.epoch and "is not committed" in caplog.text
    assert [batch.number for batch in seen] == list(range(len(seen)))
    assert checkpoints(queue) == [EACH] * PARTITIONS
    assert len({(p.partition, p.epoch) for batch in seen for p in batch.ranges}) == PARTITIONS + 1


def test_b74_a_query_that_failed_in_a_batch_has_the_same_rows_in_it_when_it_goes_on(
    queue: pxrs.Queue, stream: Callable[..., DataFrame], tmp_path: Path
) -> None:
    rows: dict[tuple[int, str], list[Row]] = {}
    copied = pxrs.open(f"file:{tmp_path}/copy", partitions=2)

    def process(df: DataFrame, batch: Batch) -> DataFrame:
        rows[batch.number, batch.owner.inc] = places(df)
        if len(rows) == 2:
            raise RuntimeError("the program is broken")
        return df

    frame = stream(**GROUP, **{"pxrs.fast.rows": 0}, maxOffsetsPerTrigger=40)  # read by tasks
    each = fenced(process, sink=QueueSink(copied))
    with pytest.raises(StreamingQueryException, match="the program is broken"):
        run(frame, each, tmp_path / "cp")
    eventually(lambda: owners(queue) == [None] * PARTITIONS, "the failed query has left", PATIENCE)
    add(queue)
    run(frame, each, tmp_path / "cp")
    [(failed, again)] = [
        (rows[one], rows[other]) for one in rows for other in rows if one[0] == other[0] and list(rows).index(one) == 1
        and one != other
    ]  # fmt: skip
    assert failed == again and len(failed) == 40
    with copied:
        values = [message.value for p in range(2) for message in copied.read(p, 0, 1_000)]
    assert len(values) == len(set(values)) == len(EVERYTHING) + PARTITIONS, "each message was copied once"


def test_rows_and_checkpoints_in_one_transaction_of_the_registrys_own_database(
    queue: pxrs.Queue, stream: Callable[..., DataFrame], tmp_path: Path, postgres_server: PostgresServer
) -> None:
    place = SqlPlace(postgres_server, "streamed")
    frame = stream(**GROUP, **{"pxrs.registry": place.registry}, maxOffsetsPerTrigger=60)
    each = fenced(lambda df: df.select("partition", "offset"), sink=place.sink(create=True))
    run(frame, each, tmp_path / "cp")
    assert sorted(tuple(row) for row in place.rows()) == EVERYTHING
    assert place.staged() == 0, "the rows had no need to wait beside the table"
    with place.opened(f"file:{tmp_path}/orders") as elsewhere:
        assert checkpoints(elsewhere) == [EACH] * PARTITIONS
    place.close()
    assert "g" not in queue.groups(), "the registry beside the log was not used"


def test_a_query_with_state_and_a_group_is_warned_of(
    queue: pxrs.Queue,
    stream: Callable[..., DataFrame],
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By ``fenced``, which sees the plan."""
    counts: list[int] = []
    frame = stream(**GROUP).groupBy("partition").count()
    with caplog.at_level(logging.WARNING, logger="pxrs.stream"):
        run(frame, fenced(lambda df: counts.append(df.count())), tmp_path / "cp", mode="update")
    assert counts == [PARTITIONS]
    assert "has a group (g) and keeps state (Aggregate)" in caplog.text and "when a partition moves" in caplog.text


def test_fenced_needs_a_group(queue: pxrs.Queue, stream: Callable[..., DataFrame], tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match=r"one pxrs source that has pxrs\.group\.id; this one has 0"):
        run(stream(startingOffsets="earliest"), fenced(lambda df: None), tmp_path / "cp")


def test_fenced_with_a_sink_refuses_other_sources_beside_the_group(
    queue: pxrs.Queue, stream: Callable[..., DataFrame], tmp_path: Path
) -> None:
    both = stream(**GROUP).select("key", "value").union(stream(startingOffsets="earliest").select("key", "value"))
    with pytest.raises(StreamingQueryException, match="reads nothing but the group's queue"):
        run(both, fenced(sink=ParquetSink(str(tmp_path / "out"))), tmp_path / "cp")
    assert set(checkpoints(queue)) == {0}


def test_fenced_needs_something_to_do() -> None:
    with pytest.raises(BadSetting, match="something to do"):
        fenced()
    with pytest.raises(BadSetting, match="must be a function"):
        fenced("process")  # type: ignore[arg-type]  # what is tested
    with pytest.raises(BadSetting, match="must be a sink"):
        fenced(sink="./out")  # type: ignore[arg-type]  # what is tested
