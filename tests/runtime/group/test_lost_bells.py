"""A log whose bell gets lost: what it stored is found all the same, by a look every ``poll_ms``."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import pxrs
from pxrs.logs.memory import MemoryLog


def deaf(self: MemoryLog, partition: int, notify: Callable[[], None]) -> Callable[[], None]:
    """Somebody who never rings."""
    return lambda: None


def test_a_consumer_looks_again_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryLog, "subscribe", deaf)
    seen, got = [], threading.Semaphore(0)

    def handle(message: pxrs.Message) -> None:
        seen.append(message.value)
        got.release()

    with pxrs.open("memory:", partitions=1, settings=pxrs.Settings(poll_ms=50)) as queue, queue.producer() as producer:
        consumer = queue.consumer(group="g", handler=handle, member="A")
        consumer.start()
        for number in range(3):
            producer.send("k", b"%d" % number).result()
            assert got.acquire(timeout=30), "the message was stored, and nobody looked"
        consumer.stop()
    assert seen == [b"0", b"1", b"2"]
