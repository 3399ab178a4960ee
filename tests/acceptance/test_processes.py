"""The promises, with real processes on a file log and a SQLite registry: joined, left, killed, stopped, continued."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance.harness import DEADLINE, Town, check_order, eventually, values_of

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_800_messages_sent_before_the_first_process_are_handled_800_times(tmp_path: Path) -> None:
    with Town(tmp_path) as town:
        values = town.send(800)
        process = town.start("A")
        eventually(lambda: len(town.lines("handled")) >= 800, "800 messages")
        process.terminate()
        assert process.wait(DEADLINE) == 0
        assert sorted(values_of(town.lines("handled"))) == sorted(values)
        check_order(town.lines("handled"))
        assert town.queue.group("g").describe().total_lag == 0
        [end] = town.lines("ended")
        assert (end["state"], end["error"]) == ("stopped", None)


def test_b13_join_and_clean_leave_under_load_repeat_nothing(tmp_path: Path) -> None:
    """Lease and poll are a minute: whatever is seen in time is seen because it was said."""
    sent: list[str] = []
    enough = threading.Event()
    with Town(tmp_path, lease_ms=60_000, poll_ms=60_000, progress_limit_ms=300_000) as town:

        def load() -> None:
            while not enough.is_set():
                sent.extend(town.send(40, first=len(sent)))

        sender = threading.Thread(target=load)
        sender.start()
        try:
            first = town.start("A")
            town.await_owners("A")
            town.start("B")
            town.await_owners("A", "B")
            moved = {p for p, owner in town.owners().items() if owner == "B"}
            eventually(lambda: town.lines("handled", by="B"), "work of the second")
            first.terminate()
            town.await_owners("B")
            assert first.wait(DEADLINE) == 0
        finally:
            enough.set()
            sender.join()
        town.await_done()
        assert sorted(values_of(town.lines("handled"))) == sorted(sent), "zero repeats, zero loss"
        check_order(town.lines("handled"))
        assert town.lines("lost") == town.lines("refused") == town.lines("fenced") == []
        assert len(town.lines("released", by="A")) == 8, "each flush at a hand-over was accepted"
        assert sorted(line["partition"] for line in town.lines("assigned", by="A")) == list(range(8))
        assert Counter(line["partition"] for line in town.lines("assigned")) == dict.fromkeys(range(8), 2), (
            "each partition was started once by A and once by B"
        )
        assert moved <= {line["partition"] for line in town.lines("revoked", by="A")}
        assert town.lines("revoked", by="B") == []


def test_kill_minus_nine_of_one_of_three(tmp_path: Path) -> None:
    settings = {"lease_ms": 8_000, "poll_ms": 1_000, "commit_every": 10, "commit_interval_ms": 50}
    with Town(tmp_path, partitions=12, **settings) as town:
        for name in "ABC":
            town.start(name, delay=0.002)
        town.await_owners("A", "B", "C")
        lost = {p for p, owner in town.owners().items() if owner == "B"}
        victim = town.processes[1]
        values = town.send(600)
        eventually(lambda: len(town.lines("handled", by="B")) >= 40, "some work of the victim")
        victim.kill()
        victim.wait(DEADLINE)
        values += town.send(200, first=600)
        town.await_owners("A", "C")
        town.await_done()
        lines = town.lines("handled")
        assert set(values_of(lines)) == set(values), "nothing is lost"
        check_order(lines)
        repeats = {value for value, times in Counter(values_of(lines)).items() if times > 1}
        assert {line["partition"] for line in lines if line["value"] in repeats} <= lost
        for partition in lost:
            stored = max([0, *(c["checkpoint"] for c in town.lines("committed", by="B", partition=partition))])
            heir = town.lines("claimed", partition=partition)[-1]
            assert heir["by"] != "B"
            assert heir["checkpoint"] >= stored, "a repeat begins at the stored checkpoint, not before it"


def test_b01_a_process_that_was_stopped_past_its_lease_is_fenced(tmp_path: Path) -> None:
    settings = {"lease_ms": 1_500, "poll_ms": 500, "commit_every": 5, "commit_interval_ms": 50}
    with Town(tmp_path, partitions=4, **settings) as town:
        stopped = town.start("A", delay=0.01)
        town.await_owners("A")
        town.start("B", delay=0.001)
        town.await_owners("A", "B")
        mine = {p for p, owner in town.owners().items() if owner == "A"}
        values = town.send(400)
        eventually(lambda: len(town.lines("handled", by="A")) >= 10, "work of A")
        town.stop_outside_a_write(stopped)
        town.await_owners("B")
        town.await_done()
        old = {line["partition"]: line["epoch"] for line in town.lines("claimed", by="A")}
        before, checkpoints = len(town.lines()), town.checkpoints()
        stopped.send_signal(signal.SIGCONT)
        eventually(lambda: {line["partition"] for line in town.lines("lost", by="A")} >= mine, "A hears of it")
        late = [line for line in town.lines()[before:] if line["what"] == "handled" and line["by"] == "A"]
        per_partition = Counter(line["partition"] for line in late if line["epoch"] <= old[line["partition"]])
        assert all(times <= 1 for times in per_partition.values()), "at most the one that was in its hands"
        assert town.checkpoints() == checkpoints, "B's progress stands"
        values += town.send(40, first=400)
        town.await_owners("A", "B")
        town.await_done()
        assert set(values_of(town.lines("handled"))) == set(values)
        assert all(town.checkpoints()[p] >= checkpoints[p] for p in checkpoints)


def test_b01_a_second_process_with_the_same_id_fences_the_first(tmp_path: Path) -> None:
    with Town(tmp_path, partitions=4, lease_ms=3_000, poll_ms=1_000, commit_interval_ms=50) as town:
        first = town.start("A", delay=0.002)
        town.await_owners("A")
        values = town.send(200)
        eventually(lambda: len(town.lines("handled")) >= 20, "work of the first")
        second = town.start("A", delay=0.002)
        assert first.wait(DEADLINE) == 0
        [end] = town.lines("ended", pid=first.pid)
        assert (end["state"], end["error"]) == ("fenced", "DuplicateMember")
        values += town.send(100, first=200)
        town.await_done()
        lines = town.lines("handled")
        assert set(values_of(lines)) == set(values)
        check_order(lines)
        epochs = {line["partition"]: line["epoch"] for line in town.lines("claimed", pid=second.pid)}
        assert {p: line.epoch for p, line in enumerate(town.queue.group("g").describe())} == epochs


def test_b06_the_death_of_a_process_frees_everything_within_its_lease(tmp_path: Path) -> None:
    """No lock, no lease and no thread outlives it: a new process takes all, also of a member that led."""
    with Town(tmp_path, partitions=4, lease_ms=1_500, poll_ms=500) as town:
        town.start("A")
        town.await_owners("A")
        town.processes[0].kill()
        town.processes[0].wait(DEADLINE)
        town.start("B")
        town.await_owners("B")
        values = town.send(40)
        town.await_done()
        assert sorted(values_of(town.lines("handled"))) == sorted(values)


def test_an_idle_consumer_of_8_partitions_hardly_uses_the_processor(tmp_path: Path) -> None:
    """The issue's own number: less than 50 ms of processor time in 10 s, of the whole process, with the defaults."""
    with Town(tmp_path) as town:
        town.send(80)
        process = town.start("A", measure=10)
        assert process.wait(DEADLINE) == 0
        [measured] = town.lines("measured")
        assert measured["cpu_seconds"] < 0.050
