"""The queue sink: what stands in the target queue, whoever publishes a batch and however often."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pxrs
from pxrs.errors import BadSetting, Damaged, Refused, Unavailable
from pxrs.model import Grant, Owner, Range
from pxrs.rules.addressing import ONLY_FOR
from pxrs.runtime.queue.queue import Queue
from pxrs.sinks import QueueSink, output
from pxrs.sinks.staged import Note
from tests.sinks.support import GROUP, LOG, QUEUE, batch_of, output_of
from tests.sinks.test_parquet import Frame

BATCH = batch_of(Range(2, 0, 40, 1), Range(5, 0, 30, 3))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Queue]:
    with pxrs.open(f"file:{tmp_path}/target", partitions=4) as queue:
        yield queue


def all_of(queue: Queue) -> list[pxrs.Message]:
    return [message for p in range(queue.partitions) for message in queue.read(p, 0, limit=100_000)]


def keyed(count: int, **more: Any) -> pa.Table:
    return pa.table({"key": [f"k{n % 7}" for n in range(count)], "value": [b"%06d" % n for n in range(count)], **more})


# ---- routing, ids, order --------------------------------------------------------------------------------------------


def test_messages_go_where_a_producer_would_send_them_in_their_order(target: Queue, tmp_path: Path) -> None:
    table = keyed(25_000)
    sink = QueueSink(target)
    sink.publish(sink.stage(BATCH, table))
    with pxrs.open(f"file:{tmp_path}/sent", partitions=4) as other:
        with other.producer() as producer:
            producer.send_batch(table)
        for partition in range(4):
            sent, found = other.read(partition, 0, 100_000), target.read(partition, 0, 100_000)
            assert [(m.key, m.value) for m in found] == [(m.key, m.value) for m in sent]
    assert len({message.id for message in all_of(target)}) == 25_000


def test_every_column_of_a_message_is_kept_and_those_of_its_source_are_left_out(target: Queue) -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = keyed(
        1,
        headers=pa.array([[{"key": "source", "value": b"web"}]], kind),
        timestamp=pa.array([moment], pa.timestamp("us", "UTC")),
        tenant=["acme"],
        **{name: [999] for name in ("topic", "partition", "offset", "timestampType", "id", "epoch")},
    )
    sink = QueueSink(target)
    sink.publish(sink.stage(BATCH, table))
    (found,) = all_of(target)
    assert (found.key, found.value, found.headers, found.timestamp, found.tenant) == (
        b"k0", b"000000", {"source": b"web"}, moment, "acme"
    )  # fmt: skip


def test_messages_without_keys_are_spread_the_same_way_by_every_publisher(target: Queue) -> None:
    sink = QueueSink(target)
    sink.publish(sink.stage(BATCH, pa.table({"value": [b"%d" % n for n in range(8)]})))
    assert target.ends() == dict.fromkeys(range(4), 2)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"key": ["a"]}), "needs a column 'value'"),
        (pa.table({"value": [1]}), "must be binary or string"),
        (pa.table({"value": [b"a", None]}), "holds a null"),
        (pa.table({"value": ["a"], "amount": [1]}), "no column 'amount'"),
    ],
)
def test_an_output_that_is_no_messages_is_refused_before_the_commit(
    table: pa.Table, said: str, target: Queue, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=said) as caught:
        QueueSink(target).stage(BATCH, table)
    assert "'target'" in str(caught.value)
    assert os.listdir(tmp_path / "target" / "_staging" / "plans") == ["place.json"]


def test_an_empty_output_leaves_no_note(target: Queue) -> None:
    for empty in (keyed(0), pa.table({"value": []}), pa.table({"key": [], "value": [], "offset": []})):
        assert QueueSink(target).stage(BATCH, empty) == ""


@pytest.mark.parametrize("small", [0, 99], ids=["large", "small"])
@pytest.mark.parametrize(
    "table", [pa.table({"key": ["a"]}), pa.table({"value": [1]}), pa.table({"value": ["a"], "x": [1]})]
)
def test_columns_that_are_no_messages_are_refused_without_any_row_in_the_same_words(
    table: pa.Table, small: int, target: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "SMALL", small)
    said = []
    for given in (table, table[:0]):
        with pytest.raises(Refused) as caught:
            QueueSink(target).stage(BATCH, Frame(given))
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_a_big_frame_is_passed_on_in_the_order_of_its_files(target: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SMALL", 0)
    sink, table = QueueSink(target), keyed(100)
    sink.publish(sink.stage(BATCH, Frame(table)))
    for key in {message.key for message in all_of(target)}:
        values = [message.value for message in all_of(target) if message.key == key]
        assert values == sorted(values)
    assert sorted(message.value for message in all_of(target)) == table.column("value").to_pylist()
    assert QueueSink(target).stage(BATCH, Frame(table[:0])) == ""


# ---- once -----------------------------------------------------------------------------------------------------------


class LogThatFails:
    """Appends to the real log, then fails: the caller cannot know how far it came."""

    def __init__(self, queue: Queue, after: int) -> None:
        self.append, self.left = queue.log.append, after

    def __call__(self, *args: Any) -> dict[int, int]:
        found = self.append(*args)
        self.left -= 1
        if self.left < 0:
            raise Unavailable("no answer")
        return found


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_batch_that_was_appended_in_part_is_completed_without_repeats(
    after: int, target: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = keyed(25_000)
    sink = QueueSink(target, patience=0)
    note = sink.stage(BATCH, table)
    with monkeypatch.context() as patch:
        patch.setattr(target.log, "append", LogThatFails(target, after))
        with pytest.raises(Unavailable):
            sink.publish(note)
    assert sum(target.ends().values()) == min(25_000, 10_000 * (after + 1))
    for _ in range(2):
        QueueSink(target).recover(QUEUE, LOG, GROUP, Grant(2, Owner("B", "b"), 3), note)
    assert sorted(message.value for message in all_of(target)) == table.column("value").to_pylist()
    assert len({message.id for message in all_of(target)}) == 25_000


def test_a_takeover_after_the_log_has_forgotten_the_stamps_still_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = pxrs.Settings(segment_bytes=2_000)
    with pxrs.open(f"file:{tmp_path}/target", partitions=2, settings=small) as target:
        sink = QueueSink(target, patience=0)
        note = sink.stage(BATCH, keyed(50))
        with monkeypatch.context() as patch:
            patch.setattr(target.log, "append", LogThatFails(target, 0))
            with pytest.raises(Unavailable):
                sink.publish(note)
        for _ in range(20):  # every round fills a segment; stamps are looked for in two
            with target.producer() as producer:
                producer.send_batch(pa.table({"key": [f"{n}" for n in range(50)], "value": ["x" * 100] * 50}))
        QueueSink(target).publish(note)
        assert Counter(m.value for m in all_of(target) if m.value != b"x" * 100) == Counter(
            keyed(50).column("value").to_pylist()
        )


def test_a_publisher_that_wakes_after_another_finished_appends_nothing(
    target: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, table = QueueSink(target), keyed(25_000)
    note = sink.stage(BATCH, table)
    append, calls = target.log.append, []

    def sleepy(*args: Any) -> dict[int, int]:
        calls.append(len(args))
        if len(calls) == 1:  # asleep before its first append, while another does it all
            QueueSink(target).publish(note)
        return append(*args)

    monkeypatch.setattr(target.log, "append", sleepy)
    sink.publish(note)
    assert len(calls) == 1 + 3, "its own first try, which the log recognised, and the three of the other"
    assert len(all_of(target)) == 25_000


def test_the_same_range_processed_again_after_a_seek_is_not_taken_for_a_repeat(target: Queue) -> None:
    sink = QueueSink(target)
    for epoch, number in ((1, 1), (3, 2)):
        batch = batch_of(Range(0, 0, 5, epoch), number=number)
        sink.publish(sink.stage(batch, output_of(batch)))
    assert len(all_of(target)) == 10
    assert len({message.id for message in all_of(target)}) == 10


def test_staged_data_that_is_damaged_is_named(target: Queue, tmp_path: Path) -> None:
    note = QueueSink(target).stage(BATCH, keyed(10))
    (path,) = (tmp_path / "target" / "_staging" / BATCH.name).glob("part-*")
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 400)
    of_before = Note.parse(note)._replace(seal="").text  # type: ignore[union-attr]
    for known in (note, of_before):
        with pytest.raises(Damaged, match=path.name):
            QueueSink(target).publish(known)
    assert all_of(target) == []


# ---- where it waits -------------------------------------------------------------------------------------------------


def test_a_queue_without_a_directory_needs_one_for_staging(tmp_path: Path) -> None:
    with pxrs.open("memory:", partitions=2) as queue:
        with pytest.raises(BadSetting, match="staging=DIR"):
            QueueSink(queue)
        sink = QueueSink(queue, staging=tmp_path / "aside")
        sink.publish(sink.stage(BATCH, keyed(10)))
        assert len(all_of(queue)) == 10
    assert os.listdir(tmp_path / "aside" / "_staging") == ["plans"]


def test_a_batch_for_another_queue_is_refused_and_kept(target: Queue, tmp_path: Path) -> None:
    note = QueueSink(target).stage(BATCH, keyed(10))
    with pxrs.open(f"file:{tmp_path}/other", partitions=2) as other:
        with pytest.raises(Refused, match=r"committed for another sink \(QueueSink"):
            QueueSink(other).publish(note)
        assert all_of(other) == []
    QueueSink(target).publish(note)
    assert len(all_of(target)) == 10


def test_the_mark_of_a_retry_for_one_group_is_dropped(target: Queue) -> None:
    """A message that was for one group of its source is for all groups of the target."""
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    mine, mark = {"key": "trace", "value": b"1"}, {"key": ONLY_FOR, "value": b"log/billing/1"}
    table = keyed(3, headers=pa.array([[mine, mark], None, [mine]], kind))
    sink = QueueSink(target)
    sink.publish(sink.stage(BATCH, table))
    assert sorted(len(message.headers) for message in all_of(target)) == [0, 1, 1]
    assert all(ONLY_FOR not in message.headers for message in all_of(target))
