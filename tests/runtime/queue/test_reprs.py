"""The reprs of the things that users hold."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

import pxrs
from pxrs.errors import Unavailable
from pxrs.settings import Settings
from pxrs.sinks import ParquetSink, QueueSink
from tests.runtime.support import DEADLINE, eventually


def test_receipts_and_producers_say_what_is_stored() -> None:
    with pxrs.open("memory:", partitions=1, settings=Settings(linger_ms=60_000)) as queue:
        producer = queue.producer()
        receipt, rows = producer.send("k", b"x"), producer.send_batch(pa.table({"key": ["k"], "value": [b"x"]}))
        lingering = producer.send("k", b"x")
        assert repr(lingering) == "<Receipt: not stored yet>"
        producer.close()
        assert repr(receipt) == "<Receipt: stored in partition 0 at offset 0>"
        assert repr(rows) == "<BatchReceipt of 1 message: stored>"
        assert repr(producer) == f"<Producer of queue {queue.name!r}: 3 messages stored, closed>"


def test_a_receipt_of_a_lost_message_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pxrs.open("memory:", settings=Settings(send_timeout_ms=1)) as queue:

        def refuse(*_: object) -> None:
            raise Unavailable("the log is away")

        monkeypatch.setattr(queue.log, "append", refuse)
        monkeypatch.setattr(queue.log, "append_rows", refuse)
        producer = queue.producer()
        receipt = producer.send("k", b"x")
        with pytest.raises(Unavailable):
            producer.close()
        assert repr(receipt) == "<Receipt: failed, the log is away>"


def test_consumers_subscriptions_and_groups_say_what_they_are() -> None:
    handled = threading.Event()
    with pxrs.open("memory:", partitions=2) as queue, queue.producer() as producer:
        consumer = queue.consumer("billing", lambda message: handled.set(), member="A")
        assert repr(consumer) == "<Consumer 'A' of group 'billing': registering, partitions none>"
        producer.send("k", b"x")
        with consumer:
            assert handled.wait(DEADLINE)
            eventually(lambda: "live, partitions 0, 1>" in repr(consumer), "it owns both")
        assert repr(consumer) == "<Consumer 'A' of group 'billing': stopped, partitions none>"
        assert repr(queue.group("billing")) == f"<Group 'billing' of queue {queue.name!r}>"
        with queue.subscribe({0: 0}, print) as subscription:
            assert repr(subscription).startswith("<Subscription running, positions {0: ")


def test_sinks_say_where_they_write(tmp_path: Path) -> None:
    assert repr(ParquetSink(tmp_path / "bills")) == f"ParquetSink('{tmp_path}/bills')"
    assert "partition_by=['city']" in repr(ParquetSink(tmp_path / "bills", partition_by="city"))
    with pxrs.open(f"file:{tmp_path}/orders", partitions=2) as queue:
        assert repr(QueueSink(queue)) == "QueueSink(<Queue 'orders', 2 partitions>)"


def test_what_is_closed_says_so() -> None:
    queue = pxrs.open("memory:", partitions=2)
    producer = queue.producer()
    consumer = queue.consumer("billing", print, member="A").start()
    queue.close()
    assert repr(queue) == f"<Queue {queue.name!r}, 2 partitions, closed>"
    assert repr(producer).endswith("closed>") and "stopped" in repr(consumer)


def test_dead_letters_say_how_many_there_are() -> None:
    def fail(message: pxrs.Message) -> None:
        raise ValueError("no")

    with pxrs.open("memory:", partitions=1, settings=Settings(tries=1)) as queue:
        letters = queue.group("billing").dead_letters
        assert len(letters) == 0 and repr(letters).endswith(f"of queue {queue.name!r}: 0 letters>")
        assert letters, "an empty box is a box"
        with queue.producer() as producer:
            producer.send("k", b"x")
        queue.consumer("billing", fail).run(until_end=True)
        assert len(letters) == 1 == len(list(letters))
        assert repr(letters) == f"<DeadLetters of group 'billing' of queue {queue.name!r}: 1 letter>"
        letters.retry()
        assert len(letters) == 1 == len(list(letters)), "what was sent again is kept"


def test_a_table_without_lines_has_its_headings_in_a_notebook() -> None:
    with pxrs.open("memory:", partitions=1) as queue:
        group = queue.make_group("billing")
        shown = group.members()._repr_html_()  # type: ignore[attr-defined]
        assert "<th>member</th>" in shown and "<th>silent seconds</th>" in shown and "<td>" not in shown
        assert group.describe().members._repr_html_() == shown
