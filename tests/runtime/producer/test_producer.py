"""The producer: batching, receipts, back-pressure, retries, and what it refuses."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pxrs.errors import BadKey, Closed, Damaged, Full, PxrsError, Refused, Unavailable
from pxrs.io.clock import SystemClock
from pxrs.logs.base import Log, OpenOptions, Stamp
from pxrs.logs.file.log import FileLog
from pxrs.logs.memory import MemoryLog
from pxrs.rules.routing.partitioner import Partitioner
from pxrs.runtime.producer.producer import Producer
from pxrs.settings import Settings

PARTITIONS = 4
Row = dict[str, Any]


class Watched(MemoryLog):
    """A memory log that counts appends, and fails or waits when told to."""

    failures: list[PxrsError]
    gate: threading.Event
    calls: list[dict[int, Stamp]]

    @classmethod
    def new(cls) -> Watched:
        log = cls.open("memory:", OpenOptions(PARTITIONS), Settings(), True)
        assert isinstance(log, Watched)
        log.failures, log.gate, log.calls = [], threading.Event(), []
        log.gate.set()
        return log

    def append(
        self, batches: Mapping[int, pa.RecordBatch], stamps: Mapping[int, Stamp] | None = None
    ) -> dict[int, int]:
        self.calls.append(dict(stamps or {}))
        assert self.gate.wait(30)
        if self.failures:
            raise self.failures.pop(0)
        return super().append(batches, stamps)


@pytest.fixture
def log() -> Watched:
    return Watched.new()


MakeProducer = Callable[..., Producer]


@pytest.fixture
def producer_of(log: Watched) -> Iterator[MakeProducer]:
    made: list[Producer] = []

    def producer_of(target: Log | None = None, **settings: Any) -> Producer:
        target = target or log
        partitioner = Partitioner(partitions=target.identity.partitions)
        made.append(Producer(target, partitioner, Settings(**settings), SystemClock()))
        return made[-1]

    yield producer_of
    log.gate.set()
    for producer in made:
        try:
            producer.close()
        except PxrsError:
            continue  # tests that provoke a failure look at it themselves


def rows(log: Log, partition: int) -> list[Row]:
    found: list[Row] = []
    while (batch := log.read(partition, len(found))) is not None:
        found += batch.to_pylist()
    return found


def all_rows(log: Log) -> list[Row]:
    return [row for partition in range(log.identity.partitions) for row in rows(log, partition)]


def test_a_receipt_names_the_place(log: Watched, producer_of: MakeProducer) -> None:
    producer = producer_of()
    receipts = {key: producer.send(key, key.upper()) for key in ("a", "b", "c", "d", "e")}
    route = Partitioner(partitions=PARTITIONS)
    for key, receipt in receipts.items():
        partition, offset = receipt.result(30)
        assert receipt.done()
        assert partition == route.partition(key)
        stored = rows(log, partition)[offset]
        assert (stored["key"], stored["value"]) == (key.encode(), key.upper().encode())


def test_order_per_key_is_the_order_of_sending(log: Watched, producer_of: MakeProducer) -> None:
    with producer_of(batch_rows=7, linger_ms=0) as producer:
        for number in range(500):
            producer.send(f"key-{number % 10}", b"%d" % number)
    found = all_rows(log)
    assert len(found) == 500
    for key in range(10):
        mine = [int(row["value"]) for row in found if row["key"] == b"key-%d" % key]
        assert mine == list(range(key, 500, 10))


def test_everything_given_is_stored(log: Watched, producer_of: MakeProducer) -> None:
    when = datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)
    with producer_of() as producer:
        producer.send("k", "täxt", {"source": b"web", "kind": "ü"}, timestamp=when, tenant="acme")
        producer.send(b"k", b"", timestamp=-5)
        before = time.time()
        producer.send("k", b"plain")
    first, second, third = rows(log, Partitioner(partitions=PARTITIONS).partition("k"))
    assert first["value"] == "täxt".encode()
    assert first["headers"] == [{"key": "source", "value": b"web"}, {"key": "kind", "value": "ü".encode()}]
    assert (first["timestamp"], first["tenant"]) == (when, "acme")
    assert second["timestamp"].timestamp() == -5e-6
    assert (second["headers"], second["tenant"]) == (None, None)
    assert abs(third["timestamp"].timestamp() - before) < 60


def test_ids_are_unique_and_name_the_producer(log: Watched, producer_of: MakeProducer) -> None:
    producers = [producer_of(batch_rows=3) for _ in range(2)]
    for producer in producers:
        for number in range(10):
            producer.send(f"{number}", b"x")
        producer.close()
    ids = [row["id"] for row in all_rows(log)]
    assert len(set(ids)) == 20
    for producer in producers:
        mine = sorted(i for i in ids if i[:8].hex() == producer.id)
        assert [int.from_bytes(i[8:], "big") for i in mine] == list(range(10))


def test_messages_without_a_key_go_round(log: Watched, producer_of: MakeProducer) -> None:
    with producer_of(batch_rows=5) as producer:
        for number in range(4 * PARTITIONS + 2):
            producer.send(None, b"%d" % number)
    sizes = [log.bounds(partition)[1] for partition in range(PARTITIONS)]
    assert sorted(sizes) == [4, 4, 5, 5]


def test_messages_share_appends(log: Watched, producer_of: MakeProducer) -> None:
    with producer_of(linger_ms=10_000, batch_rows=100) as producer:
        for number in range(300):
            producer.send(f"{number}", b"x")
    assert len(log.calls) <= 3
    assert len(all_rows(log)) == 300


def test_a_waiting_receipt_does_not_linger(log: Watched, producer_of: MakeProducer) -> None:
    producer = producer_of(linger_ms=3_600_000)
    assert producer.send("a", b"x").result(30)[1] == 0
    waiting = producer.send("a", b"y")
    assert not waiting.done()
    producer.flush(30)
    assert waiting.done()


def test_a_message_leaves_after_its_linger(log: Watched, producer_of: MakeProducer) -> None:
    receipt = producer_of(linger_ms=1).send("a", b"x")
    deadline = time.monotonic() + 30
    while not receipt.done() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert receipt.done()


def test_a_full_buffer_blocks_then_says_full(log: Watched, producer_of: MakeProducer) -> None:
    producer = producer_of(buffer_bytes=10_000, batch_bytes=1_000, send_timeout_ms=50)
    log.gate.clear()

    def fill() -> None:
        for _ in range(1_000):
            producer.send("k", b"x" * 100)

    with pytest.raises(Full, match="bytes still wait"):
        fill()
    log.gate.set()
    producer.flush(30)
    stored = len(all_rows(log))
    assert 50 < stored < 100
    producer.send("k", b"more").result(30)
    assert len(all_rows(log)) == stored + 1


def test_a_blocked_send_goes_on_when_there_is_room(log: Watched, producer_of: MakeProducer) -> None:
    producer = producer_of(buffer_bytes=2_000, batch_bytes=500)
    log.gate.clear()
    sent = threading.Semaphore(0)

    def work() -> None:
        for _ in range(100):
            producer.send("k", b"x" * 100)
            sent.release()

    sender = threading.Thread(target=work)
    sender.start()
    for _ in range(10):
        assert sent.acquire(timeout=30)
    log.gate.set()
    sender.join(30)
    producer.flush(30)
    assert len(all_rows(log)) == 100


def test_a_message_larger_than_the_buffer_is_refused(log: Watched, producer_of: MakeProducer) -> None:
    producer = producer_of(buffer_bytes=1_000, batch_bytes=1_000)
    with pytest.raises(Refused, match="buffer_bytes = 1000"):
        producer.send("k", b"x" * 1_001)
    with pytest.raises(Refused, match="buffer_bytes = 1000"):
        producer.send_batch(pa.table({"key": ["a", "b"], "value": [b"x", b"x" * 1_001]}))
    producer.close()
    assert all_rows(log) == []


def test_b62_an_unavailable_log_is_tried_again_with_the_same_stamps(log: Watched, producer_of: MakeProducer) -> None:
    log.failures = [Unavailable("busy"), Unavailable("busy")]
    producer = producer_of(backoff_ms=1)
    receipt = producer.send("k", b"x")
    assert receipt.result(30)[1] == 0
    assert len(log.calls) == 3 and log.calls[0] == log.calls[1] == log.calls[2]
    producer.send("k", b"y").result(30)
    partition = receipt.result()[0]
    assert log.calls[3][partition].sequence == log.calls[0][partition].sequence + 1


def test_it_gives_up_after_the_send_timeout(log: Watched, producer_of: MakeProducer) -> None:
    log.failures = [Unavailable("gone")] * 1_000
    producer = producer_of(backoff_ms=1, backoff_max_ms=1, send_timeout_ms=20)
    with pytest.raises(Unavailable, match="gone"):
        producer.send("k", b"x").result(30)


def test_another_failure_ends_the_producer_with_its_cause(log: Watched, producer_of: MakeProducer) -> None:
    log.gate.clear()
    log.failures = [Damaged("segment 7 is damaged")]
    producer = producer_of(linger_ms=0)
    first = producer.send("k", b"x")
    second = producer.send("k", b"y")
    log.gate.set()
    for receipt in (first, second):
        with pytest.raises(Damaged, match="segment 7"):
            receipt.result(30)
    with pytest.raises(Closed, match="segment 7 is damaged"):
        producer.send("k", b"z")
    with pytest.raises(Damaged, match="segment 7"):
        producer.flush()
    with pytest.raises(Damaged, match="segment 7"):
        producer.close()
    producer.close()
    assert all_rows(log) == []


def test_the_error_of_the_body_is_not_hidden(log: Watched, producer_of: MakeProducer) -> None:
    log.failures = [Damaged("lost")]

    def body() -> None:
        with producer_of() as producer:
            producer.send("k", b"x")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        body()


@pytest.mark.parametrize("key", [1, 1.5, "\ud800", bytearray(b"x"), ("a",)])
def test_a_bad_key_is_refused_at_once(log: Watched, producer_of: MakeProducer, key: Any) -> None:
    producer = producer_of()
    with pytest.raises(BadKey, match=r"int|float|UTF-8|bytearray|tuple"):
        producer.send(key, b"x")
    producer.close()
    assert all_rows(log) == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"value": None},
        {"value": 7},
        {"value": "\ud800"},
        {"headers": {"a": 1}},
        {"headers": {1: b"a"}},
        {"headers": [("a", b"b")]},
        {"timestamp": datetime(2024, 1, 1)},  # noqa: DTZ001 - a naive time is what is refused
        {"timestamp": 1.5},
        {"timestamp": True},
        {"timestamp": 2**63},
        {"tenant": b"acme"},
        {"tenant": "\udfff"},
    ],
    ids=repr,
)
def test_a_bad_message_is_refused_at_once(log: Watched, producer_of: MakeProducer, arguments: Any) -> None:
    producer = producer_of()
    with pytest.raises(Refused):
        producer.send("k", **{"value": b"x", **arguments})
    producer.close()
    assert all_rows(log) == []


def test_a_table_is_routed_like_single_messages(log: Watched, producer_of: MakeProducer) -> None:
    keys = [None if number % 10 == 0 else f"key-{number % 17}" for number in range(1_000)]
    table = pa.table({"key": keys, "value": [b"%d" % number for number in range(1_000)]})
    with producer_of() as producer:
        producer.send("key-1", b"before")
        partitions, offsets = producer.send_batch(table).result(30)
    route = Partitioner(partitions=PARTITIONS)
    stored = [rows(log, partition) for partition in range(PARTITIONS)]
    for number, (key, partition, offset) in enumerate(zip(keys, partitions, offsets, strict=True)):
        assert stored[partition][offset]["value"] == b"%d" % number
        assert key is None or partition == route.partition(key)
    assert stored[route.partition("key-1")][0]["value"] == b"before"


def test_a_table_may_bring_partitions_headers_times_and_tenants(log: Watched, producer_of: MakeProducer) -> None:
    when = datetime(2024, 1, 1, tzinfo=UTC)
    headers = pa.array([[("a", b"1")], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    table = pa.table(
        {
            "partition": pa.array([3, 1], pa.int64()),
            "value": pa.array(["x", "y"], pa.large_string()),
            "key": pa.array([b"k", None], pa.large_binary()),
            "tenant": ["acme", None],
            "headers": headers,
            "timestamp": pa.array([when, None], pa.timestamp("ns", "Europe/Berlin")),
        }
    )
    with producer_of() as producer:
        partitions, offsets = producer.send_batch(table).result(30)
    assert (partitions.tolist(), offsets.tolist()) == ([3, 1], [0, 0])
    [first], [second] = rows(log, 3), rows(log, 1)
    assert (first["timestamp"], first["tenant"], first["value"]) == (when, "acme", b"x")
    assert first["headers"] == [{"key": "a", "value": b"1"}]
    assert abs(second["timestamp"].timestamp() - time.time()) < 60


def test_a_large_table_travels_in_parts_within_the_buffer(log: Watched, producer_of: MakeProducer) -> None:
    producer = producer_of(buffer_bytes=20_000, batch_bytes=1_000)
    table = pa.table({"key": ["k"] * 2_000, "value": [b"%06d" % number + b"x" * 94 for number in range(2_000)]})
    partitions, offsets = producer.send_batch(table).result(30)
    assert offsets.tolist() == list(range(2_000))
    assert len(log.calls) > 10
    assert [int(row["value"][:6]) for row in rows(log, int(partitions[0]))] == list(range(2_000))


def test_an_empty_table_is_done_at_once(log: Watched, producer_of: MakeProducer) -> None:
    table = pa.table({"key": pa.array([], pa.string()), "value": pa.array([], pa.binary())})
    receipt = producer_of().send_batch(table)
    assert receipt.done() and [len(part) for part in receipt.result()] == [0, 0]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"value": [b"x"]}, "'key'"),
        ({"key": ["a"]}, "'value'"),
        ({"key": [1], "value": [b"x"]}, "'key' of send_batch must be binary or string, not int64"),
        ({"key": ["a"], "value": [1.5]}, "'value' of send_batch must be binary or string, not double"),
        ({"key": ["a"], "value": [b"x"], "colour": ["red"]}, "no column 'colour'"),
        ({"key": ["a", "b"], "value": [b"x", None]}, "'value' of send_batch holds a null"),
        ({"key": ["a"], "value": [b"x"], "timestamp": [1]}, "timestamp with a time zone, not int64"),
        ({"key": ["a"], "value": [b"x"], "partition": [4]}, "0 to 3 only"),
        ({"key": ["a"], "value": [b"x"], "partition": [-1]}, "0 to 3 only"),
        ({"key": ["a"], "value": [b"x"], "partition": pa.array([None], pa.int32())}, "'partition'"),
        ({"key": ["a"], "value": [b"x"], "headers": ["h"]}, "'headers'"),
        ({"key": ["a"], "value": [b"x"], "tenant": [1]}, "'tenant' of send_batch must be string"),
    ],
)
def test_a_bad_table_is_refused_whole(
    log: Watched, producer_of: MakeProducer, columns: dict[str, Any], said: str
) -> None:
    producer = producer_of()
    with pytest.raises(Refused, match=said):
        producer.send_batch(pa.table(columns))
    producer.close()
    assert all_rows(log) == []


def test_what_is_no_table_is_refused(producer_of: MakeProducer) -> None:
    with pytest.raises(Refused, match="not list"):
        producer_of().send_batch([{"key": "a"}])


def test_threads_share_a_producer(log: Watched, producer_of: MakeProducer) -> None:
    producer = producer_of(batch_rows=50)

    def work(name: int) -> None:
        for number in range(200):
            producer.send(f"thread-{name}", b"%d" % number)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.close()
    found = all_rows(log)
    for name in range(4):
        mine = [int(row["value"]) for row in found if row["key"] == b"thread-%d" % name]
        assert mine == list(range(200))


def test_closing_flushes_and_refuses_what_comes_later(log: Watched) -> None:
    producer = Producer(log, Partitioner(partitions=PARTITIONS), Settings(), SystemClock())
    receipt = producer.send("k", b"x")
    producer.close()
    producer.close()
    assert receipt.done()
    with pytest.raises(Closed, match="closed"):
        producer.send("k", b"x")


def test_a_dropped_producer_sends_the_rest_and_leaks_no_thread(log: Watched) -> None:
    producer = Producer(log, Partitioner(partitions=PARTITIONS), Settings(linger_ms=3_600_000), SystemClock())
    thread = producer._buffer._thread
    assert thread.is_alive()
    producer.send("k", b"x")
    del producer
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()
    assert len(all_rows(log)) == 1


@pytest.mark.processes
def test_a_forked_child_must_not_use_the_parents_producer(log: Watched, producer_of: MakeProducer) -> None:
    producer = producer_of(linger_ms=3_600_000)
    receipt = producer.send("k", b"x")
    pid = os.fork()
    if pid == 0:
        refused = 0
        for call in (lambda: producer.send("k", b"y"), producer.flush, lambda: receipt.result(5), producer.close):
            try:
                call()
            except Closed as error:
                refused += str(os.getppid()) in str(error)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
    producer.close()
    assert [row["value"] for row in all_rows(log)] == [b"x"]


def test_it_sends_to_files(tmp_path: Path, producer_of: MakeProducer) -> None:
    files = FileLog.open(f"file:{tmp_path}/q", OpenOptions(PARTITIONS), Settings(), True)
    with producer_of(files) as producer:
        receipts = [producer.send(f"key-{number}", b"%d" % number) for number in range(1_000)]
    for number, receipt in enumerate(receipts):
        partition, offset = receipt.result()
        batch = files.read(partition, offset, max_rows=1)
        assert batch is not None and batch.column("value")[0].as_py() == b"%d" % number
    assert np.sum([files.bounds(partition)[1] for partition in range(PARTITIONS)]) == 1_000
    files.close()
