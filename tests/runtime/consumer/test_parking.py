"""An error of a message, a dead letter or a log parks a partition or puts a message aside; it ends no member."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pxrs.errors import BadSetting, BeyondEnd, Fenced, HandlerFailed, Mismatch, NotFound, Refused, Unavailable
from pxrs.io.clock import SystemClock
from pxrs.io.signals import Nudge
from pxrs.model import Message
from pxrs.runtime.dead_letters.box import DeadLetters
from pxrs.runtime.failures.parking import PARKED_SECONDS, Parking, ends_member, pause_after, refuses_message
from pxrs.stores.memory import MemoryStore
from tests.runtime.support import PATIENT, Recorder, Site, eventually

BAD = b"message-5"


class Odd(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Base(BaseException):
    """Not an Exception, and no wish to end the process."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "a lone surrogate": lambda: ValueError("unknown \ud800"),
    "an error without a text": Odd,
    "a cancelled task": asyncio.CancelledError,
    "another BaseException": lambda: Base("odd"),
    "a huge text": lambda: ValueError("x" * 5_000_000),
}


@pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS.keys())
@pytest.mark.parametrize("deliver", ["message", "list"])
def test_whatever_a_handler_raises_the_message_is_put_aside_and_the_member_goes_on(
    make: Callable[[], BaseException], deliver: Any
) -> None:
    def handle(got: Any) -> None:
        messages = [got] if isinstance(got, Message) else got
        if any(message.value == BAD for message in messages):
            raise make()

    with Site(partitions=2, settings=PATIENT.with_(tries=2)) as site:
        consumer = site.queue.consumer("g", handle, deliver=deliver).start()
        site.send(20)
        eventually(lambda: site.lag() == 0, "everything is settled")
        letters = list(site.queue.group("g").dead_letters)
        assert [letter.value for letter in letters] == [BAD]
        assert letters[0].cause.startswith(type(make()).__name__) and len(letters[0].cause.encode()) <= 4096
        assert len(letters[0].stack.encode()) <= 16_384
        assert consumer.error is None and consumer.state == "live"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_process_ends_its_consumer(error: type[BaseException]) -> None:
    def handle(_: Message) -> None:
        raise error

    with Site(partitions=1) as site:
        site.send(1)
        consumer = site.queue.consumer("g", handle).start()
        assert consumer.wait(30)
        assert isinstance(consumer.error, HandlerFailed) and error.__name__ in str(consumer.error)


@pytest.mark.parametrize("trouble", [Unavailable("the log is away"), OSError(28, "No space left on device")])
def test_dead_letters_that_cannot_be_written_park_one_partition_visibly(
    trouble: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, away = DeadLetters.keep, threading.Event()

    def keep(self: DeadLetters, *args: Any) -> None:
        if not away.is_set():
            raise trouble
        kept(self, *args)

    def handle(message: Message) -> None:
        if message.value == BAD:
            raise ValueError("no")

    monkeypatch.setattr(DeadLetters, "keep", keep)
    with Site(partitions=2, settings=PATIENT.with_(tries=1, lease_ms=1_500, progress_limit_ms=60_000)) as site:
        consumer = site.queue.consumer("g", handle, member="A").start()
        site.send(20)
        eventually(lambda: site.lag() == 8, "the other partition is done, this one waits at the bad message")
        assert [str(trouble) in str(found) for found in consumer.troubles.values()] == [True]
        registry = site.queue.group("g").registry
        eventually(lambda: any(dict(row.parked) for row in registry.members()), "the member's row shows it")
        ((partition, reason),) = registry.members()[0].parked
        assert {partition} == set(consumer.troubles) and str(trouble.args[-1]) in reason
        away.set()
        eventually(lambda: site.lag() == 0, "the partition goes on")
        assert [letter.value for letter in site.queue.group("g").dead_letters] == [BAD]
        eventually(lambda: not registry.members()[0].parked, "the row shows that too")
        assert consumer.error is None and not consumer.troubles


def test_a_parked_partition_can_be_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(*_: Any) -> None:
        raise Unavailable("the log is away")

    def handle(message: Message) -> None:
        if message.value == BAD:
            raise ValueError("no")

    with Site(partitions=1, settings=PATIENT.with_(tries=1)) as site:
        with monkeypatch.context() as patch:
            patch.setattr(DeadLetters, "keep", keep)
            site.send(10)
            consumer = site.queue.consumer("g", handle, member="A").start()
            eventually(lambda: consumer.troubles, "the partition waits")
            consumer.stop(30)
            consumer.check()
        assert site.lag() == 5, "it was handed over in front of the message"
        handler = Recorder()
        with site.queue.consumer("g", handler, member="B"):
            eventually(lambda: handler.values == [b"message-%d" % number for number in range(5, 10)], "B goes on there")


def test_only_identity_set_up_policy_and_a_lost_log_end_a_member() -> None:
    assert ends_member(Fenced("x")) and ends_member(BeyondEnd("x")) and ends_member(HandlerFailed("x"))
    assert ends_member(SystemExit()) and ends_member(KeyboardInterrupt())
    assert not ends_member(Unavailable("x")) and not ends_member(OSError(28, "x")) and not ends_member(ValueError("x"))


def test_a_sink_blames_a_message_only_for_what_that_message_holds() -> None:
    assert refuses_message(Refused("no such type")) and refuses_message(HandlerFailed("too long"))
    of_the_place = (NotFound("no table"), Mismatch("another one"), BadSetting("wrong"), Unavailable("away"), OSError())
    assert not any(map(refuses_message, of_the_place))


def test_pauses_grow_to_a_limit_and_new_messages_do_not_drive_the_tries() -> None:
    pauses = [pause_after(tries) for tries in range(1, 2_000)]
    assert pauses == sorted(pauses) and pauses[0] == 0.1 and pauses[-1] == PARKED_SECONDS

    class Clock:
        now, waits = 0.0, 0

        def monotonic(self) -> float:
            return self.now

    class Ringing(Nudge):
        """A bell that rings all the time."""

        def wait(self, timeout: float | None) -> bool:
            clock.waits += 1
            clock.now += min(timeout or 0, 0.03)
            return True

    clock = Clock()
    parking = Parking(0, clock, Ringing(), lambda: False)  # type: ignore[arg-type]
    for _ in range(10):
        parking.wait(Unavailable("away"), until_change=True)
    assert clock.now > 0.99, "a tenth of a second each at least"
    parking.wait(Unavailable("away"))
    assert clock.now > 0.99 + PARKED_SECONDS, "who does not wait for messages is not woken by them"
    parking.end()
    assert parking.trouble is None


def test_a_wake_up_during_the_wait_of_a_partition_is_kept() -> None:
    bell, answers = Nudge(), iter([False, True])
    parking = Parking(0, SystemClock(), bell, lambda: next(answers))
    bell.set()
    parking.wait(Unavailable("away"))
    assert bell.wait(0), "the request to leave, or a new message, is not lost"


# ---- a log that does not answer -------------------------------------------------------------------------------------

BLIND = PATIENT.with_(
    lease_ms=4_000, beat_ms=200, progress_limit_ms=4_000, poll_ms=400, drain_ms=2_000, revoke_timeout_ms=3_000
)  # fmt: skip


class Cut:
    """A way to the log that can be cut, for one member alone."""

    def __init__(self, site: Site) -> None:
        self.queue = site.open(MemoryStore(site.table))
        self.is_cut = False
        log = self.queue.log
        for name in ("read", "read_rows", "bounds"):
            setattr(log, name, self._wrapped(getattr(log, name)))

    def _wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if self.is_cut:
                raise Unavailable("the log does not answer")
            return real(*args)

        return call


def test_a_member_that_cannot_read_the_log_hands_its_partitions_to_one_that_can() -> None:
    with Site(partitions=4, settings=BLIND) as site:
        one, other, handler = Cut(site), Cut(site), Recorder()
        first = one.queue.consumer("g", handler, member="A").start()
        other.queue.consumer("g", handler, member="B").start()
        site.await_owners("A", "B")
        one.is_cut = True
        eventually(lambda: set(site.owners().values()) == {"B"}, "B has everything")
        site.send(40)
        eventually(lambda: site.lag() == 0, "B does all the work")
        assert first.error is None
        epochs = [row.epoch for row in site.queue.group("g").registry.partitions()]
        one.is_cut = False
        site.await_owners("A", "B")
        assert len(epochs) == 4 and not handler.repeats


@pytest.mark.slow
def test_where_nobody_can_read_the_log_nothing_moves() -> None:
    with Site(partitions=4, settings=BLIND) as site:
        members = {name: Cut(site) for name in "ABC"}
        for name, cut in members.items():
            cut.queue.consumer("g", Recorder(), member=name).start()
        site.await_owners("A", "B", "C")
        before = [(row.owner, row.epoch) for row in site.queue.group("g").registry.partitions()]
        for cut in members.values():
            cut.is_cut = True
        rows = site.queue.group("g").registry.members
        eventually(lambda: all(row.blind and row.state == "stalled" for row in rows()), "all have given up hope")
        beats = {row.id: row.beat for row in rows()}
        eventually(lambda: all(row.beat > beats[row.id] + 3 for row in rows()), "the leader has looked since")
        assert [(row.owner, row.epoch) for row in site.queue.group("g").registry.partitions()] == before
        for cut in members.values():
            cut.is_cut = False
        eventually(lambda: all(not row.blind and row.state == "active" for row in rows()), "all can read again")
        assert [(row.owner, row.epoch) for row in site.queue.group("g").registry.partitions()] == before


def test_a_member_without_partitions_knows_whether_it_could_read_them() -> None:
    with Site(partitions=1, settings=BLIND) as site:
        one, other = Cut(site), Cut(site)
        one.queue.consumer("g", Recorder(), member="A").start()
        eventually(lambda: set(site.owners().values()) == {"A"}, "A has the partition")
        blind = other.queue.consumer("g", Recorder(), member="B")
        other.is_cut = True
        blind.start()
        rows = site.queue.group("g").registry.members
        eventually(lambda: any(row.id == "B" and row.blind for row in rows()), "B knows that it is blind")
        other.is_cut = False
        eventually(lambda: all(not row.blind for row in rows()), "B can read again")
