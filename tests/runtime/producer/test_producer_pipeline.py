"""Under load a producer packs the next shipment while one is being appended: order, failures and bounds stay."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pytest

from pxrs.errors import Closed, Damaged, Full, PxrsError
from pxrs.io.clock import SystemClock
from pxrs.logs.base import OpenOptions, Stamp
from pxrs.logs.memory import MemoryLog
from pxrs.rules.routing.partitioner import Partitioner
from pxrs.runtime.producer.buffer import SMALL, UNCOUNTED
from pxrs.runtime.producer.producer import Producer
from pxrs.settings import Settings

WAIT = 30


class Gated(MemoryLog):
    """Appends when told to; may break at one of them."""

    @classmethod
    def new(cls) -> Gated:
        log = cls.open("memory:", OpenOptions(2), Settings(), True)
        assert isinstance(log, Gated)
        log.gate, log.begun, log.appended, log.breaks_at = threading.Event(), threading.Semaphore(0), 0, -1
        log.inside, log.together = 0, 0
        return log

    gate: threading.Event
    begun: threading.Semaphore
    appended: int
    breaks_at: int
    inside: int
    together: int

    def append(
        self, batches: Mapping[int, pa.RecordBatch], stamps: Mapping[int, Stamp] | None = None
    ) -> dict[int, int]:
        self.inside += 1
        self.together = max(self.together, self.inside)
        self.begun.release()
        assert self.gate.wait(WAIT)
        try:
            if self.appended == self.breaks_at:
                raise Damaged("the disk is broken")
            self.appended += 1
            return super().append(batches, stamps)
        finally:
            self.inside -= 1


@pytest.fixture
def log() -> Iterator[Gated]:
    log = Gated.new()
    yield log
    log.gate.set()


def producer_of(log: Gated, **settings: int) -> Producer:
    return Producer(log, Partitioner(partitions=2), Settings.from_mapping(settings), SystemClock())


def values(log: Gated) -> list[int]:
    found: list[int] = []
    for partition in range(2):
        offset = 0
        while (batch := log.read(partition, offset)) is not None:
            offset += batch.num_rows
            found += [int(value) for value in batch.column("value").to_pylist()]
    return found


def table(first: int, rows: int) -> pa.Table:
    numbers = range(first, first + rows)
    return pa.table({"key": ["k"] * rows, "value": [b"%08d" % number for number in numbers]})


def test_appends_follow_one_another_in_order(log: Gated) -> None:
    log.gate.set()
    with producer_of(log) as producer:
        for first in range(0, 60_000, 500):
            producer.send_batch(table(first, 250))
            for number in range(first + 250, first + 500):
                producer.send("k", b"%08d" % number)
    assert values(log) == list(range(60_000))
    assert log.together == 1


def test_after_a_failure_nothing_behind_it_is_stored(log: Gated) -> None:
    log.breaks_at = 1
    producer = producer_of(log, linger_ms=0, batch_rows=1)
    first = producer.send("k", b"0")
    assert log.begun.acquire(timeout=WAIT)
    behind = [producer.send_batch(table(number, 1)) for number in range(1, 5)]
    log.gate.set()
    assert first.result(WAIT) == (Partitioner(partitions=2).partition("k"), 0)
    for receipt in behind:
        with pytest.raises(Damaged, match="the disk is broken"):
            receipt.result(WAIT)
    with pytest.raises(Closed, match="the disk is broken"):
        producer.send("k", b"9")
    with pytest.raises(PxrsError, match="the disk is broken"):
        producer.close()
    assert values(log) == [0]


def send_until_full(producer: Producer, value: bytes) -> int:
    """How many were taken before one was not."""
    for sent in range(1_000_000):
        try:
            producer.send("key", value)
        except Full:
            return sent
    raise AssertionError("it never was full")


@pytest.mark.parametrize("size", [10, SMALL, SMALL + 1])
def test_what_waits_is_bounded_although_small_messages_are_counted_late(log: Gated, size: int) -> None:
    limit = 200_000
    producer = producer_of(
        log, buffer_bytes=limit, batch_bytes=limit, batch_rows=10**6, send_timeout_ms=50, linger_ms=3_600_000
    )
    sent = send_until_full(producer, b"x" * size)
    assert limit - (size + 51) < sent * (size + 51) <= limit
    log.gate.set()
    producer.close()
    assert sum(end for _, end in map(log.bounds, range(2))) == sent


def test_a_parcel_of_small_messages_is_about_as_large_as_it_should_be(log: Gated) -> None:
    log.gate.set()
    producer = producer_of(log, batch_bytes=30_000, batch_rows=10**6, linger_ms=3_600_000)
    first = producer.send("key", b"x" * 49)  # 100 bytes of the batch each
    for _ in range(299):
        assert not first.done()
        last = producer.send("key", b"x" * 49)
    assert last.result(WAIT)[1] == 299
    for _ in range(300 + UNCOUNTED):  # the batch after it, of messages that are larger than the first ones
        producer.send("key", b"x" * 500)
        if producer._buffer.open is None:
            break
    assert producer._buffer.open is None
    producer.close()


def test_keys_of_all_kinds_stay_what_they_are(log: Gated) -> None:
    log.gate.set()
    keys: list[str | bytes] = [f"key-{number}" for number in range(300)]
    keys += [b"key-%d" % number for number in range(300)]
    keys += ["schlüssel", ""]
    with producer_of(log) as producer:
        receipts = [producer.send(key, b"0") for key in keys]
        keyless = producer.send(None, b"0")
    route = Partitioner(partitions=2)
    for key, receipt in zip(keys, receipts, strict=True):
        partition, offset = receipt.result(0)
        assert partition == route.partition(key)
        batch = log.read(partition, offset, 1)
        assert batch is not None
        assert batch.column("key")[0].as_py() == (key.encode() if isinstance(key, str) else key)
    partition, offset = keyless.result(0)
    last = log.read(partition, offset, 1)
    assert last is not None
    assert last.column("key")[0].as_py() is None
