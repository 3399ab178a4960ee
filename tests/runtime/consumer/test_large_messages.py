"""A log that takes no message above a limit: such a message is refused alone, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pxrs.errors import Refused
from pxrs.io.clock import SystemClock
from pxrs.logs.base import OpenOptions
from pxrs.logs.memory import MemoryLog
from pxrs.logs.message_size import row_bytes
from pxrs.rules.routing.partitioner import Partitioner
from pxrs.runtime.queue.queue import Queue
from pxrs.stores.memory import MemoryStore, SharedRows
from tests.runtime.support import PATIENT

LARGEST = 1_000


class Narrow(MemoryLog):
    """A log that refuses a whole append because of one large message, as a server does."""

    @property
    def largest_message(self) -> int:
        return LARGEST

    def append(self, batches: Any, stamps: Any = None) -> Any:
        for batch in batches.values():
            if max(row_bytes(batch)) > LARGEST:
                raise Refused("too large")
        return super().append(batches, stamps)


@pytest.fixture
def queue() -> Iterator[Queue]:
    log = Narrow.open("memory:", OpenOptions(1), PATIENT, True)
    identity = log.identity
    partitioner = Partitioner(1, hash=identity.hash, reduce=identity.reduce)
    with Queue(log, MemoryStore(SharedRows()), partitioner, None, PATIENT, SystemClock()) as queue:
        yield queue


@pytest.mark.parametrize("more", [{}, {"headers": {"h" * 100: b"v" * 884}}, {"tenant": "é" * 500}])
def test_a_message_above_the_limit_is_refused_at_send_and_the_others_go_on(queue: Queue, more: dict[str, Any]) -> None:
    large = b"x" * LARGEST if not more else b""
    with queue.producer() as producer:
        before = [producer.send("k", b"before") for _ in range(3)]
        with pytest.raises(Refused, match=r"a message of 1001 bytes is larger than this log takes: 1000"):
            producer.send("k", large, **more)
        after = [producer.send("k", b"after") for _ in range(3)]
        assert [receipt.result(30)[1] for receipt in before + after] == list(range(6))


def test_a_table_with_a_message_above_the_limit_is_refused_by_its_row(queue: Queue) -> None:
    table = pa.table({"key": ["a", "b", "c"], "value": [b"x" * 999, b"x" * 999, b"x" * 1_000]})
    with queue.producer() as producer:
        with pytest.raises(Refused, match="row 2: a message of 1001 bytes"):
            producer.send_batch(table)
        producer.send_batch(table.slice(0, 2)).result(30)
    with pytest.raises(Refused, match="row 2"):
        queue.named_producer("n").send_batch(table, 0)
    assert queue.log.bounds(0) == (0, 2)


def test_the_size_of_a_message_is_the_same_in_a_table_and_alone() -> None:
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table(
        {
            "key": pa.array([None, b"kk", b"k"], pa.binary()),
            "value": [b"", b"vvv", b"v"],
            "headers": pa.array([None, [], [{"key": "ä", "value": b"12"}, {"key": "b", "value": None}]], headers),
            "tenant": ["t", None, "tt"],
        }
    )
    assert row_bytes(table).tolist() == [1, 5, 4 + (2 + 2 + 16) + (1 + 16)]
    assert row_bytes(table.slice(2)).tolist() == [41]
