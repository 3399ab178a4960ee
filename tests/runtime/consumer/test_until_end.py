"""run(until_end=True) and drain: all that was there at the start, by whichever member, then a clean leave."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import pxrs
from pxrs.errors import BadSetting, BeyondEnd, StopConsuming, Unavailable
from pxrs.io.clock import SystemClock
from pxrs.runtime.group import until_end as finish
from pxrs.runtime.group.until_end import FinishLine
from pxrs.sinks import ParquetSink
from pxrs.testing import drain
from tests.runtime.support import DEADLINE, PATIENT, eventually


@pytest.fixture
def queue() -> Iterator[pxrs.Queue]:
    with pxrs.open("memory:", partitions=4, settings=PATIENT) as queue:
        send(queue, 40)
        yield queue


def send(queue: pxrs.Queue, count: int) -> None:
    with queue.producer() as producer:
        for number in range(count):
            producer.send(f"k{number}", f"{number}")


def lag(queue: pxrs.Queue, group: str = "g") -> int:
    return queue.group(group).describe().total_lag


def in_thread(consumer: pxrs.Consumer) -> threading.Thread:
    thread = threading.Thread(target=consumer.run, args=(True,), daemon=True)
    thread.start()
    return thread


def test_it_processes_what_was_there_leaves_and_returns(queue: pxrs.Queue) -> None:
    seen: list[pxrs.Message] = []
    slow = PATIENT.with_(commit_interval_ms=3_600_000, commit_every=1_000_000)  # the leave commits, not the policy
    consumer = queue.consumer("g", seen.append, settings=slow)
    consumer.run(until_end=True)
    assert len(seen) == 40 and lag(queue) == 0 and consumer.state == "stopped"
    assert queue.group("g").members() == []


def test_it_takes_the_ends_at_the_start_and_does_not_chase_its_own_output(queue: pxrs.Queue) -> None:
    with queue.producer() as producer:
        queue.consumer("g", lambda message: producer.send(message.key, b"again").result()).run(until_end=True)
    assert sum(queue.ends().values()) >= 80


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_an_empty_stretch_ends_at_once(queue: pxrs.Queue, start: str) -> None:
    seen: list[Any] = []
    queue.consumer("g", seen.append, start=start).run(until_end=True)
    queue.consumer("g", seen.append, start=start).run(until_end=True)
    assert len(seen) == (0 if start == "latest" else 40)


def test_it_waits_for_the_partitions_of_other_members(queue: pxrs.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    looks: list[Any] = []
    other = queue.consumer("g", lambda _: go_on.wait(DEADLINE), member="B").start()
    eventually(lambda: len(other.partitions) == 4, "B owns all")
    me = queue.consumer("g", lambda _: None, member="A")
    look = FinishLine.left

    def counted(line: FinishLine, member: finish.WorkingMember) -> Any:
        looks.append(look(line, member))
        return looks[-1]

    monkeypatch.setattr(FinishLine, "left", counted)
    thread = in_thread(me)
    eventually(lambda: len(looks) > 3 and looks[-1], "it has looked, and something is left")
    assert thread.is_alive()
    go_on.set()
    thread.join(DEADLINE)
    assert not thread.is_alive() and lag(queue) == 0
    other.stop()


def test_paused_partitions_do_not_count_and_are_named(queue: pxrs.Queue, caplog: pytest.LogCaptureFixture) -> None:
    consumer = queue.consumer("g", lambda _: None)
    queue.make_group("g").pause([1, 2])
    consumer.run(until_end=True)
    lines = queue.group("g").describe()
    assert [line.lag for line in lines if not line.paused] == [0, 0] and lag(queue) > 0
    assert "partitions 1-2 are paused and not at their end; they do not count" in caplog.text


def test_what_is_waited_for_is_named_when_nothing_moves(
    queue: pxrs.Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "QUIET_SECONDS", 0.0)
    go_on = threading.Event()
    thread = in_thread(queue.consumer("g", lambda _: go_on.wait(DEADLINE), member="A"))
    eventually(lambda: "waits for partition 0 at 0 of" in caplog.text, "a line that says so")
    assert "(owner A)" in caplog.text
    go_on.set()
    thread.join(DEADLINE)


def test_a_partition_whose_log_cannot_be_read_is_named_with_the_reason(
    queue: pxrs.Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "QUIET_SECONDS", 0.0)
    read, broken = queue.log.read, threading.Event()

    def failing(partition: int, offset: int, limit: int) -> Any:
        if partition == 3 and not broken.is_set():
            raise Unavailable("the disk is away")
        return read(partition, offset, limit)

    monkeypatch.setattr(queue.log, "read", failing)
    consumer = queue.consumer("g", lambda _: None)
    thread = in_thread(consumer)
    eventually(lambda: "held up: the disk is away" in caplog.text, "a line with the reason")
    broken.set()
    consumer.stop()
    thread.join(DEADLINE)
    assert not thread.is_alive()


def test_a_checkpoint_ahead_of_the_log_is_refused_before_the_start(queue: pxrs.Queue) -> None:
    consumer = queue.consumer("g", lambda _: None)
    queue.make_group("g").registry.seek({2: 5_000}, {})
    with pytest.raises(BeyondEnd):
        consumer.run(until_end=True)


def test_an_end_that_was_not_committed_is_not_passed_over(queue: pxrs.Queue) -> None:
    queue.make_group("g")
    with pytest.raises(Unavailable, match=r"partitions 0-3 were taken away .* run it again"):
        FinishLine(queue.group("g"), SystemClock()).confirm()


# ---- drain -----------------------------------------------------------------------------------------------------------


def test_drain_returns_what_was_done(queue: pxrs.Queue) -> None:
    seen: list[pxrs.Message] = []
    assert drain(queue, "g", seen.append).handled == len(seen) == 40
    send(queue, 2)
    assert drain(queue, "g", seen.append).handled == 2 and lag(queue) == 0


def test_drain_raises_the_handlers_own_error_and_the_message_stays(queue: pxrs.Queue) -> None:
    def fail(message: pxrs.Message) -> None:
        raise LookupError(message.text)

    with pytest.raises(LookupError):
        drain(queue, "g", fail)
    assert lag(queue) == 40 and drain(queue, "g", lambda _: None).handled == 40


def test_drain_can_fail_as_production_does(queue: pxrs.Queue) -> None:
    def fail(message: pxrs.Message) -> None:
        if message.text == "7":
            raise LookupError("seven")

    done = drain(queue, "g", fail, on_failure="dead-letter", tries=2)
    assert (done.handled, done.dead_lettered, done.retried) == (40, 1, 1)
    assert [letter.cause for letter in queue.group("g").dead_letters] == ["LookupError: seven"]


def test_drain_with_a_sink_and_arrow(queue: pxrs.Queue, tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")
    drain(queue, "g", lambda batch: batch.select(["value"]), deliver="arrow", sink=sink)
    written = ds.dataset(tmp_path / "out").to_table()
    assert written.num_rows == 40


def test_drain_says_what_it_waits_for_when_the_time_is_over(queue: pxrs.Queue) -> None:
    go_on = threading.Event()

    def slow(message: pxrs.Message) -> None:
        if message.partition == 2:
            go_on.wait(DEADLINE)

    with pytest.raises(TimeoutError, match=r"not through after 0\.5 s; it waits for .*partition 2 at 0 of"):
        drain(queue, "g", slow, timeout=0.5, settings=PATIENT.with_(drain_ms=50))
    go_on.set()


def test_drain_ends_where_a_handler_has_had_enough(queue: pxrs.Queue) -> None:
    def enough(message: pxrs.Message) -> None:
        raise StopConsuming

    assert drain(queue, "g", enough).handled == 0 and lag(queue) == 40


def test_drain_refuses_what_is_no_queue() -> None:
    with pytest.raises(
        BadSetting, match=r"queue = 'file:\./q': must be an open queue, as pxrs\.open\('file:\./q'\) is"
    ):
        drain("file:./q", "g", print)  # type: ignore[arg-type]  # the mistake


def test_drain_refuses_async_handlers(queue: pxrs.Queue) -> None:
    async def handle(message: pxrs.Message) -> None: ...

    with pytest.raises(BadSetting, match="is async: it would return before its work is done; use def"):
        drain(queue, "g", handle)


# ---- output that is committed and not shown --------------------------------------------------------------------------


class Full(ParquetSink):
    """A disk that is full when output is to be shown."""

    full = True

    def publish(self, note: str) -> None:
        if self.full and note:
            raise Unavailable("No space left on device")
        super().publish(note)


def sinking(queue: pxrs.Queue, sink: ParquetSink, member: str = "A") -> pxrs.Consumer:
    return queue.consumer("g", lambda batch: batch.select(["value"]), member, deliver="arrow", sink=sink)


@pytest.fixture
def single() -> Iterator[pxrs.Queue]:
    with pxrs.open("memory:", partitions=1, settings=PATIENT) as queue:
        send(queue, 1)
        yield queue


def test_it_waits_as_long_as_output_is_committed_and_not_shown(single: pxrs.Queue, tmp_path: Path) -> None:
    sink = Full(tmp_path / "out")
    consumer = sinking(single, sink)
    thread = in_thread(consumer)
    eventually(lambda: consumer.troubles and lag(single) == 0, "all is committed, and waits")
    line = FinishLine(single.group("g"), SystemClock())
    assert set(line.left(consumer) or {}) == {0} and thread.is_alive()
    sink.full = False
    thread.join(DEADLINE)
    assert not thread.is_alive() and ds.dataset(tmp_path / "out").to_table().num_rows == 1


def test_the_next_run_shows_what_a_stop_left_unshown(single: pxrs.Queue, tmp_path: Path) -> None:
    consumer = sinking(single, Full(tmp_path / "out")).start()
    line = FinishLine(single.group("g"), SystemClock())
    eventually(lambda: consumer.troubles and lag(single) == 0, "all is committed, and waits")
    consumer.stop()
    with pytest.raises(Unavailable, match=r"partitions 0 is committed, and could not be shown; run it again"):
        line.confirm(consumer.unshown)
    sinking(single, ParquetSink(tmp_path / "out"), "B").run(until_end=True)
    assert ds.dataset(tmp_path / "out").to_table().num_rows == 1
