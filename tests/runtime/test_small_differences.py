"""Moments that last no longer than a step: each made by hand, with a clock that stands still or a store that lies."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pxrs.errors import Closed, Conflict, Damaged, Fenced, NotFound, Refused, Unavailable, Unknown
from pxrs.model import Batch, Grant, MemberRow, Message, Owner, Partition, Range
from pxrs.rules import assignment
from pxrs.runtime.batches.commit import ClaimedPartition, commit_ends, recover_claimed
from pxrs.runtime.batches.held_partitions import HeldPartitions
from pxrs.runtime.batches.loop import BatchLoop
from pxrs.runtime.consumer.job import Job
from pxrs.runtime.consumer.sink_worker import SinkWorker, _Rewound
from pxrs.runtime.consumer.worker import Worker
from pxrs.runtime.delivery import Context
from pxrs.runtime.ports.sink import Overtaken
from pxrs.runtime.queue.housekeeping import Need, needs_of
from pxrs.runtime.registry.registry import CommitRequest, Registry
from pxrs.runtime.registry.rows import Held
from pxrs.stores.base import ABSENT, Outcome, Swap, unknown
from pxrs.stores.memory import MemoryStore
from tests.runtime.batches.test_batching import Engine
from tests.runtime.consumer.test_expired import SKIP, fill
from tests.runtime.support import NO_LINK, PATIENT, Site
from tests.simulation.stories_by_hand import HandClock

ME = Owner("A", "life-1")


def registry_of_one() -> tuple[Registry, Grant]:
    """A group with one partition, which this life owns."""
    registry = Registry(MemoryStore(), "orders", "g", HandClock())
    registry.initialize(1, "xxh64-spark", "pmod")
    [claimed] = registry.claim([0], ME).values()
    assert isinstance(claimed, Held)
    return registry, Grant(0, ME, claimed.row.epoch)


def letters_of(site: Site) -> Any:
    return lambda: site.queue.group("g").dead_letters


def worker_of(site: Site, handler: Any, clock: HandClock) -> Worker:
    job = Job(site.queue.log, PATIENT, clock, handler, "message", lambda _: 0, letters_of(site), NO_LINK)
    job.alive_until = clock.now + 10
    return Worker(job, Grant(0, ME, 1), 0, paused=False)


def test_no_further_message_of_a_batch_is_taken_when_the_time_of_the_member_is_over() -> None:
    """Others may have taken the partition over by then, however many messages were read in one go."""
    clock, seen = HandClock(), []

    def handle(message: Message, _: Context) -> None:
        seen.append(message.offset)
        clock.now += 4

    with Site(partitions=1) as site:
        site.send(20)
        worker = worker_of(site, handle, clock)
        batch = worker._next_batch()
        assert batch is not None
        worker._handle_batch(batch)
        assert seen == [0, 1, 2] and worker.position == 3


def test_a_commit_that_was_decided_on_an_old_row_is_decided_anew_at_once() -> None:
    registry, grant = registry_of_one()
    old = registry.read_partitions([0])
    registry.pause([0], True)
    [stored] = registry.commit({grant: 7}, old).values()
    assert isinstance(stored, Held) and stored.row.checkpoint == 7 and stored.row.paused


def test_a_life_that_was_replaced_cannot_take_the_row_of_the_new_one_away() -> None:
    registry, _ = registry_of_one()
    for life in ("life-1", "life-2"):
        registry.register(MemberRow("A", life))
    with pytest.raises(Fenced, match="replaced by a newer process"):
        registry.deregister(ME)
    assert [row.inc for row in registry.members()] == ["life-2"]


def test_a_member_that_has_moved_since_it_was_judged_dead_is_not_cleared_away() -> None:
    registry, _ = registry_of_one()
    judged = MemberRow("A", "life-1")
    registry.beat(judged, registry.register(judged))
    with pytest.raises(Conflict, match="member 'A' moved"):
        registry.remove_member(judged)
    assert [(row.inc, row.beat) for row in registry.members()] == [("life-1", 1)]


# ---- writes without an answer ---------------------------------------------------------------------------------------


class Losing(MemoryStore):
    """Loses every write to keys with this part: nothing happens, and no answer comes."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.part = part

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        return [self._lost(swap) or super(Losing, self).swap_each([swap])[0] for swap in swaps]

    def _lost(self, swap: Swap) -> Outcome | None:
        return unknown("lost by the test") if self.part and self.part in swap.key else None


def test_no_group_is_made_when_nobody_knows_whether_its_partitions_are_there() -> None:
    """The row of the group says that all of them are: nobody would ever make the missing one."""
    store = Losing("partition/00001")
    registry = Registry(store, "orders", "g", HandClock())
    with pytest.raises(Unknown, match="partition/00001"):
        registry.initialize(3, "xxh64-spark", "pmod")
    with pytest.raises(NotFound):
        registry.group()
    store.part = ""
    registry.initialize(3, "xxh64-spark", "pmod")
    assert [row.number for row in registry.partitions()] == [0, 1, 2]


def test_a_group_is_not_pointed_at_a_plan_that_may_not_be_there() -> None:
    """Members would find nothing, and the next plan, made without this one, would move partitions for nothing."""
    store = Losing("")
    registry = Registry(store, "orders", "g", HandClock())
    lead = registry.elect(ME, registry.initialize(2, "xxh64-spark", "pmod"))
    store.part = "/target/"
    with pytest.raises(Unknown, match="/target/"):
        registry.publish(lead, assignment.plan("sticky", 2, ("A",), None), "nonce", "A joined")
    assert registry.group().target is None and registry.group().generation == 0


def test_an_old_leader_does_not_clear_away_the_plan_of_a_later_one() -> None:
    """The later one has written its plan, and has not pointed the group at it yet."""
    registry, _ = registry_of_one()
    lead = registry.elect(ME, registry.group())
    plan, later = assignment.plan("sticky", 1, ("A",), None), f"{registry.keys.targets}{lead.epoch + 1:010d}-later"
    registry.store.swap_each([Swap(later, ABSENT, plan.encode())])
    for nonce in ("first", "second"):
        registry.publish(lead, plan, nonce, "A joined")
    found = [row.key.rpartition("-")[2] for row in registry.store.scan(registry.keys.targets)]
    assert found == ["second", "later"]


def test_a_commit_that_lost_a_race_is_asked_for_again_and_is_not_taken_for_refused() -> None:
    """The partition is still ours: to give the batch up would run it a second time for nothing."""
    answers: list[Any] = [{0: Conflict("was changed by others")}, {0: Held(Partition(0), 1)}]

    def submit(*_: object) -> Future[Any]:
        outcome: Future[Any] = Future()
        outcome.set_result(answers.pop(0))
        return outcome

    batch, at_once = Batch("orders", "log", "g", ME, 1, (Range(0, 0, 5, 1),)), threading.Event()
    at_once.set()
    outcome = commit_ends(submit, None, batch, None, lambda: True, at_once)
    assert (outcome.committed, outcome.refused, answers) == ({Grant(0, ME, 1): 5}, {}, [])


def test_a_batch_does_not_go_on_behind_a_gap_that_could_not_be_stored() -> None:
    """The gap is told when it is stored: else nobody would ever hear of the messages in it."""

    def away(*_: object) -> Future[Any]:
        outcome: Future[Any] = Future()
        outcome.set_exception(Unavailable("the registry is away"))
        return outcome

    with Site(1, SKIP) as site:
        fill(site)
        site.queue.log.trim(0, 6)
        engine, grant = Engine(site.queue, "A", print, settings=SKIP), Grant(0, ME, 1)
        engine.shares.start(grant, 2, False, "")
        engine.shares.begin(grant, 2)
        assert BatchLoop(replace(engine.parts, submit=away))._planner._offer(grant, 2) is None
        assert engine.shares.position(0) == 2 and engine.shares.tally().expired == 0


def test_no_batch_is_begun_when_the_time_of_the_member_is_over() -> None:
    clock, grant = HandClock(), Grant(0, ME, 1)
    shares = HeldPartitions(PATIENT, clock)
    shares.extend(clock.now + 10)
    shares.start(grant, 0, False, "")
    shares.begin(grant, 0)
    shares.start(Grant(1, ME, 1), 0, False, "")
    shares.hold([grant], "a note")
    clock.now += 9
    assert shares.may_work and len(shares.newcomers()) == 1 and shares.unshown() == {"a note": [0]}
    clock.now += 1
    assert not shares.may_work and shares.newcomers() == [] and shares.unshown() == {} and shares.takeable() == {}


def test_a_note_that_was_shown_before_does_not_free_a_partition_that_waits_for_another() -> None:
    clock, grant = HandClock(), Grant(0, ME, 1)
    shares = HeldPartitions(PATIENT, clock)
    shares.extend(clock.now + 10)
    shares.start(grant, 0, False, "")
    shares.hold([grant], "second")
    shares.shown([0], "first")
    assert shares.unshown() == {"second": [0]}


# ---- what others need -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("log", "counts"), [("", True), ("this", True), ("another", False)])
def test_what_a_group_of_an_older_version_has_still_to_consume_is_not_deleted(log: str, counts: bool) -> None:
    """Its row does not say which log it is about. Only one that names another log does not count."""
    with Site(partitions=1) as site:
        identity = site.queue.log.identity
        registry = Registry(site.queue.store, identity.name, "old", HandClock())
        registry.initialize(1, identity.hash, identity.reduce, log=identity.id if log == "this" else log)
        needs = needs_of(site.queue.store, "/pxrs/", site.queue.log)
        assert needs == ({0: Need(0, "old")} if counts else {})


def test_a_box_of_dead_letters_that_was_damaged_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been deleted, or repaired: a message that waits for it must not wait for ever."""
    with Site(partitions=1) as site:
        site.send(1)
        letters = site.queue.group("g").dead_letters
        [message] = site.queue.read(0, 0)
        box = letters._open(create=True)

        def fail(*_: object) -> None:
            raise Damaged("its files are gone")

        monkeypatch.setattr(letters, "_append", fail)
        with pytest.raises(Damaged):
            letters.keep(message, "cause", "stack", 1, Context("A", 1, 1))
        monkeypatch.undo()
        assert box is not None and letters._box is None
        letters.keep(message, "cause", "stack", 1, Context("A", 1, 1))
        assert [letter.value for letter in letters] == [message.value]


# ---- a partition with a sink ----------------------------------------------------------------------------------------


class NotingSink:
    """A sink that writes down what it is told."""

    def __init__(self) -> None:
        self.staged: list[str] = []
        self.discarded: list[str] = []

    def stage(self, batch: Batch, output: Any) -> str:
        self.staged.append(batch.name)
        return f'{{"batch": "{batch.name}"}}'

    def publish(self, note: str) -> None:
        raise AssertionError(f"nothing is committed, and {note} is published")

    def discard(self, batch: Batch) -> None:
        self.discarded.append(batch.name)

    def recover(self, queue: str, log: str, group: str, grant: Grant, note: str) -> None:
        pass


def sink_worker(site: Site, sink: NotingSink, submit: Any) -> SinkWorker:
    """One that has output of five messages in its hands."""
    clock = HandClock()
    job = Job(site.queue.log, PATIENT, clock, print, "arrow", lambda _: 0, letters_of(site), NO_LINK)
    job.link, job.sink, job.alive_until = NO_LINK._replace(submit=submit), sink, clock.now + 10
    worker = SinkWorker(job, Grant(0, ME, 1), 0, False, (), "")
    worker._stored = 0
    worker._keep(pa.record_batch({"value": [b"x"] * 5}))
    worker.position = 5
    return worker


def test_a_partition_that_is_lost_writes_no_more_output_aside() -> None:
    """Nobody could commit it. Its next owner has swept what earlier ones left, and comes no second time."""
    with Site(partitions=1) as site:
        sink = NotingSink()
        worker = sink_worker(site, sink, lambda *_: pytest.fail("nothing is to be committed"))
        worker.lose()
        worker._end()
        assert sink.staged == [] and worker.finished


def test_after_a_commit_of_which_nobody_knows_the_partition_goes_no_further() -> None:
    """It may have landed: the next owner finds its note. To write the same output aside again could show it twice."""

    def end(*_: object) -> Future[Any]:
        outcome: Future[Any] = Future()
        outcome.set_exception(Closed("the member has ended"))
        return outcome

    with Site(partitions=1) as site:
        sink = NotingSink()
        worker = sink_worker(site, sink, end)
        with pytest.raises(Closed):
            worker._flush()
        worker._end()
        assert len(sink.staged) == 1 and worker.finished


def test_output_is_not_thrown_away_when_the_partition_is_lost_before_its_commit_is_answered() -> None:
    """It may be committed, and then the next owner has to find it."""

    def lose(*_: object) -> Future[Any]:
        outcome: Future[Any] = Future()
        outcome.set_exception(Unknown("no answer"))
        worker.lose()
        return outcome

    with Site(partitions=1) as site:
        sink = NotingSink()
        worker = sink_worker(site, sink, lose)
        worker._flush()
        worker._end()
        assert len(sink.staged) == 1 and sink.discarded == []


class Picky(NotingSink):
    """Takes the output of one message at a time."""

    def stage(self, batch: Batch, output: Any) -> str:
        if batch.rows > 1:
            raise Refused("one of these is not to be taken")
        return super().stage(batch, output)

    def publish(self, note: str) -> None:
        pass


def test_messages_that_were_not_sifted_when_the_partition_was_given_up_are_left_to_the_next_owner() -> None:
    """The sink has refused five messages, and three of them were handled again, one by one."""
    stored: list[int] = []

    def submit(request: CommitRequest) -> Future[Any]:
        stored.extend(request.positions.values())
        outcome: Future[Any] = Future()
        outcome.set_result({})
        return outcome

    def handle(batch: pa.RecordBatch, _: Context) -> pa.RecordBatch:
        if batch.column("offset")[0].as_py() == 2:
            worker.drain()
        return batch

    with Site(partitions=1) as site:
        site.send(5)
        worker = sink_worker(site, Picky(), submit)
        worker._job.handler, worker._job.sink_took = handle, True
        with suppress(_Rewound):
            worker._flush()
        worker._end()
        assert stored == [1, 2, 3] and worker.finished


class Guarded(NotingSink):
    """Has seen a later claim."""

    def recover(self, queue: str, log: str, group: str, grant: Grant, note: str) -> None:
        raise Overtaken("the guard has seen epoch 9", "Delete its rows")


def test_an_overtaken_claim_is_not_reported_as_a_trouble_of_the_store() -> None:
    def submit(*_: object) -> Future[Any]:
        outcome: Future[Any] = Future()
        outcome.set_exception(Fenced("partition 0 is at epoch 9"))
        return outcome

    with Site(partitions=1) as site:
        claim = ClaimedPartition(site.queue.log.identity, "g", Grant(0, ME, 1), "", lambda: 0)
        with pytest.raises(Fenced, match="is at epoch 9"):
            recover_claimed(Guarded(), submit, claim)
