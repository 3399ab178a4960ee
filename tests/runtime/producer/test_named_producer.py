"""Producers with a name: a batch of unknown fate is sent again by the next process, and it is stored once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import pxrs
from pxrs.errors import BadName, BadSetting, Refused

# Sends batches 0 and 1; is killed in the second, when it is written and durable and nobody has been told.
CHILD = """
import os, signal, sys
import pxrs
from pxrs.logs.file.writer import PartitionWriter
from tests.runtime.producer.test_named_producer import batch

queue = pxrs.open(sys.argv[1])
producer = queue.named_producer("ingest")
producer.send_batch(batch(0), sequence=0)
published = PartitionWriter.publish
calls = []

def killed(self):
    if len(calls) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    calls.append(1)
    published(self)

PartitionWriter.publish = killed
producer.send_batch(batch(1), sequence=1)
"""


def batch(number: int, rows: int = 40) -> pa.Table:
    numbers = range(number * rows, (number + 1) * rows)
    keys = [None if row % 4 == 0 else b"k%d" % (row % 9) for row in numbers]
    return pa.table({"key": pa.array(keys, pa.binary()), "value": [b"v%d" % row for row in numbers]})


def stored(queue: pxrs.Queue) -> list[bytes]:
    return sorted(message.value for p, end in queue.ends().items() for message in queue.read(p, 0, end))


@pytest.fixture
def place(tmp_path: Path) -> str:
    pxrs.open(f"file:{tmp_path}/orders", partitions=4).close()
    return f"file:{tmp_path}/orders"


@pytest.mark.processes
@pytest.mark.parametrize("reached", range(5))
def test_b62_what_was_written_and_never_acknowledged_is_sent_again_and_stored_once(place: str, reached: int) -> None:
    """Killed before the first, second, ... of four partitions is published, and not at all."""
    done = subprocess.run([sys.executable, "-c", CHILD, place, str(reached)], check=False, timeout=60)
    assert done.returncode == (-signal.SIGKILL if reached < 4 else 0)
    with pxrs.open(place) as queue:
        producer = queue.named_producer("ingest")
        first = [producer.send_batch(batch(number), sequence=number) for number in range(3)]
        expected = sorted(value for number in range(3) for value in batch(number)["value"].to_pylist())
        assert stored(queue) == expected
        again = [producer.send_batch(batch(number), sequence=number) for number in range(3)]
        assert stored(queue) == expected
    for (partitions, offsets), (same_partitions, same_offsets) in zip(first, again, strict=True):
        assert partitions.tolist() == same_partitions.tolist() and offsets.tolist() == same_offsets.tolist()


def test_answers_say_where_each_row_is(place: str) -> None:
    with pxrs.open(place) as queue:
        partitions, offsets = queue.named_producer("ingest").send_batch(batch(0), sequence=7)
        for row, (partition, offset) in enumerate(zip(partitions.tolist(), offsets.tolist(), strict=True)):
            [message] = queue.read(partition, offset, 1)
            assert message.value == b"v%d" % row


def test_ids_are_the_same_when_a_batch_is_sent_again(place: str, tmp_path: Path) -> None:
    ids = []
    for url in (place, f"file:{tmp_path}/other"):
        with pxrs.open(url, partitions=4) as queue:
            queue.named_producer("ingest").send_batch(batch(3), sequence=3)
            ids.append({m.id: m.value for p, end in queue.ends().items() for m in queue.read(p, 0, end)})
    assert ids[0] == ids[1] and len(ids[0]) == 40


def test_other_names_and_other_numbers_are_other_batches(place: str) -> None:
    with pxrs.open(place) as queue:
        for name, sequence in (("a", 0), ("b", 0), ("a", 1)):
            queue.named_producer(name).send_batch(batch(0), sequence=sequence)
        assert len(stored(queue)) == 120


def test_a_batch_in_several_parts_is_known_again_also_with_other_settings(tmp_path: Path) -> None:
    large = batch(0, rows=40_000)
    for settings in (pxrs.Settings(buffer_bytes=200_000, batch_bytes=1_000), pxrs.Settings()):
        with pxrs.open(f"file:{tmp_path}/orders", partitions=2, settings=settings) as queue:
            queue.named_producer("ingest").send_batch(pa.concat_tables([large.slice(0, 7), large.slice(7)]), sequence=0)
            queue.named_producer("ingest").send_batch(large, sequence=0)
            assert stored(queue) == sorted(large["value"].to_pylist())


def test_an_empty_batch_stores_nothing(place: str) -> None:
    with pxrs.open(place) as queue:
        partitions, offsets = queue.named_producer("ingest").send_batch(batch(0).slice(0, 0), sequence=0)
        assert len(partitions) == len(offsets) == 0 and stored(queue) == []


def test_the_same_number_with_other_rows_is_refused(place: str) -> None:
    with pxrs.open(place) as queue:
        producer = queue.named_producer("ingest")
        producer.send_batch(batch(0), sequence=0)
        with pytest.raises(Refused, match=r"'ingest' has sent sequence 0 .* \(40 then, 80 now\)"):
            producer.send_batch(pa.concat_tables([batch(0), batch(0)]), sequence=0)
        assert stored(queue) == sorted(batch(0)["value"].to_pylist())


def test_what_is_refused_in_one_partition_is_stored_in_none(place: str) -> None:
    def rows(*partitions: int) -> pa.Table:
        return pa.table({"key": [b"k"] * len(partitions), "value": [b"v"] * len(partitions), "partition": partitions})

    with pxrs.open(place) as queue:
        producer = queue.named_producer("ingest")
        producer.send_batch(rows(1), sequence=0)
        with pytest.raises(Refused, match=r"'ingest' has sent sequence 0 .* \(1 then, 4 now\)"):
            producer.send_batch(rows(0, 1, 1, 2), sequence=0)
        producer.send_batch(rows(3), sequence=1)
    with pxrs.open(place) as queue:
        assert queue.ends() == {0: 0, 1: 1, 2: 0, 3: 1}
        queue.named_producer("ingest").send_batch(rows(0, 2), sequence=2)
        assert queue.ends() == {0: 1, 1: 1, 2: 1, 3: 1}, "nothing came to light that had been refused"


def one(key: str, value: str = "v", **more: object) -> pa.Table:
    return pa.table({"key": [key], "value": [value], **more})


@pytest.mark.parametrize(
    "other",
    [
        one("a", "w"), one("b"), one("c"), one("d"), one("e"), one("", "av"), one("a", tenant=["t"]),
        pa.concat_tables([one("a"), one("a")]), one("a", partition=[3]),
    ],
)  # fmt: skip
def test_other_rows_under_a_used_number_are_refused_whatever_partition_they_go_to(place: str, other: pa.Table) -> None:
    with pxrs.open(place) as queue:
        queue.named_producer("ingest").send_batch(one("a"), sequence=0)
    with pxrs.open(place) as queue:
        producer = queue.named_producer("ingest")
        with pytest.raises(Refused, match=r"'ingest' has sent sequence 0 with other rows .* next number"):
            producer.send_batch(other, sequence=0)
        assert stored(queue) == [b"v"]
        producer.send_batch(one("a").combine_chunks(), sequence=0)
        assert stored(queue) == [b"v"], "the same rows are the same, and stored once"


def test_a_large_batch_with_one_other_value_is_refused_before_its_first_part(place: str) -> None:
    rows = 40_000
    with pxrs.open(place) as queue:
        producer = queue.named_producer("ingest")
        producer.send_batch(batch(0, rows), sequence=0)
        changed = pa.concat_tables([batch(0, rows).slice(0, rows - 1), one("last").cast(batch(0).schema)])
        with pytest.raises(Refused, match=r"\(40000 then, 40000 now\)"):
            producer.send_batch(changed, sequence=0)
        assert sum(queue.ends().values()) == rows


def test_a_batch_that_the_last_version_has_stored_is_known_by_its_number_alone(place: str) -> None:
    """Its stamp says nothing of its content."""
    with pxrs.open(place) as queue:
        producer = queue.named_producer("ingest")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pxrs.runtime.producer.producer.content_of", lambda _: "")
            producer.send_batch(one("a"), sequence=0)
        producer.send_batch(one("a"), sequence=0)
        assert stored(queue) == [b"v"]


@pytest.mark.parametrize("sequence", [-1, 1.5, None, True, 1 << 40])
def test_a_wrong_number_is_refused(place: str, sequence: object) -> None:
    with pxrs.open(place) as queue, pytest.raises(BadSetting, match="sequence = "):
        queue.named_producer("ingest").send_batch(batch(0), sequence=sequence)  # type: ignore[arg-type]  # on purpose


def test_a_wrong_name_is_refused(place: str) -> None:
    with pxrs.open(place) as queue, pytest.raises(BadName, match="producer"):
        queue.named_producer("../x")
