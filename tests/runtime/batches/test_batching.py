"""The batch loop on real members, without Spark: what is taken, committed, published, narrowed down and handed over."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pxrs.errors import Closed, HandlerFailed, PxrsError, Refused, StopConsuming, Unavailable
from pxrs.model import Batch, Grant, Range
from pxrs.runtime.batches.held_partitions import HeldPartitions
from pxrs.runtime.batches.loop import BatchLoop
from pxrs.runtime.batches.parts import BatchParts
from pxrs.runtime.dead_letters.box import DeadLetters
from pxrs.runtime.failures.error_summary import error_summary
from pxrs.runtime.group.membership import Membership
from pxrs.runtime.queue.queue import Queue
from pxrs.runtime.registry.registry import CommitRequest
from pxrs.settings import Settings
from pxrs.stores.base import Outcome, Store, Swap, Verdict
from pxrs.stores.memory import MemoryStore
from pxrs.testing.logs.hooks import entries
from tests.runtime.support import HASTY, PATIENT, Site, SwitchedStore, eventually

Place = tuple[int, int]


class MemorySink:
    """Staged, committed and shown output, side by side, shared by all members: what a directory is for real sinks."""

    def __init__(self) -> None:
        self.staged: dict[str, list[Place]] = {}
        self.shown: list[Place] = []
        self.discarded: list[str] = []
        self.recovered: list[tuple[int, str]] = []
        self.before_publish: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    def stage(self, batch: Batch, output: list[Place]) -> str:
        self.staged[batch.name] = output
        return f"show {batch.name}"

    def publish(self, note: str) -> None:
        self.before_publish()
        with self._lock:
            self.shown += self.staged.pop(note.removeprefix("show "), [])

    def discard(self, batch: Batch) -> None:
        self.discarded.append(batch.name)
        self.staged.pop(batch.name, None)

    def recover(self, queue: str, log: str, group: str, grant: Grant, note: str) -> None:
        self.recovered.append((grant.partition, note))
        with self._lock:
            self.shown += self.staged.pop(note.removeprefix("show "), [])


def places(batch: Batch) -> list[Place]:
    return [(part.partition, offset) for part in batch.ranges for offset in range(part.start, part.end)]


class Engine:
    """A member that works in batches in a thread, as a pipeline does."""

    def __init__(
        self,
        queue: Queue,
        name: str,
        execute: Callable[[Batch], Any],
        sink: MemorySink | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.settings = settings or queue.settings
        self.shares = HeldPartitions(self.settings, queue._clock)
        self.events: list[dict[str, Any]] = []
        self.life: Membership = queue.join("g", self.shares, name, {"engine": "test"}, self.settings, self._hear)
        self.life.ended = self.shares.halt
        self.shares.wake = self.life.wake
        self.group = queue.group("g")
        self.parts = BatchParts(
            log=queue.log, group="g", owner=self.life.member.me, shares=self.shares, settings=self.settings,
            clock=queue._clock, execute=execute, is_fatal=lambda error: isinstance(error, MemoryError),
            probe=self._probe, sink=sink,
            submit=self.life.submit, start_at=lambda p: self.group.resolve({p: "earliest"})[p],
            dead_letters=self.group.dead_letters, stop=self.life.request_stop, fail=self.life.fail,
            report=self._hear, max_partitions=queue.store.max_atomic,
            is_stopping=lambda: self.life.stopping or self.life.is_done or self.shares.is_halted,
        )  # fmt: skip
        self.loop = BatchLoop(self.parts)
        self.thread = threading.Thread(target=self.loop.run, daemon=True)

    def _probe(self, batch: Batch) -> Any:
        return self.parts.execute(replace(batch, ranges=()))

    def _hear(self, kind: str, facts: Any) -> None:
        self.events.append({"kind": kind, **facts})

    def start(self) -> Engine:
        self.life.start()
        self.thread.start()
        return self

    def stop(self) -> None:
        self.life.stop(20)
        self.thread.join(20)
        assert not self.thread.is_alive()


class Doubtful(SwitchedStore):
    """Answers of atomic swaps get lost, as often as told; what was asked for has happened, or has not."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.lost_answers = 0
        self.lands = True
        self.then: Callable[[], None] = lambda: None

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        if not self.lost_answers:
            return super().swap_all(swaps)
        self.lost_answers -= 1
        if self.lands:
            super().swap_all(swaps)
        self.then()
        return Outcome(Verdict.UNKNOWN, 0, "the test lost the answer")


class Yard:
    """A site and its engines."""

    def __init__(self, partitions: int = 4, settings: Settings = PATIENT) -> None:
        self.site = Site(partitions, settings)
        self.sink = MemorySink()
        self.done: list[Place] = []
        self.engines: dict[str, Engine] = {}
        self._lock = threading.Lock()

    def engine(self, name: str, execute: Callable[[Batch], Any] | None = None, **more: Any) -> Engine:
        store = more.pop("store", None) or MemoryStore(self.site.table)
        engine = Engine(self.site.open(store), name, execute or self.record, **more)
        self.engines[name] = engine
        return engine.start()

    def record(self, batch: Batch) -> list[Place]:
        with self._lock:
            self.done += places(batch)
        return places(batch)

    def all_places(self) -> Counter[Place]:
        return Counter((p, offset) for p, end in self.site.queue.ends().items() for offset in range(end))

    def await_end(self) -> None:
        eventually(lambda: self.site.lag() == 0, "everything is committed")

    def await_shown(self) -> None:
        """Publishing follows the commit at a small distance."""
        eventually(lambda: Counter(self.sink.shown) == self.all_places(), "all is shown, once")

    def __enter__(self) -> Yard:
        return self

    def __exit__(self, *_: object) -> None:
        for engine in self.engines.values():
            engine.life.kill()
            engine.thread.join(20)
        self.site.__exit__()


def test_everything_is_worked_off_and_committed_once() -> None:
    with Yard() as yard:
        yard.site.send(100)
        engine = yard.engine("A")
        yard.await_end()
        yard.site.send(7)
        yard.await_end()
        engine.stop()
        assert Counter(yard.done) == yard.all_places()
        assert engine.shares.tally().handled == 107
        assert set(yard.site.owners().values()) == {None}


def test_a_small_limit_makes_small_batches_that_leave_nobody_out() -> None:
    with Yard(settings=PATIENT.with_(max_batch_rows=10)) as yard:
        yard.site.send(100)
        engine = yard.engine("A")
        yard.await_end()
        batches = [event for event in engine.events if event["kind"] == "batch"]
        assert max(event["rows"] for event in batches) == 10
        assert all(len(event["partitions"]) == 4 for event in batches[:5])


def test_a_log_is_asked_where_it_has_grown_and_everywhere_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    with Yard(8) as yard:
        engine = yard.engine("A")
        yard.await_end()
        eventually(lambda: len(engine.shares.takeable()) == 8, "all partitions are begun")
        log, bounds = engine.parts.log, engine.parts.log.bounds

        def count(partition: int) -> tuple[int, int]:
            asked.append(partition)
            return bounds(partition)

        monkeypatch.setattr(log, "bounds", count)
        engine.loop._planner._ask_all_at = float("inf")  # not because of the time
        yard.site.queue.log.append({3: entries([b"new"])})
        eventually(lambda: len(yard.done) == 1, "the message is processed")
        assert set(asked) == {3}
        monkeypatch.setattr(engine.loop._planner, "_grown", Silent())
        yard.site.queue.log.append({5: entries([b"new"])})
        engine.loop._planner._ask_all_at = 0.0
        eventually(lambda: len(yard.done) == 2, "it is found although its bell was lost")


class Silent(set[int]):
    """Hears no bell."""

    def add(self, element: int, /) -> None: ...


def test_more_partitions_than_one_commit_can_hold_take_turns() -> None:
    class Narrow(SwitchedStore):
        max_atomic = 3

    with Yard(8) as yard:
        yard.site.send(80)
        engine = yard.engine("A", store=Narrow(MemoryStore(yard.site.table)), sink=yard.sink)
        yard.await_end()
        yard.await_shown()
        assert max(len(event["partitions"]) for event in engine.events if event["kind"] == "batch") == 3


def test_a_clean_move_waits_for_the_batch_and_repeats_nothing() -> None:
    running, go_on = threading.Event(), threading.Event()

    with Yard() as yard:

        def slow(batch: Batch) -> None:
            yard.record(batch)
            running.set()
            assert go_on.wait(20)

        yard.site.send(40)
        first = yard.engine("A", slow)
        assert running.wait(20)
        yard.engine("B")
        eventually(lambda: any(e["kind"] == "draining" for e in first.events), "A is asked to hand over")
        assert set(yard.site.owners().values()) == {"A"}, "nothing moves in the middle of a batch"
        go_on.set()
        yard.site.await_owners("A", "B")
        yard.site.send(40, first=40)
        yard.await_end()
        assert Counter(yard.done) == yard.all_places()


def test_one_lost_partition_does_not_spoil_the_others_where_output_is_apart() -> None:
    """Protocol variant 21: without a sink that mixes them, each partition is judged alone."""
    with Yard() as yard:
        stolen = threading.Event()

        def lose_one(batch: Batch) -> None:
            yard.record(batch)
            if not stolen.is_set():
                stolen.set()
                yard.site.queue.group("g").seek({2: 0})

        yard.site.send(40)
        engine = yard.engine("A", lose_one)
        yard.await_end()
        counts = Counter(yard.done)
        assert {place: counts[place] for place in counts if place[0] != 2} == {
            place: 1 for place in yard.all_places() if place[0] != 2
        }
        assert all(counts[place] == 2 for place in counts if place[0] == 2)
        assert next(e["outcome"] for e in engine.events if e["kind"] == "batch") == "refused"


def test_b77_a_batch_that_lost_one_partition_shows_nothing_and_moves_no_checkpoint() -> None:
    with Yard() as yard:
        stolen = threading.Event()
        checkpoints: list[int] = []

        def lose_one(batch: Batch) -> list[Place]:
            if not stolen.is_set():
                stolen.set()
                yard.site.queue.group("g").seek({2: 0})
                yard.sink.before_publish = lambda: checkpoints.append(yard.site.lag())
            return places(batch)

        yard.site.send(40)
        engine = yard.engine("A", lose_one, sink=yard.sink)
        yard.await_end()
        assert len(yard.sink.discarded) == 1, "the first batch was refused as a whole"
        yard.await_shown()
        refused = [e for e in engine.events if e["kind"] == "batch" and e["outcome"] == "refused"]
        assert [len(e["partitions"]) for e in refused] == [4]


def test_b77_the_same_member_releases_and_claims_again_between_planning_and_commit() -> None:
    """The member is the owner again, under a later epoch: what was planned under the earlier one is refused."""
    with Yard(1) as yard:
        epochs: list[int] = []

        def lose_and_regain(batch: Batch) -> list[Place]:
            epochs.append(batch.ranges[0].epoch)
            if len(epochs) == 1:
                yard.site.queue.group("g").seek({0: 0})
                eventually(
                    lambda: engine.shares.position(0) is not None and _epoch(yard) > epochs[0], "it is claimed again"
                )
            return places(batch)

        yard.site.send(10)
        engine = Engine(yard.site.open(MemoryStore(yard.site.table)), "A", lose_and_regain, yard.sink)
        yard.engines["A"] = engine.start()
        yard.await_end()
        assert len(epochs) == 2 and epochs[1] > epochs[0]
        yard.await_shown()
        assert len(yard.sink.discarded) == 1


def _epoch(yard: Yard) -> int:
    return yard.site.queue.group("g").describe()[0].epoch if yard.site.owners()[0] else 0


@pytest.mark.parametrize("lands", [True, False])
def test_a_commit_without_an_answer_is_asked_again_and_shown_once(lands: bool) -> None:
    with Yard() as yard:
        store = Doubtful(MemoryStore(yard.site.table))
        store.lost_answers, store.lands = 2, lands
        yard.site.send(40)
        yard.engine("A", store=store, sink=yard.sink)
        yard.await_end()
        yard.await_shown()
        assert Counter(yard.done) == yard.all_places()


def test_a_commit_that_landed_without_an_answer_counts_also_when_a_partition_was_lost_after_it() -> None:
    """Else the partitions that stayed would be processed, and shown, a second time."""
    with Yard() as yard:
        store = Doubtful(MemoryStore(yard.site.table))
        store.lost_answers = 1
        store.then = lambda: _take_by_force(yard, 2)
        yard.site.send(40)
        yard.engine("A", store=store, sink=yard.sink)
        yard.await_end()
        yard.await_shown()
        assert Counter(yard.done) == yard.all_places(), "nothing was even processed twice"
        assert yard.sink.discarded == []


def _take_by_force(yard: Yard, partition: int) -> None:
    registry = yard.site.queue.group("g").registry
    owner = registry.partition(partition).owner
    assert owner is not None
    registry.force_release({partition: owner})


def test_what_a_dead_owner_committed_and_did_not_show_is_shown_by_the_next() -> None:
    with Yard(2, HASTY) as yard:
        died, forever = threading.Event(), threading.Event()

        def die() -> None:
            died.set()
            forever.wait(60)  # as a process that is killed between commit and publish

        yard.sink.before_publish = die
        yard.site.send(20)
        victim = yard.engine("A", sink=yard.sink)
        assert died.wait(20)
        victim.life.kill()
        assert yard.sink.shown == []
        yard.sink.before_publish = lambda: None
        yard.engine("B", sink=yard.sink)
        yard.site.await_owners("B")
        eventually(lambda: Counter(yard.sink.shown) == yard.all_places(), "B has shown what A committed")
        assert Counter(yard.done) == yard.all_places(), "and has processed nothing again"
        forever.set()
        victim.thread.join(20)
        assert Counter(yard.sink.shown) == yard.all_places(), "a late publisher changes nothing"


@pytest.mark.parametrize("policy", ["dead-letter", "skip"])
@pytest.mark.parametrize("with_sink", [True, False])
def test_one_bad_message_is_found_among_many(policy: Any, with_sink: bool) -> None:
    with Yard(settings=PATIENT.with_(on_failure=policy, tries=2)) as yard:
        bad = (2, 17)

        def fussy(batch: Batch) -> list[Place]:
            if bad in places(batch):
                raise ValueError("I do not like number 17")
            return yard.record(batch)

        yard.site.send(400)
        engine = yard.engine("A", fussy, sink=yard.sink if with_sink else None)
        yard.await_end()
        assert Counter(yard.done) == yard.all_places() - Counter([bad])
        if with_sink:
            eventually(lambda: Counter(yard.sink.shown) == Counter(yard.done), "all but the bad one is shown")
        letters = [(letter.partition, letter.offset) for letter in engine.group.dead_letters]
        assert letters == ([bad] if policy == "dead-letter" else [])
        tally = engine.shares.tally()
        assert (tally.dead_lettered, tally.skipped) == ((1, 0) if policy == "dead-letter" else (0, 1))


class Py4JJavaError(Exception):
    """What an error of a Spark task looks like in the driver."""


def test_a_letter_says_what_the_log_line_says(caplog: pytest.LogCaptureFixture) -> None:
    text = (
        "An error occurred while calling o661.getResult.\n: org.apache.spark.SparkException: Exception thrown\n"
        "Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "orders.py", line 3, in price\nValueError: no price for tea\n\n\tat org.apache.spark...'
    )

    def execute(batch: Batch) -> list[Place]:
        if batch.ranges:
            raise Py4JJavaError(text)
        return []

    with Yard(1, settings=PATIENT.with_(tries=1)) as yard:
        yard.site.send(1)
        engine = yard.engine("A", execute)
        yard.await_end()
        [letter] = engine.group.dead_letters
        assert letter.cause == "ValueError: no price for tea" and "o661.getResult" in letter.stack
        assert f"dead-lettered partition 0 offset 0 after 1 tries: {letter.cause}" in caplog.text


def test_a_second_half_does_not_go_on_behind_a_first_half_that_was_refused() -> None:
    with Yard(3, settings=PATIENT.with_(tries=1)) as yard:
        calls: list[Batch] = []

        def execute(batch: Batch) -> list[Place]:
            calls.append(batch)
            if len(calls) == 1:
                raise ValueError("the whole batch fails once")
            if batch.ranges and len(calls) == 3:  # the second call was the probe
                yard.site.queue.group("g").seek({0: 0})
            return yard.record(batch)

        yard.site.send(300)
        yard.engine("A", execute, sink=yard.sink)
        yard.await_end()
        yard.await_shown()


def test_an_error_says_what_the_user_can_do() -> None:
    python = "Job aborted\nTraceback (most recent call last):\n  File x\nKeyError: 'account'\n\tat org.apache"
    java = (
        "An error occurred while calling o41.getResult.\n: E\n\tat a\nCaused by: java.lang.X: divided by zero\n\tat b"
    )
    assert error_summary(RuntimeError(python)) == "KeyError: 'account'"
    assert error_summary(RuntimeError(java)) == "RuntimeError: java.lang.X: divided by zero"
    assert error_summary(RuntimeError("calling o41.getResult")) == error_summary(RuntimeError("calling o52.getResult"))
    assert error_summary(ValueError()) == "ValueError: "


def test_the_policy_stop_names_the_message() -> None:
    with Yard(settings=PATIENT.with_(on_failure="stop", tries=2)) as yard:

        def fussy(batch: Batch) -> None:
            if (1, 3) in places(batch):
                raise ValueError("no")
            yard.record(batch)

        yard.site.send(40)
        engine = yard.engine("A", fussy)
        assert engine.life.wait(20)
        assert isinstance(engine.life.error, HandlerFailed)
        assert "partition 1 offset 3" in str(engine.life.error)
        assert yard.site.queue.group("g").describe()[1].checkpoint == 3


def test_a_failure_that_passes_is_tried_again_as_a_whole() -> None:
    with Yard() as yard:
        attempts: list[int] = []

        def moody(batch: Batch) -> None:
            attempts.append(batch.attempt)
            if batch.attempt < 3:
                raise ValueError("not yet")
            yard.record(batch)

        yard.site.send(40)
        engine = yard.engine("A", moody)
        yard.await_end()
        assert attempts == [1, 2, 3]
        assert Counter(yard.done) == yard.all_places()
        assert engine.shares.tally().retried == 2


def test_an_engine_that_is_gone_ends_the_member_and_blames_no_message() -> None:
    with Yard() as yard:

        def broken(batch: Batch) -> None:
            raise MemoryError("Spark is gone")

        yard.site.send(40)
        engine = yard.engine("A", broken)
        assert engine.life.wait(20)
        assert "cannot be executed" in str(engine.life.error)
        assert list(engine.group.dead_letters) == []
        assert yard.site.lag() == 40


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Unavailable("No space left on device")])
def test_a_sink_that_cannot_write_parks_its_partitions_and_blames_no_message(error: Exception) -> None:
    class Full(MemorySink):
        full = True

        def stage(self, batch: Batch, output: list[Place]) -> str:
            if self.full:
                raise error
            return super().stage(batch, output)

    with Yard() as yard:
        yard.site.send(40)
        sink = yard.sink = Full()
        engine = yard.engine("A", sink=sink)
        eventually(lambda: len(engine.shares.troubles()) == 4, "all partitions wait")
        assert all("No space left" in str(trouble) for trouble in engine.shares.troubles().values())
        assert list(engine.group.dead_letters) == []
        assert yard.site.lag() == 40
        sink.full = False
        yard.await_shown()
        assert engine.life.error is None and not engine.shares.troubles()


def test_output_that_cannot_be_shown_holds_its_partitions_until_it_can_and_is_not_made_again() -> None:
    broken = {"now": True}

    def fail() -> None:
        if broken["now"]:
            raise Unavailable("the output is away")

    with Yard(2, PATIENT.with_(max_batch_rows=10)) as yard:
        yard.site.send(40)
        yard.sink.before_publish = fail
        engine = yard.engine("A", sink=yard.sink)
        eventually(lambda: len(engine.shares.troubles()) == 2, "both partitions wait")
        assert yard.site.lag() == 30 and yard.sink.shown == [], "one batch is committed, and nothing is taken behind it"
        broken["now"] = False
        yard.await_shown()
        assert Counter(yard.done) == yard.all_places(), "nothing was executed twice"
        assert engine.life.error is None


def test_a_message_whose_output_the_sink_refuses_is_put_aside_once_the_sink_has_taken_others() -> None:
    class Choosy(MemorySink):
        def stage(self, batch: Batch, output: list[Place]) -> str:
            if (1, 3) in output:
                raise Refused("this cannot be a directory")
            return super().stage(batch, output)

    with Yard(2) as yard:
        sink = yard.sink = Choosy()
        engine = yard.engine("A", sink=sink)
        yard.site.send(4)
        yard.await_shown()
        yard.site.send(20)
        yard.await_end()
        assert [(letter.partition, letter.offset) for letter in engine.group.dead_letters] == [(1, 3)]
        eventually(lambda: len(sink.shown) == 23, "all others are shown")
        assert engine.life.error is None


def test_a_sink_that_has_taken_nothing_yet_and_refuses_fills_no_dead_letters() -> None:
    class Wrong(MemorySink):
        def stage(self, batch: Batch, output: list[Place]) -> str:
            if output:
                raise Refused("the columns are others than those in the directory")
            return super().stage(batch, output)

    with Yard(2) as yard:
        yard.site.send(20)
        engine = yard.engine("A", sink=Wrong())
        eventually(lambda: len(engine.shares.troubles()) == 2, "both partitions wait")
        assert list(engine.group.dead_letters) == [] and yard.site.lag() == 20
        assert engine.life.error is None


def test_dead_letters_that_cannot_be_written_park_the_partition_of_a_pipeline() -> None:
    def fails_on_three(batch: Batch) -> None:
        if (1, 3) in places(batch):
            raise asyncio.CancelledError("a task inside was cancelled")

    with Yard(2) as yard:
        box, away = DeadLetters.keep, {"now": True}

        def keep(self: DeadLetters, *args: Any) -> None:
            if away["now"]:
                raise Unavailable("the log is away")
            box(self, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DeadLetters, "keep", keep)
            yard.site.send(20)
            engine = yard.engine("A", fails_on_three)
            eventually(lambda: 1 in engine.shares.troubles() and yard.site.lag() == 7, "the other partition is done")
            away["now"] = False
            yard.await_end()
        assert [(letter.partition, letter.offset) for letter in engine.group.dead_letters] == [(1, 3)]
        assert engine.life.error is None and not engine.shares.troubles()


def test_a_drained_partition_is_handed_over_at_once_not_at_the_next_beat() -> None:
    running, go_on = threading.Event(), threading.Event()
    with Yard(2, PATIENT.with_(lease_ms=600_000, progress_limit_ms=900_000, poll_ms=600_000)) as yard:

        def slow(batch: Batch) -> None:
            running.set()
            assert go_on.wait(20)

        yard.site.send(4)
        first = yard.engine("A", slow)
        assert running.wait(20)
        yard.engine("B")
        eventually(lambda: any(e["kind"] == "draining" for e in first.events), "A is asked to hand over")
        go_on.set()
        yard.site.await_owners("A", "B")


def test_a_chosen_start_is_stored_before_anything_is_taken() -> None:
    """A crash in the first batch would else lose it: "latest" is somewhere else the next time."""
    with Yard(1) as yard:
        stored: list[int | None] = []

        def look(batch: Batch) -> None:
            stored.append(yard.site.queue.group("g").registry.partition(0).checkpoint)

        yard.site.send(5)
        engine = Engine(yard.site.open(MemoryStore(yard.site.table)), "A", look)
        engine.parts.start_at = lambda _: 3
        yard.engines["A"] = engine.start()
        yard.await_end()
        assert stored[0] == 3


def test_a_log_that_does_not_answer_holds_its_partition_up_and_is_asked_again() -> None:
    with Yard(2) as yard:
        engine = yard.engine("A")
        yard.site.await_owners("A")
        eventually(lambda: len(engine.shares.takeable()) == 2, "both starts are known")
        log = engine.parts.log
        sound, calls = log.bounds, []

        def moody(partition: int) -> tuple[int, int]:
            calls.append(partition)
            if partition == 0 and calls.count(0) == 1:
                raise Unavailable("the disk is away")
            return sound(partition)

        log.bounds = moody  # type: ignore[method-assign]
        yard.site.send(10)
        eventually(lambda: len(yard.done) == 5 and 0 in engine.shares.troubles(), "the other partition is done")
        yard.await_end()
        assert engine.shares.troubles() == {}


def test_something_closed_under_the_loop_ends_the_member_loudly() -> None:
    class Gone(MemorySink):
        def stage(self, batch: Batch, output: list[Place]) -> str:
            raise Closed("queue 'copies' was closed before this call")

    with Yard() as yard:
        yard.site.send(10)
        engine = yard.engine("A", sink=Gone())
        assert engine.life.wait(20)
        assert "was closed" in str(engine.life.error)


def test_a_message_that_was_lost_during_its_last_try_is_left_to_the_next_owner() -> None:
    with Yard(1, PATIENT.with_(tries=1)) as yard:
        seeks: list[int] = []

        def fail(batch: Batch) -> list[Place]:
            if batch.rows == 1 and not seeks:
                seeks.append(1)
                yard.site.queue.group("g").seek({0: 0})
                eventually(lambda: _epoch(yard) > batch.ranges[0].epoch, "it is claimed again")
                raise ValueError("too late")
            return yard.record(batch)

        yard.site.send(1)
        engine = yard.engine("A", fail)
        yard.await_end()
        assert list(engine.group.dead_letters) == []
        assert Counter(yard.done) == yard.all_places()


def test_a_hang_before_the_first_batch_is_a_stall_too() -> None:
    with Yard(1, HASTY.with_(progress_limit_ms=1_500)) as yard:
        hanging, go_on = threading.Event(), threading.Event()

        class Slow(MemorySink):
            def recover(self, *arguments: Any) -> None:
                hanging.set()
                go_on.wait(60)

        yard.site.send(4)
        yard.engine("A", sink=Slow())
        assert hanging.wait(20)
        yard.engine("B", sink=yard.sink)
        eventually(lambda: set(yard.site.owners().values()) == {"B"}, "B has what A sat on")
        go_on.set()


def test_what_fails_without_any_message_blames_none() -> None:
    with Yard(settings=PATIENT.with_(tries=2)) as yard:

        def broken(batch: Batch) -> None:
            raise ModuleNotFoundError("No module named 'billing'")

        yard.site.send(40)
        engine = yard.engine("A", broken)
        assert engine.life.wait(20)
        assert "no message is to blame: ModuleNotFoundError: No module named 'billing'" in str(engine.life.error)
        assert list(engine.group.dead_letters) == []
        assert yard.site.lag() == 40


def test_stop_consuming_leaves_cleanly_and_commits_nothing_of_the_batch() -> None:
    with Yard() as yard:

        def enough(batch: Batch) -> None:
            raise StopConsuming

        yard.site.send(40)
        engine = yard.engine("A", enough)
        assert engine.life.wait(20)
        assert engine.life.error is None
        assert yard.site.lag() == 40
        assert set(yard.site.owners().values()) == {None}


def test_a_batch_that_hangs_makes_the_member_step_back_though_it_beats() -> None:
    settings = HASTY.with_(progress_limit_ms=1_500)
    with Yard(4, settings) as yard:
        hanging, go_on = threading.Event(), threading.Event()

        def hang(batch: Batch) -> list[Place]:
            hanging.set()
            assert go_on.wait(60)
            return places(batch)

        yard.site.send(40)
        stuck = yard.engine("A", hang, sink=yard.sink)
        assert hanging.wait(20)
        yard.engine("B", sink=yard.sink)
        eventually(lambda: set(yard.site.owners().values()) == {"B"}, "B owns all that A sat on")
        yard.await_end()
        go_on.set()
        eventually(lambda: len(yard.sink.discarded) == 1, "the late commit of A is refused, its output removed")
        yard.await_shown()
        assert stuck.life.error is None, "it may take part again"


def test_a_paused_partition_is_left_out_and_the_others_go_on() -> None:
    with Yard() as yard:
        engine = yard.engine("A")
        yard.site.await_owners("A")
        yard.site.queue.group("g").pause([1])
        eventually(lambda: 1 not in {g.partition for g in engine.shares.takeable()}, "the pause has arrived")
        yard.site.send(40)
        eventually(lambda: yard.site.lag() == 10, "all but the paused partition is done")
        yard.site.queue.group("g").resume([1])
        yard.await_end()
        assert Counter(yard.done) == yard.all_places()


def test_a_commit_handed_in_after_the_end_is_answered() -> None:
    with Yard() as yard:
        engine = yard.engine("A")
        yard.site.await_owners("A")
        engine.stop()
        outcome = engine.life.submit(CommitRequest({Grant(0, engine.life.member.me, 1): 1}))
        with pytest.raises(PxrsError, match="has ended"):
            outcome.result(5)


def test_shares_of_a_range_that_changed_hands_are_not_taken() -> None:
    with Yard() as yard:
        engine = yard.engine("A")
        yard.site.await_owners("A")
        eventually(lambda: len(engine.shares.takeable()) == 4, "all starts are known")
        stale = Range(0, 0, 5, epoch=0)
        assert engine.shares.take([stale]) == ()


def test_a_half_that_is_committed_and_not_shown_yet_is_not_overwritten_by_the_next() -> None:
    failures = ["No space left on device"]

    def fail_once() -> None:
        if failures:
            raise OSError(28, failures.pop())

    with Yard(1, PATIENT.with_(tries=1)) as yard:

        def fussy(batch: Batch) -> list[Place]:
            if (0, 6) in places(batch):
                raise ValueError("message 6 is bad")
            return yard.record(batch)

        yard.site.send(8)
        yard.sink.before_publish = fail_once
        engine = yard.engine("A", fussy, sink=yard.sink)
        yard.await_end()
        wanted = yard.all_places() - Counter([(0, 6)])
        eventually(lambda: Counter(yard.sink.shown) == wanted, "all but the bad one is shown, once")
        assert [letter.offset for letter in engine.group.dead_letters] == [6]
        assert engine.life.error is None


def test_a_loop_that_owes_output_is_not_over_and_shows_it_at_its_end() -> None:
    away = {"now": True}

    def fail() -> None:
        if away["now"]:
            raise Unavailable("the output is away")

    with Yard(2) as yard:
        yard.site.send(10)
        yard.sink.before_publish = fail
        asked: list[int] = []
        engine = Engine(yard.site.open(MemoryStore(yard.site.table)), "A", yard.record, yard.sink)

        def is_over() -> bool:
            asked.append(1)
            return yard.site.lag() == 0

        engine.parts.is_over = is_over
        yard.engines["A"] = engine.start()
        eventually(lambda: len(engine.shares.troubles()) == 2 and yard.site.lag() == 0, "all is committed, and waits")
        asked.clear()
        engine.shares.wake_event.set()
        eventually(lambda: not engine.shares.wake_event.is_set(), "it has looked again")
        assert asked == [] and engine.shares.owes_output() and not engine.life.stopping
        engine.shares.park(0, Unavailable("for long"))
        engine.shares.park(1, Unavailable("for long"))
        away["now"] = False
        engine.stop()
        assert Counter(yard.sink.shown) == yard.all_places(), "the stop has shown it, not the next owner"
