"""An output queue that is away, or whose disk is full: the sink waits, then the partition does, and nobody ends."""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pxrs
from pxrs.errors import BadSetting
from pxrs.io import durable
from pxrs.logs.file import writer
from pxrs.runtime.queue.queue import Queue
from pxrs.sinks import QueueSink, staging
from pxrs.testing.servers.nats import NatsServer
from tests.runtime.support import PATIENT, eventually

ROWS = Counter(b"%d" % number for number in range(60))
QUICK = PATIENT.with_(backoff_max_ms=50)


def passed_on(batch: pa.RecordBatch, _: pxrs.Context) -> pa.RecordBatch:
    return batch


def content(target: Queue) -> Counter[bytes]:
    return Counter(m.value for p, end in target.ends().items() for m in target.read(p, 0, end))


def source_in(directory: Path) -> Queue:
    queue = pxrs.open(f"file:{directory}/source", partitions=3, settings=QUICK)
    with queue.producer() as producer:
        for value in ROWS:
            producer.send(value, value)
    return queue


class Outage:
    """Ends a server at the first append to a queue, and starts it again once an append has failed so often."""

    def __init__(self, server: NatsServer, target: Queue, failures: int) -> None:
        self._server, self._append, self._failures = server, target.log.append, failures
        self._lock = threading.Lock()
        self.failed = 0
        target.log.append = self  # type: ignore[method-assign, assignment]  # this object's alone

    def __call__(self, batches: Mapping[int, pa.RecordBatch], stamps: Any) -> dict[int, int]:
        with self._lock:
            if not self.failed and self._server.pid is not None:
                self._server.stop()
            elif self.failed == self._failures and self._server.pid is None:
                self._server.start()
        try:
            return self._append(batches, stamps)
        except pxrs.errors.Unavailable:
            with self._lock:
                self.failed = min(self.failed + 1, self._failures)
            raise


@pytest.mark.processes
@pytest.mark.parametrize("patience", [60.0, 0.0], ids=["the sink waits", "the partition waits"])
def test_a_restart_of_the_output_server_ends_no_consumer_and_repeats_nothing(
    patience: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        NatsServer(tmp_path / "nats") as server,
        source_in(tmp_path) as source,
        pxrs.open(log=server.url("out"), registry=f"sqlite:{tmp_path}/out.db", partitions=2, settings=QUICK) as target,
    ):
        sink = QueueSink(target, tmp_path / "aside", patience=patience)
        outage = Outage(server, target, failures=2)
        consumer = source.consumer("g", passed_on, "A", deliver="arrow", sink=sink).start()
        eventually(lambda: outage.failed == 2 and consumer.error is None, "the server is away", 60)
        eventually(lambda: server.is_ready() and content(target) == ROWS, "all is there, once", 60)
        consumer.stop()
        assert consumer.error is None
        assert source.group("g").describe().total_lag == 0
    assert any("waits:" in text for text in caplog.messages) == (patience == 0)


def test_a_full_disk_of_the_output_queue_parks_and_ends_no_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with source_in(tmp_path) as source, pxrs.open(f"file:{tmp_path}/out", partitions=2, settings=QUICK) as target:
        sink = QueueSink(target, patience=0)
        real, is_free = durable.write_all, threading.Event()

        def full(fd: int, data: Any, ends: int | None = None) -> None:
            if not is_free.is_set() and f"{tmp_path}/out/" in Path(f"/proc/self/fd/{fd}").readlink().as_posix():
                raise OSError(errno.ENOSPC, "No space left on device")
            real(fd, data, ends)

        monkeypatch.setattr(writer, "write_all", full)
        consumer = source.consumer("g", passed_on, "A", deliver="arrow", sink=sink).start()
        await_parked(consumer, "a batch could not be written: [Errno 28]")
        is_free.set()
        eventually(lambda: content(target) == ROWS, "all is there, once")
        assert consumer.error is None


def test_a_full_disk_of_the_staging_directory_parks_and_ends_no_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, is_free = durable.create_file, threading.Event()

    def full(*args: Any) -> None:
        if not is_free.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*args)

    monkeypatch.setattr(staging, "create_file", full)
    with source_in(tmp_path) as source, pxrs.open(f"file:{tmp_path}/out", partitions=2, settings=QUICK) as target:
        sink = QueueSink(target, tmp_path / "aside")
        consumer = source.consumer("g", passed_on, "A", deliver="arrow", sink=sink).start()
        await_parked(consumer, "no space is left on")
        is_free.set()
        eventually(lambda: content(target) == ROWS, "all is there, once")
        assert consumer.error is None


def await_parked(consumer: pxrs.Consumer, why: str) -> None:
    def is_parked() -> bool:
        return len(consumer.troubles) == 3 and all(why in str(error) for error in consumer.troubles.values())

    eventually(is_parked, f"all partitions wait: {why}")


def test_a_patience_that_is_no_time_is_refused(tmp_path: Path) -> None:
    with pxrs.open(f"file:{tmp_path}/out", partitions=1) as target:
        for patience in (-1, float("nan")):
            with pytest.raises(BadSetting, match=r"patience = .*: seconds are needed"):
                QueueSink(target, patience=patience)
