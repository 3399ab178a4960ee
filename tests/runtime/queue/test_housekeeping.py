"""Full segments are sealed and old messages deleted beside all other work: never what a group needs, never loudly."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import pxrs
from pxrs.errors import Closed, Damaged
from pxrs.logs.base import Chunk
from pxrs.runtime.queue import housekeeping
from pxrs.runtime.queue.housekeeping import Need, Round, needs_of
from tests.runtime.support import eventually

HASTY: dict[str, Any] = {"housekeeping_ms": 5, "seal_after_ms": 0, "delete_delay_ms": 0}
IDLE: dict[str, Any] = {"housekeeping_ms": 3_600_000, "seal_after_ms": 0, "delete_delay_ms": 0}
"""Nothing happens by itself within a test."""


class Setup:
    """A queue in a directory whose segments hold ten messages each."""

    def __init__(self, directory: Path, partitions: int = 1, **settings: Any) -> None:
        self.directory = directory / "orders"
        values = {**IDLE, "segment_bytes": 1, "batch_rows": 10, "linger_ms": 0, **settings}
        self.queue = pxrs.open(f"file:{self.directory}", partitions=partitions, settings=pxrs.Settings(**values))

    def fill(self, segments: int, partition: int = 0) -> None:
        """So many segments more, of ten messages each."""
        with self.queue.producer() as producer:
            for _ in range(segments):
                for _ in range(10):
                    producer.send(self.key_of(partition), b"v" * 100)
                producer.flush()

    def key_of(self, partition: int) -> str:
        keys = (f"k{number}" for number in range(1_000))
        return next(key for key in keys if self.queue.partitioner.partition(key) == partition)

    def group(self, name: str, **checkpoints: int) -> None:
        """A group that nobody is a member of; ``p0=25`` is a checkpoint."""
        group = self.queue.make_group(name)
        if checkpoints:
            group.seek({int(name[1:]): offset for name, offset in checkpoints.items()})

    def kinds(self, partition: int = 0) -> list[str]:
        return [chunk.kind for chunk in self.queue.log.chunks(partition)]

    def start(self, partition: int = 0) -> int:
        return self.queue.log.bounds(partition)[0]

    def __enter__(self) -> Setup:
        return self

    def __exit__(self, *_: object) -> None:
        self.queue.close()


def keepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pxrs-orders-keep"]


# ---- sealing --------------------------------------------------------------------------------------------------------


def test_a_process_that_sends_seals_what_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "_CLOSE_SECONDS", 60.0)  # to close gives up on a slow machine
    with Setup(tmp_path, **HASTY) as setup:
        assert not keepers(), "a queue that is only looked at has no housekeeping"
        setup.fill(5)
        eventually(lambda: setup.kinds() == ["parquet"] * 3 + ["arrow"] * 2, "all but the last two are sealed")
        assert len(setup.queue.read(0, 0, limit=100)) == 50
    assert not keepers()


def test_a_process_that_consumes_does_it_too(tmp_path: Path) -> None:
    with Setup(tmp_path, seal="manual") as setup:
        setup.fill(5)
    seen: list[int] = []
    with (
        pxrs.open(f"file:{setup.directory}", settings=pxrs.Settings(**HASTY)) as queue,
        queue.consumer("g", lambda message: seen.append(message.offset), "A"),
    ):
        eventually(lambda: len(list(setup.directory.glob("*/*.parquet"))) == 3, "three segments are sealed")
        eventually(lambda: len(seen) == 50, "everything is handled")
    assert seen == list(range(50))


def test_by_hand_one_round_says_what_it_did(tmp_path: Path) -> None:
    with Setup(tmp_path, partitions=2) as setup:
        setup.fill(4, partition=1)
        done = setup.queue.housekeep()
        assert [(chunk.kind, chunk.start, chunk.end) for chunk in done.sealed] == [
            ("parquet", 0, 10),
            ("parquet", 10, 20),
        ]
        assert (done.trimmed, done.held, done.troubles) == ({}, {}, {})
        assert setup.queue.housekeep() == Round()
        setup.fill(1, partition=1)
        assert [chunk.start for chunk in setup.queue.housekeep().sealed] == [20]


def test_what_has_not_been_full_for_long_is_left_alone(tmp_path: Path) -> None:
    with Setup(tmp_path, seal_after_ms=3_600_000) as setup:
        setup.fill(4)
        assert setup.queue.housekeep() == Round() and setup.kinds() == ["arrow"] * 4


def test_a_partition_that_no_longer_grows_is_hardly_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its end is asked for, once it has rested for longer than a segment must be full."""
    with Setup(tmp_path, housekeeping_ms=1) as setup:
        setup.fill(1)
        asked: list[int] = []

        def seal(partition: int, _: int) -> tuple[Chunk, ...]:
            asked.append(partition)
            return ()

        def is_left_alone() -> bool:
            before = len(asked)
            setup.queue.housekeep()
            return len(asked) == before

        monkeypatch.setattr(setup.queue.log, "seal", seal)
        eventually(is_left_alone, "the partition is left alone")


def test_nothing_runs_where_nothing_is_wanted(tmp_path: Path) -> None:
    with Setup(tmp_path, seal="manual") as setup:
        setup.fill(4)
        assert not keepers()
        assert setup.queue.housekeep() == Round() and setup.kinds() == ["arrow"] * 4
    with pxrs.open("memory:orders") as queue, queue.producer():
        assert not keepers()


# ---- retention ------------------------------------------------------------------------------------------------------


def test_retention_by_size_runs_by_itself_and_deletes_files(tmp_path: Path) -> None:
    with Setup(tmp_path, **HASTY, retention_bytes=1) as setup:
        setup.fill(6)
        eventually(lambda: setup.start() == 40, "all but the last two segments are gone")
        eventually(lambda: len(list(setup.directory.glob("partition-0/*.arrow"))) == 2, "and their files")
        eventually(lambda: not list(setup.directory.glob("partition-0/*.parquet")), "also what was sealed in between")


def test_retention_by_age(tmp_path: Path) -> None:
    with Setup(tmp_path, retention_ms=1) as setup:
        setup.fill(4)
        newest = max(chunk.last_us or 0 for chunk in setup.queue.log.chunks(0))
        eventually(lambda: time.time() * 1_000_000 > newest + 1_000, "all of them are older than a millisecond")
        assert setup.queue.housekeep().trimmed == {0: (0, 20)}
        assert setup.start() == 20
    with Setup(tmp_path, retention_ms=3_600_000) as setup:
        setup.fill(2)
        assert setup.queue.housekeep().trimmed == {}


def test_what_every_group_has_consumed_goes_and_without_a_group_nothing(tmp_path: Path) -> None:
    with Setup(tmp_path, partitions=2, retain="unconsumed") as setup:
        setup.fill(5)
        assert setup.queue.housekeep().trimmed == {}
        setup.group("billing", p0=29)
        assert setup.queue.housekeep().trimmed == {0: (0, 20)}
        setup.group("search", p0=20)
        setup.queue.group("billing").seek({0: 50})
        assert setup.queue.housekeep() == Round()
        setup.queue.group("search").seek({0: 50})
        assert setup.queue.housekeep().trimmed == {0: (20, 30)}, "the last two segments stay"


def test_the_slowest_group_holds_retention_back_and_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Setup(tmp_path, retention_bytes=1) as setup, caplog.at_level(logging.WARNING, "pxrs.housekeeping"):
        setup.fill(6)
        setup.group("billing", p0=60)
        setup.group("search", p0=15)
        for _ in range(3):
            assert setup.queue.housekeep().held == {"search": [0]}
        assert setup.start() == 10
        assert [record.getMessage() for record in caplog.records] == [
            "orders: group 'search' holds retention back: it has still to consume what would be deleted, "
            "as in partition 0"
        ]
        setup.queue.group("search").seek({0: 60})
        assert setup.queue.housekeep().trimmed == {0: (10, 40)}
        assert setup.queue.housekeep() == Round()


def test_b39_what_a_group_has_not_consumed_is_never_deleted_whatever_the_rules_say(tmp_path: Path) -> None:
    """A slow consumer with all rules at work against it: it misses nothing."""
    rules = {**HASTY, "retention_bytes": 1, "retention_ms": 1, "retain": "unconsumed"}
    with Setup(tmp_path, **rules, commit_interval_ms=1, commit_every=1) as setup:
        seen: list[int] = []
        go = threading.Semaphore(0)

        def handle(message: pxrs.Message) -> None:
            go.acquire()
            seen.append(message.offset)

        with setup.queue.consumer("g", handle, "A") as consumer:
            eventually(lambda: consumer.state == "live", "it has the partition")
            setup.fill(8)
            for _ in range(80):
                go.release()
            eventually(lambda: len(seen) == 80, "everything is handled")
            eventually(lambda: setup.start() == 60, "and deleted, but for the last two segments")
        assert seen == list(range(80))


def test_a_group_that_has_stored_nothing_yet_needs_everything(tmp_path: Path) -> None:
    with Setup(tmp_path, retention_bytes=1) as setup:
        setup.fill(4)
        setup.group("new")
        assert needs_of(setup.queue.store, "/pxrs/", setup.queue.log) == {0: Need(0, "new")}
        assert setup.queue.housekeep().held == {"new": [0]} and setup.start() == 0


def test_a_group_of_another_log_of_this_name_holds_nothing_back(tmp_path: Path) -> None:
    with Setup(tmp_path, retention_bytes=1) as setup:
        setup.fill(4)
        setup.queue.group("old").registry.initialize(1, "xxh64-spark", "pmod", log="another")
        assert setup.queue.housekeep().trimmed == {0: (0, 20)}


def test_files_go_when_jobs_that_were_planned_before_had_their_time(tmp_path: Path) -> None:
    with Setup(tmp_path, retention_bytes=1, delete_delay_ms=300) as setup:
        setup.fill(4)
        directory = setup.directory / "partition-0"
        sealed = [directory / f"{base:020d}.parquet" for base in (0, 10)]
        assert setup.queue.housekeep().trimmed == {0: (0, 20)}
        assert all(path.exists() for path in sealed)

        def are_gone() -> bool:
            setup.queue.housekeep()
            return not any(path.exists() for path in sealed)

        eventually(are_gone, "their files are gone")
        assert setup.queue.housekeep() == Round() and setup.start() == 20


def test_retention_works_on_any_log() -> None:
    settings = pxrs.Settings(**IDLE, retention_bytes=1, linger_ms=0)
    with pxrs.open("memory:", partitions=1, settings=settings) as queue, queue.producer() as producer:
        for _ in range(5):
            producer.send("k", b"v").result(20)
        assert queue.housekeep().trimmed == {0: (0, 3)}


# ---- faults ---------------------------------------------------------------------------------------------------------


def test_an_error_is_logged_once_and_stops_no_other_partition(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Setup(tmp_path, partitions=2) as setup, caplog.at_level(logging.WARNING, "pxrs.housekeeping"):
        setup.fill(4, partition=1)
        log, sound = setup.queue.log, setup.queue.log.seal

        def seal(partition: int, min_age_ms: int = 0) -> Any:
            if partition == 0:
                raise OSError(28, "No space left on device")
            return sound(partition, min_age_ms)

        monkeypatch.setattr(log, "seal", seal)
        first = setup.queue.housekeep()
        assert len(first.sealed) == 2 and "No space left" in first.troubles["partition 0, sealing"]
        assert "No space left" in setup.queue.housekeep().troubles["partition 0, sealing"]
        assert len(caplog.records) == 1 and "partition 0" in caplog.text
        monkeypatch.setattr(log, "seal", sound)
        assert setup.queue.housekeep() == Round()
        monkeypatch.setattr(log, "seal", seal)
        setup.fill(1)
        setup.queue.housekeep()
        assert len(caplog.records) == 2, "it was well in between, so this is news"


def test_without_a_registry_nothing_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Setup(tmp_path, retention_bytes=1) as setup:
        setup.fill(4)

        def scan(_: str) -> None:
            raise Damaged("the registry cannot be read")

        monkeypatch.setattr(setup.queue.store, "scan", scan)
        assert setup.queue.housekeep().troubles == {"retention": "the registry cannot be read"}
        assert setup.start() == 0


def test_the_thread_survives_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Setup(tmp_path, **HASTY) as setup:
        failed = threading.Event()
        sound = setup.queue.log.seal

        def seal(partition: int, min_age_ms: int = 0) -> Any:
            if not failed.is_set():
                failed.set()
                raise RuntimeError("a bug")
            return sound(partition, min_age_ms)

        monkeypatch.setattr(setup.queue.log, "seal", seal)
        setup.fill(4)
        eventually(lambda: "parquet" in setup.kinds(), "sealing goes on")
        assert failed.is_set()


# ---- life and death -------------------------------------------------------------------------------------------------


def test_one_thread_serves_all_users_of_a_queue_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "_CLOSE_SECONDS", 60.0)
    with Setup(tmp_path) as setup, setup.queue.producer(), setup.queue.producer():
        setup.queue.consumer("g", print)
        assert len(keepers()) == 1
    assert not keepers()


def test_closing_does_not_wait_for_a_long_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "_CLOSE_SECONDS", 0.01)
    busy, go_on = threading.Event(), threading.Event()
    with Setup(tmp_path, partitions=2, **HASTY) as setup:

        def seal(partition: int, _: int) -> tuple[Chunk, ...]:
            busy.set()
            assert go_on.wait(20) and partition == 0, "a closed queue has no next partition"
            return ()

        monkeypatch.setattr(setup.queue.log, "seal", seal)
        setup.queue.producer()
        assert busy.wait(20)
    assert len(keepers()) == 1
    go_on.set()
    eventually(lambda: not keepers(), "the thread has ended")


def test_a_dropped_queue_takes_its_thread_with_it(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.queue.producer().close()
    assert len(keepers()) == 1
    del setup
    gc.collect()
    eventually(lambda: not keepers(), "the thread has ended, long before its next round")


@pytest.mark.processes
def test_a_forked_child_has_no_housekeeping_until_it_sends(tmp_path: Path) -> None:
    with Setup(tmp_path, **HASTY) as setup:
        setup.fill(1)
        child = os.fork()
        if child == 0:
            before = len(keepers())
            setup.fill(4)
            after = len(keepers())
            done = setup.queue.housekeep()
            setup.queue.close()
            os._exit(0 if (before, after, len(keepers()), done.troubles) == (0, 1, 0, {}) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(keepers()) == 1


def test_what_was_done_is_counted(tmp_path: Path) -> None:
    with Setup(tmp_path, retention_bytes=4_000) as setup:
        setup.fill(6)
        done = setup.queue.housekeep()
        counted = {sample.metric.name: sample.value for sample in setup.queue._housekeeper.samples()}
        trimmed = sum(new - old for old, new in done.trimmed.values())
        assert trimmed > 0
        assert counted == {"pxrs_sealed_segments_total": 4, "pxrs_trimmed_messages_total": trimmed}


@pytest.mark.processes
def test_a_forked_child_closes_the_queue_and_leaves_the_parents_producer_alone(tmp_path: Path) -> None:
    """Its close raised the producer's error: it belongs to the parent."""
    with pxrs.open(f"file:{tmp_path}/q", partitions=1, settings=pxrs.Settings(linger_ms=3_600_000)) as queue:
        producer = queue.producer()
        producer.send("k", b"of the parent")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                queue.producer().send("k", b"of the child")
                queue.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        producer.close()
        assert [message.value for message in queue.read(0, 0)] == [b"of the child", b"of the parent"]


def test_closing_a_queue_waits_for_producers_that_nobody_has_kept(tmp_path: Path) -> None:
    """``queue.producer().send(...)``: the log was closed before the dropped producer's thread came to it."""
    for number in range(10):
        with pxrs.open(
            f"file:{tmp_path}/q{number}", partitions=1, settings=pxrs.Settings(linger_ms=3_600_000)
        ) as queue:
            receipts = [queue.producer().send("k", b"x") for _ in range(3)]
        assert [receipt.result(0)[0] for receipt in receipts] == [0, 0, 0]


def test_a_handler_that_sends_does_not_fail_when_its_queue_is_closed(tmp_path: Path) -> None:
    """Producers were closed first: the message at hand failed, and with one try it went to the dead letters."""
    begun, may_go_on = threading.Event(), threading.Event()

    def handle(message: pxrs.Message) -> None:
        if message.value == b"in":
            begun.set()
            may_go_on.wait(30)
            producer.send("k", b"out")

    with pxrs.open(f"file:{tmp_path}/q", partitions=1, settings=pxrs.Settings(tries=1)) as queue:
        producer = queue.producer()
        producer.send("k", b"in").result(30)
        queue.consumer("g", handle).start()
        assert begun.wait(30)
        closing = threading.Thread(target=queue.close)
        closing.start()
        eventually(lambda: "closed" in repr(queue), "the queue is being closed")
        may_go_on.set()
        closing.join(30)
    with pxrs.open(f"file:{tmp_path}/q") as queue:
        assert [message.value for message in queue.read(0, 0)] == [b"in", b"out"]
        assert len(queue.group("g").dead_letters) == 0


def test_nor_when_the_queue_that_it_sends_to_is_closed_first(tmp_path: Path) -> None:
    """``with pxrs.open(a) as a, pxrs.open(b) as b``: b is closed while the consumer of a still runs."""
    failed = threading.Event()

    def handle(_: pxrs.Message) -> None:
        try:
            producer.send("k", b"out")
        except Closed:
            failed.set()
            raise

    with pxrs.open(f"file:{tmp_path}/q", partitions=1, settings=pxrs.Settings(tries=1)) as queue:
        with pxrs.open(f"file:{tmp_path}/out", partitions=1) as out:
            producer = out.producer()
            queue.consumer("g", handle).start()
        queue.producer().send("k", b"in")
        assert failed.wait(30)
    with pxrs.open(f"file:{tmp_path}/q") as queue:
        assert (len(queue.group("g").dead_letters), queue.group("g").describe().total_lag) == (0, 1)
