"""The box of dead letters: whatever a message and its error are, a letter is kept, found again and sent again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pxrs
from pxrs.errors import Damaged, NotFound, Refused, Unavailable
from pxrs.io.clock import SystemClock
from pxrs.logs.base import ENTRY_SCHEMA, Log, OpenOptions
from pxrs.logs.memory import MemoryLog
from pxrs.logs.message_size import row_bytes
from pxrs.model import Message
from pxrs.rules.addressing import ONLY_FOR, Reader
from pxrs.runtime.dead_letters.box import BLOCK, DeadLetters, Retried
from pxrs.runtime.delivery import Context
from pxrs.stores.base import ABSENT, Swap
from pxrs.stores.memory import MemoryStore, SharedRows
from tests.runtime.support import HASTY, PATIENT, Recorder, Site, eventually

CONTEXT = Context("A", 1, 1)


class Poison(Exception):
    """What handlers fail with."""


class Mute(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def fail(message: Message) -> None:
    raise Poison(message.value.decode())


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[pxrs.Queue]:
    with pxrs.open(f"file:{tmp_path}/orders", partitions=1, settings=PATIENT) as queue:
        yield queue


def send(queue: pxrs.Queue, *values: bytes, **more: Any) -> list[Message]:
    with queue.producer() as producer:
        for value in values:
            producer.send("k", value, **more)
    return queue.read(0, 0, 1_000)


def box_of(queue: pxrs.Queue, group: str = "g", log: Log | None = None) -> DeadLetters:
    return DeadLetters(log or queue.log, queue.store, f"/{group}/dead-letters", group, SystemClock())


def keep(box: DeadLetters, message: Message, cause: BaseException | str = "no", stack: str = "") -> None:
    box.keep(message, cause, stack, 1, CONTEXT)


# ---- what an error says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("unknown \ud800"), Mute(), ValueError("x" * 3_000_000)])
def test_any_error_can_be_kept(queue: pxrs.Queue, error: Exception) -> None:
    [message] = send(queue, b"bad")
    keep(box_of(queue), message, error, "start " + "\udc80" * 100_000 + " the end")
    [letter] = box_of(queue)
    assert letter.value == b"bad" and letter.cause.startswith(type(error).__name__)
    assert len(letter.cause.encode()) <= 4_096 and len(letter.stack.encode()) <= 16_384
    assert letter.stack.endswith("the end")


def test_a_header_of_the_user_stays_the_users_whatever_its_name_and_bytes(queue: pxrs.Queue) -> None:
    headers = {"pxrs.trace": b"\xff\x00", "pxrs.cause": b"mine", "pxrs.offset": b"x", "~a": b"1", "plain": b"2"}
    [message] = send(queue, b"v", headers=headers)
    keep(box_of(queue), message, ValueError("no"))
    [letter] = box_of(queue)
    assert letter.headers == headers and letter.cause == "ValueError: no" and letter.offset == 0


def test_a_letter_of_an_older_version_is_read_also_a_spoilt_one(queue: pxrs.Queue) -> None:
    box = queue.log.sibling("dead-letters/g", 1, True)
    assert box is not None
    headers = {"pxrs.cause": b"E: \xff", "pxrs.offset": b"?", "pxrs.tries": b"3", "pxrs.trace": b"\xff", "a": b"1"}
    row = {"timestamp": 0, "key": None, "value": b"v", "id": b"i" * 16, "tenant": None}
    pairs = [{"key": name, "value": value} for name, value in headers.items()]
    box.append({0: pa.RecordBatch.from_pylist([row | {"headers": pairs}], ENTRY_SCHEMA)})
    [letter] = box_of(queue)
    assert (letter.cause, letter.offset, letter.tries, letter.log) == ("E: \\xff", -1, 3, "")
    assert letter.headers == {"pxrs.trace": b"\xff", "a": b"1"}


# ---- a message too large for a letter --------------------------------------------------------------------------------


class SmallBox(MemoryLog):
    """A log whose siblings take small messages only."""

    largest = 2_000

    @property
    def largest_message(self) -> int:
        return self.largest

    def append(self, batches: Any, stamps: Any = None) -> Any:
        for batch in batches.values():
            if max(row_bytes(batch)) > self.largest:
                raise Refused("too large")
        return super().append(batches, stamps)


@pytest.fixture
def small(queue: pxrs.Queue, monkeypatch: pytest.MonkeyPatch) -> DeadLetters:
    """A box that takes 2,000 bytes, beside a queue that takes more."""
    box = SmallBox.open("memory:", OpenOptions(1), PATIENT, True)
    monkeypatch.setattr(type(queue.log), "sibling", lambda *_: box)
    return box_of(queue)


def test_a_message_too_large_for_a_letter_is_kept_by_reference(queue: pxrs.Queue, small: DeadLetters) -> None:
    large = send(queue, b"x" * 5_000, headers={"a": b"1"})[0]
    keep(small, large, ValueError("no"), "a stack")
    [letter] = small
    assert letter.by_reference and letter.value == b"x" * 5_000 and letter.key == b"k" and letter.headers == {"a": b"1"}
    assert letter.cause == "ValueError: no" and letter.stack == "a stack"


def test_a_long_stack_is_cut_until_the_letter_fits(queue: pxrs.Queue, small: DeadLetters) -> None:
    [message] = send(queue, b"small")
    keep(small, message, ValueError("y" * 4_000), "é" * 8_000 + "the end")
    [letter] = small
    assert not letter.by_reference and letter.value == b"small", "retention may delete what a letter refers to"
    assert letter.cause.startswith("ValueError: y") and letter.stack.endswith("the end")


@pytest.mark.parametrize("size", [*range(1_200, 2_000, 37), 5_000])
def test_the_message_comes_before_its_stack(queue: pxrs.Queue, small: DeadLetters, size: int) -> None:
    [message] = send(queue, b"x" * size)
    keep(small, message, ValueError("y" * 4_000), "é" * 8_000 + "the end")
    [letter] = small
    assert letter.value == b"x" * size and letter.cause.startswith("ValueError: y")
    assert letter.by_reference or letter.stack.endswith("the end") or not letter.stack
    assert not letter.by_reference or size > 1_300, "what is needed beside a message is below 700 bytes"


def test_a_letter_whose_message_is_gone_says_so_and_is_not_sent(queue: pxrs.Queue, small: DeadLetters) -> None:
    large = send(queue, b"x" * 5_000)[0]
    keep(small, large._replace(offset=7))
    [letter] = small
    assert letter.missing and letter.value == b""
    with pytest.raises(Refused, match=r"dead letter 0: it was too large.*nothing was sent"):
        small.retry([0])
    assert small.retry() == []


# ---- which message a letter is about ---------------------------------------------------------------------------------


def test_the_same_message_is_kept_once_and_another_one_in_its_place_too(queue: pxrs.Queue) -> None:
    one, two = send(queue, b"one", b"two")
    box = box_of(queue)
    keep(box, one)
    keep(box, one)
    keep(box, two._replace(offset=one.offset))  # as after a repair that cut the log
    assert [letter.value for letter in box] == [b"one", b"two"]


def test_a_message_of_a_queue_that_was_created_anew_is_another_one(queue: pxrs.Queue, tmp_path: Path) -> None:
    [one] = send(queue, b"one")
    with pxrs.open(f"file:{tmp_path}/anew", partitions=1) as anew:
        shared = queue.log.sibling("dead-letters/g", 1, True)
        for source in (queue, anew):
            box = box_of(source)
            box._box = shared
            keep(box, one)
        assert [letter.log for letter in box] == [queue.log.identity.id, anew.log.identity.id]


def test_a_second_failure_after_a_retry_and_a_seek_back_is_seen(queue: pxrs.Queue) -> None:
    [message] = send(queue, b"poison")
    box = box_of(queue)
    keep(box, message)
    assert box.retry([0]) == [0]
    for _ in range(2):
        keep(box, message)
    assert [(letter.number, letter.retried) for letter in box] == [(0, True), (1, False)]


# ---- sending again ---------------------------------------------------------------------------------------------------


def test_a_retry_is_for_its_own_group_and_others_pass_over_it() -> None:
    """Also in the middle of a batch, and in every way of delivery."""
    with Site(partitions=1, settings=HASTY.with_(tries=1)) as site:
        site.send(3)
        with site.queue.consumer("g", Recorder(fail)):
            eventually(lambda: site.lag() == 0, "three letters")
        assert site.queue.group("g").dead_letters.retry([0, 2]) == [0, 2]
        site.send(2, first=3)
        for deliver in ("message", "list", "arrow"):
            _check_other_group(site, f"other-{deliver}", deliver)
        own = Recorder()
        with site.queue.consumer("g", own):
            eventually(lambda: site.lag() == 0, "its own letters")
        assert own.values == [b"message-0", b"message-2", b"message-3", b"message-4"]


def _check_other_group(site: Site, group: str, deliver: Any) -> None:
    seen: list[bytes] = []

    def handle(given: Any) -> None:
        if deliver == "arrow":
            seen.extend(given.column("value").to_pylist())
        else:
            seen.extend(message.value for message in (given if deliver == "list" else [given]))

    handle_of = site.queue.group(group)
    with site.queue.consumer(group, handle, deliver=deliver) as consumer:
        eventually(lambda: handle_of.describe().total_lag == 0, "everything but the letters")
        assert seen == [b"message-%d" % n for n in range(5)], "it never sees what was sent again for g"
        assert (consumer.tally.passed_over, consumer.tally.handled) == (2, 5)
        eventually(lambda: handle_of.describe().passed_over == 2, "the count in describe, with the next beat")


def test_a_retry_for_all_groups_is_seen_by_all() -> None:
    with Site(partitions=1, settings=PATIENT.with_(tries=1)) as site:
        site.send(1)
        with site.queue.consumer("g", Recorder(fail)):
            eventually(lambda: site.lag() == 0, "the letter")
        assert site.queue.group("g").dead_letters.retry(all_groups=True) == [0]
        other = Recorder()
        with site.queue.consumer("other", other):
            eventually(lambda: len(other) == 2, "the message and its second coming")


def test_a_letter_that_fails_again_is_sent_again_with_one_mark(queue: pxrs.Queue) -> None:
    [message] = send(queue, b"poison", headers={"a": b"1"})
    box = box_of(queue)
    keep(box, message)
    box.retry()
    keep(box, queue.read(0, 1, 1)[0])
    assert box.get(1).headers == {"a": b"1", ONLY_FOR: Reader(queue.log.identity.id, "g").mark(0)}
    assert box.retry() == [1], "what was sent again is left out"
    assert queue.read(0, 2, 1)[0].headers == {"a": b"1", ONLY_FOR: Reader(queue.log.identity.id, "g").mark(1)}


def test_a_letter_that_is_not_there_is_named_and_nothing_is_sent(queue: pxrs.Queue) -> None:
    [message] = send(queue, b"poison")
    box = box_of(queue)
    with pytest.raises(NotFound):
        box.retry([0])
    keep(box, message)
    with pytest.raises(NotFound, match="no dead letter 1"):
        box.retry([0, 1])
    assert queue.log.bounds(0) == (0, 1)


def test_nobody_but_a_retry_writes_the_mark(queue: pxrs.Queue) -> None:
    table = pa.table({"key": ["k"], "value": [b"v"], "headers": [[{"key": ONLY_FOR, "value": b"x"}]]})
    with queue.producer() as producer:
        with pytest.raises(Refused, match="only `pxrs dlq retry`"):
            producer.send("k", b"v", headers={ONLY_FOR: b"x"})
        with pytest.raises(Refused, match=r"row 0.*only `pxrs dlq retry`"):
            producer.send_batch(table)
    with pytest.raises(Refused, match="only `pxrs dlq retry`"):
        queue.named_producer("n").send_batch(table, 0)
    assert queue.log.bounds(0) == (0, 0)


# ---- which were sent again -------------------------------------------------------------------------------------------


def test_rows_about_retried_letters_stay_small_however_many_there_are() -> None:
    store = MemoryStore(SharedRows())
    retried = Retried(store, "/g/dead-letters")
    many = set(range(3 * BLOCK))
    retried.add("box", many)
    rows = store.scan("/g/dead-letters")
    assert len(rows) == 3 and max(len(row.value) for row in rows) < 40_000
    assert retried.numbers("box", 3 * BLOCK) == many


def test_what_an_older_version_has_marked_still_counts_and_another_box_does_not() -> None:
    store = MemoryStore(SharedRows())
    retried = Retried(store, "/g/dead-letters")
    _write(store, {"v": 1, "retried": [1, 5_000]})
    assert retried.numbers("box", 5_001) == {1, 5_000}
    retried.add("box", {2})
    assert retried.numbers("box", 5_001) == {1, 2, 5_000} and retried.numbers("another", 5_001) == set()
    _write(store, {"v": 1, "retried": "x"})
    with pytest.raises(Damaged, match="/g/dead-letters"):
        retried.numbers("box", 1)


def _write(store: MemoryStore, value: Any) -> None:
    row = store.read(["/g/dead-letters"])[0]
    store.swap_each([Swap("/g/dead-letters", row.version if row else ABSENT, json.dumps(value).encode())])


# ---- a box that cannot be written ------------------------------------------------------------------------------------


def test_a_disk_that_refuses_is_unavailable_and_the_next_try_keeps_the_letter(
    queue: pxrs.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    [message] = send(queue, b"poison")
    box = box_of(queue)

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(type(queue.log), "append", full)
        with pytest.raises(Unavailable, match=r"dead-letters/g of queue 'orders'.*No space left"):
            keep(box, message)
    keep(box, message)
    assert [letter.value for letter in box] == [b"poison"]
