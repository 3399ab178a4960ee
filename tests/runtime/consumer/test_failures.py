"""Handlers that fail, hang or are slow: nothing is skipped silently, and the rest goes on."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pxrs.errors import HandlerFailed, NotFound
from pxrs.io.clock import SystemClock
from pxrs.model import Grant, Message, Owner
from pxrs.runtime.consumer.job import Job
from pxrs.runtime.consumer.worker import Worker
from pxrs.runtime.delivery import Context
from tests.runtime.support import DEADLINE, HASTY, NO_LINK, PATIENT, Recorder, Site, eventually


class Poison(Exception):
    """What the handlers of this file fail with."""


def refuse(*bad: bytes) -> Any:
    def act(message: Message) -> None:
        if message.value in bad:
            raise Poison(f"cannot take {message.value!r}")

    return act


# ---- retries ------------------------------------------------------------------------------------------------------


def test_a_handler_that_recovers_is_tried_again_with_a_rising_attempt() -> None:
    attempts: list[int] = []

    def handle(message: Message, context: Context) -> None:
        attempts.append(context.attempt)
        if context.attempt < 3:
            raise Poison("not yet")

    with Site(partitions=1) as site:
        site.send(1)
        consumer = site.member("A", handle)
        eventually(lambda: site.lag() == 0, "success")
        assert attempts == [1, 2, 3]
        assert consumer.tally.retried == 2
        assert list(site.queue.group("g").dead_letters) == []


class PassingTime(SystemClock):
    """A clock that stands still until somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def wait(self, timeout: float) -> None:
        self.waits.append(round(timeout, 3))
        self.now += timeout


def test_back_off_doubles_up_to_its_limit() -> None:
    time = PassingTime()
    settings = PATIENT.with_(backoff_ms=100, backoff_max_ms=400)
    nothing: Any = None
    log: Any = SimpleNamespace()
    job = Job(log, settings, time, print, "message", int, nothing, NO_LINK)
    job.alive_until = float("inf")
    worker = Worker(job, Grant(0, Owner("A", "1"), 1), 0, paused=False)
    worker._wake_event.wait = time.wait  # type: ignore[method-assign, assignment]  # time passes when it is waited for
    for tries in range(1, 6):
        assert worker._back_off(tries)
    assert time.waits == [0.1, 0.2, 0.4, 0.4, 0.4]
    worker.drain()
    assert not worker._back_off(1), "a partition that is to be given up is not tried again"
    assert len(time.waits) == 5


# ---- policies -----------------------------------------------------------------------------------------------------


def test_b70_a_poisoned_message_is_kept_with_its_cause_and_the_partition_goes_on() -> None:
    handler = Recorder(refuse(b"message-3"))
    with Site(partitions=1) as site:
        values = site.send(10)
        consumer = site.member("A", handler)
        eventually(lambda: site.lag() == 0, "the whole partition")
        assert handler.values == [value for value in values if value != b"message-3"], "the others, in order"
        [letter] = site.queue.group("g").dead_letters
        assert (letter.partition, letter.offset, letter.value, letter.tries) == (0, 3, b"message-3", 3)
        assert letter.cause == "Poison: cannot take b'message-3'"
        assert "in act" in letter.stack and "Traceback" in letter.stack
        assert letter.member == "A" and not letter.retried
        assert consumer.tally.dead_lettered == 1 and consumer.tally.retried == 2


def test_b70_the_dead_letter_is_stored_before_the_checkpoint_passes_it() -> None:
    with Site(partitions=1, settings=PATIENT.with_(tries=1)) as site:
        site.send(1)
        seen: list[tuple[int | None, int]] = []

        def look(swaps: Any) -> None:
            if any("/partition/" in swap.key for swap in swaps):
                stored = site.queue.group("g").registry.partition(0).checkpoint
                seen.append((stored, len(list(site.queue.group("g").dead_letters))))

        site.member("A", Recorder(refuse(b"message-0")), prepare=lambda store: setattr(store, "after", look))
        eventually(lambda: (1, 1) in seen, "the checkpoint behind the letter")
        assert (1, 0) not in seen


def test_a_repeated_run_keeps_the_same_letter_once() -> None:
    with Site(partitions=1) as site:
        site.send(1)
        with site.queue.consumer("g", Recorder(refuse(b"message-0"))):
            eventually(lambda: site.lag() == 0, "the letter")
        site.queue.group("g").seek({0: 0})
        with site.queue.consumer("g", Recorder(refuse(b"message-0"))):
            eventually(lambda: site.lag() == 0, "the letter again")
        assert len(list(site.queue.group("g").dead_letters)) == 1


def test_dead_letters_can_be_looked_up_and_marked() -> None:
    with Site(partitions=1, settings=PATIENT.with_(tries=1)) as site:
        site.send(3)
        with site.queue.consumer("g", Recorder(refuse(b"message-0", b"message-2"))):
            eventually(lambda: site.lag() == 0, "two letters")
        box = site.queue.group("g").dead_letters
        assert box.get(1).value == b"message-2"
        box.mark_retried({1})
        assert [letter.retried for letter in box] == [False, True]
        with pytest.raises(NotFound):
            box.get(2)


def test_skip_says_so_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    handler = Recorder(refuse(b"message-1"))
    with Site(partitions=1, settings=PATIENT.with_(on_failure="skip", tries=2)) as site:
        site.send(3)
        consumer = site.member("A", handler)
        eventually(lambda: site.lag() == 0, "the rest")
        assert handler.values == [b"message-0", b"message-2"]
        assert consumer.tally.skipped == 1
        assert list(site.queue.group("g").dead_letters) == []
    [line] = [r for r in caplog.records if "skipped partition 0 offset 1" in r.getMessage()]
    assert line.levelno == logging.ERROR


def test_stop_raises_and_leaves_the_message_for_later() -> None:
    with Site(partitions=1, settings=PATIENT.with_(on_failure="stop", tries=2)) as site:
        site.send(5)
        consumer = site.queue.consumer("g", Recorder(refuse(b"message-2")))
        with pytest.raises(HandlerFailed, match=r"partition 0 offset 2: handler failed 2 times") as caught:
            consumer.run()
        assert isinstance(caught.value.__cause__, Poison)
        assert site.queue.group("g").describe()[0].checkpoint == 2
        assert site.queue.group("g").members() == [], "it has left the group"


def test_b71_one_bad_message_in_a_list_of_500_leaves_499() -> None:
    taken: list[int] = []

    def handle(messages: list[Message]) -> None:
        if any(message.offset == 250 for message in messages):
            raise Poison("one of these")
        taken.extend(message.offset for message in messages)

    with Site(partitions=1, settings=PATIENT.with_(deliver_rows=500)) as site:
        site.send(500)
        site.member("A", handle, deliver="list")
        eventually(lambda: site.lag() == 0, "the pack")
        assert taken == [offset for offset in range(500) if offset != 250]
        [letter] = site.queue.group("g").dead_letters
        assert (letter.offset, letter.value, letter.tries) == (250, b"message-250", 3)


def test_b71_one_bad_row_in_an_arrow_batch_of_500_leaves_499() -> None:
    taken: list[int] = []

    def handle(batch: Any) -> None:
        offsets = batch.column("offset").to_pylist()
        if 250 in offsets:
            raise Poison("one of these")
        taken.extend(offsets)

    with Site(partitions=1, settings=PATIENT.with_(deliver_rows=500)) as site:
        site.send(500)
        site.member("A", handle, deliver="arrow")
        eventually(lambda: site.lag() == 0, "the batch")
        assert taken == [offset for offset in range(500) if offset != 250]
        assert [letter.offset for letter in site.queue.group("g").dead_letters] == [250]


def test_b25_a_failing_message_in_the_middle_holds_the_checkpoint() -> None:
    blocked, go_on = threading.Event(), threading.Event()

    def act(message: Message) -> None:
        if message.offset == 3 and not go_on.is_set():
            blocked.set()
            raise Poison("not yet")

    settings = PATIENT.with_(commit_every=1, commit_interval_ms=1, tries=1_000_000, backoff_max_ms=1)
    handler = Recorder(act)
    with Site(partitions=1, settings=settings) as site:
        site.send(8)
        site.member("A", handler)
        assert blocked.wait(DEADLINE)
        eventually(
            lambda: site.queue.group("g").registry.partition(0).checkpoint == 3, "1, 2, 3 finished: the commit is 3"
        )
        assert [h.offset for h in handler.seen] == [0, 1, 2]
        go_on.set()
        eventually(lambda: site.lag() == 0, "the rest")
        assert max(f["checkpoint"] for f in site.diaries["A"].of("committed")) == 8


# ---- slow and hung ------------------------------------------------------------------------------------------------


def test_b20_a_handler_slower_than_many_beats_stays_in_the_group() -> None:
    def slow(message: Message) -> None:
        if message.offset == 0:
            before = beats()
            eventually(lambda: beats() >= before + 5, "five beats while the handler runs")

    def beats() -> int:
        return sum(key.endswith("/member/A") for key in site.stores["A"].writes)

    with Site(partitions=2, settings=HASTY.with_(lease_ms=30_000, beat_ms=100)) as site:
        site.member("B", Recorder())
        site.await_owners("B")
        handler = Recorder(slow)
        site.member("A", handler)
        site.await_owners("A", "B")
        site.send(20)
        eventually(lambda: site.lag() == 0, "everything")
        assert len(handler) == 10
        assert site.diaries["A"].of("lost") == [] and len(site.diaries["A"].of("joined")) == 1
        assert site.diaries["A"].called("revoked") == []


def test_a_slow_partition_leaves_the_others_undisturbed() -> None:
    go_on = threading.Event()

    def slow(message: Message) -> None:
        if message.partition == 0:
            go_on.wait(DEADLINE)

    handler = Recorder(slow)
    with Site(partitions=4) as site:
        site.send(400)
        site.member("A", handler)
        eventually(lambda: len(handler) == 300, "all of the other three while one is stuck")
        eventually(lambda: site.lag() == 100, "their commits")
        go_on.set()
        eventually(lambda: site.lag() == 0, "the slow one")


@pytest.mark.slow
def test_b17_a_hung_handler_loses_its_partition_and_the_others_move_meanwhile() -> None:
    go_on = threading.Event()
    hung: set[int] = set()

    def hang(message: Message) -> None:
        if message.partition == 3:
            hung.add(message.partition)
            go_on.wait(DEADLINE)

    first, second = Recorder(hang), Recorder()
    with Site(partitions=4, settings=HASTY.with_(lease_ms=20_000, revoke_timeout_ms=5_000)) as site:
        site.send(40)
        site.member("A", first)
        eventually(lambda: hung and site.lag() == 10, "three partitions done, one stuck")
        site.member("B", second)
        eventually(lambda: site.owners()[2] == "B", "partition 2 moves while partition 3 hangs")
        eventually(lambda: site.owners()[3] == "B", "partition 3, by force")
        eventually(lambda: len(second) >= 10, "the stuck partition's messages, by its new owner")
        eventually(lambda: site.lag() == 0, "its commits")
        assert [facts["partitions"] for facts in site.diaries["A"].of("forced")] == [[3]]
        go_on.set()
        eventually(lambda: len(first) == 31, "the late end of the hung handler")
        assert site.queue.group("g").registry.partition(3).checkpoint == 10
        assert site.diaries["A"].partitions("lost") == [3]
        assert 2 not in site.diaries["A"].partitions("lost")


def test_a_member_without_progress_steps_back_although_it_beats() -> None:
    go_on = threading.Event()

    def hang(_: Message) -> None:
        go_on.wait(DEADLINE)

    handler = Recorder()
    settings = HASTY.with_(progress_limit_ms=1_500)
    with Site(partitions=2, settings=settings) as site:
        site.member("A", hang)
        site.await_owners("A")
        site.member("B", handler)
        site.await_owners("A", "B")
        site.send(20)
        site.await_owners("B")
        eventually(lambda: site.lag() == 0, "everything, by the one that works")
        assert len(handler) == 20
        assert [m.state for m in site.queue.group("g").members() if m.member == "A"] == ["stalled"]
        go_on.set()
        site.await_owners("A", "B")
        assert len(site.diaries["A"].of("active")) == 1


def test_a_leaving_member_does_not_wait_for_a_hung_handler_for_ever() -> None:
    go_on, started = threading.Event(), threading.Event()

    def hang(_: Message) -> None:
        started.set()
        go_on.wait(DEADLINE)

    handler = Recorder()
    with Site(partitions=1, settings=HASTY.with_(lease_ms=30_000, drain_ms=100)) as site:
        site.send(3)
        consumer = site.member("A", hang)
        assert started.wait(DEADLINE)
        consumer.stop()
        assert consumer.state == "stopped"
        site.member("B", handler)
        eventually(lambda: site.lag() == 0, "all three, by the other")
        go_on.set()
        assert [h.offset for h in handler.seen] == [0, 1, 2]
        assert "forced" in [line.cause for line in site.queue.group("g").history(0)]


def test_a_failing_callback_stops_the_consumer_but_not_the_hand_over() -> None:
    def fail(*_: object) -> None:
        raise Poison("callback")

    with Site(partitions=2) as site:
        consumer = site.queue.consumer("g", Recorder(), revoked=fail).start()
        eventually(lambda: consumer.partitions == [0, 1], "its partitions")
        consumer.stop()
        assert isinstance(consumer.error, HandlerFailed)
        assert [line.owner for line in site.queue.group("g").describe()] == [None, None]
        with pytest.raises(HandlerFailed, match="callback"):
            site.queue.consumer("g", Recorder(), assigned=fail).run()
        assert [line.owner for line in site.queue.group("g").describe()] == [None, None]
