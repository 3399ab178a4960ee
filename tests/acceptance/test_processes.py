"""The promises, with real processes on a file log and a SQLite registry: joined, left, killed, stopped, continued."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance.harness import DEADLINE, Scenario, check_order, eventually, values_of

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_800_messages_sent_before_the_first_process_are_handled_800_times(tmp_path: Path) -> None:
    with Scenario(tmp_path) as scenario:
        values = scenario.send(800)
        process = scenario.start("A")
        eventually(lambda: len(scenario.lines("handled")) >= 800, "800 messages")
        process.terminate()
        assert process.wait(DEADLINE) == 0
        assert sorted(values_of(scenario.lines("handled"))) == sorted(values)
        check_order(scenario.lines("handled"))
        assert scenario.queue.group("g").describe().total_lag == 0
        [end] = scenario.lines("ended")
        assert (end["state"], end["error"]) == ("stopped", None)


def test_b13_join_and_clean_leave_under_load_repeat_nothing(tmp_path: Path) -> None:
    """Lease and poll are a minute: whatever is seen in time is seen because it was said."""
    sent: list[str] = []
    enough = threading.Event()
    with Scenario(tmp_path, lease_ms=60_000, poll_ms=60_000, progress_limit_ms=300_000) as scenario:

        def load() -> None:
            while not enough.is_set():
                sent.extend(scenario.send(40, first=len(sent)))

        sender = threading.Thread(target=load)
        sender.start()
        try:
            first = scenario.start("A")
            scenario.await_owners("A")
            scenario.start("B")
            scenario.await_owners("A", "B")
            moved = {p for p, owner in scenario.owners().items() if owner == "B"}
            eventually(lambda: scenario.lines("handled", by="B"), "work of the second")
            first.terminate()
            scenario.await_owners("B")
            assert first.wait(DEADLINE) == 0
        finally:
            enough.set()
            sender.join()
        scenario.await_done()
        assert sorted(values_of(scenario.lines("handled"))) == sorted(sent), "zero repeats, zero loss"
        check_order(scenario.lines("handled"))
        assert scenario.lines("lost") == scenario.lines("refused") == scenario.lines("fenced") == []
        assert len(scenario.lines("released", by="A")) == 8, "each flush at a hand-over was accepted"
        assert sorted(line["partition"] for line in scenario.lines("assigned", by="A")) == list(range(8))
        assert Counter(line["partition"] for line in scenario.lines("assigned")) == dict.fromkeys(range(8), 2), (
            "each partition was started once by A and once by B"
        )
        assert moved <= {line["partition"] for line in scenario.lines("revoked", by="A")}
        assert scenario.lines("revoked", by="B") == []


def test_kill_minus_nine_of_one_of_three(tmp_path: Path) -> None:
    settings = {"lease_ms": 8_000, "poll_ms": 1_000, "commit_every": 10, "commit_interval_ms": 50}
    with Scenario(tmp_path, partitions=12, **settings) as scenario:
        for name in "ABC":
            scenario.start(name, delay=0.002)
        scenario.await_owners("A", "B", "C")
        lost = {p for p, owner in scenario.owners().items() if owner == "B"}
        victim = scenario.processes[1]
        values = scenario.send(600)
        eventually(lambda: len(scenario.lines("handled", by="B")) >= 40, "some work of the victim")
        victim.kill()
        victim.wait(DEADLINE)
        values += scenario.send(200, first=600)
        scenario.await_owners("A", "C")
        scenario.await_done()
        lines = scenario.lines("handled")
        assert set(values_of(lines)) == set(values), "nothing is lost"
        check_order(lines)
        repeats = {value for value, times in Counter(values_of(lines)).items() if times > 1}
        assert {line["partition"] for line in lines if line["value"] in repeats} <= lost
        for partition in lost:
            stored = max([0, *(c["checkpoint"] for c in scenario.lines("committed", by="B", partition=partition))])
            heir = scenario.lines("claimed", partition=partition)[-1]
            assert heir["by"] != "B"
            assert heir["checkpoint"] >= stored, "a repeat begins at the stored checkpoint, not before it"


def test_b01_a_process_that_was_stopped_past_its_lease_is_fenced(tmp_path: Path) -> None:
    settings = {"lease_ms": 1_500, "poll_ms": 500, "commit_every": 5, "commit_interval_ms": 50}
    with Scenario(tmp_path, partitions=4, **settings) as scenario:
        stopped = scenario.start("A", delay=0.01)
        scenario.await_owners("A")
        scenario.start("B", delay=0.001)
        scenario.await_owners("A", "B")
        mine = {p for p, owner in scenario.owners().items() if owner == "A"}
        values = scenario.send(400)
        eventually(lambda: len(scenario.lines("handled", by="A")) >= 10, "work of A")
        scenario.stop_outside_a_write(stopped)
        scenario.await_owners("B")
        scenario.await_done()
        old = {line["partition"]: line["epoch"] for line in scenario.lines("claimed", by="A")}
        before, checkpoints = len(scenario.lines()), scenario.checkpoints()
        stopped.send_signal(signal.SIGCONT)
        eventually(lambda: {line["partition"] for line in scenario.lines("lost", by="A")} >= mine, "A hears of it")
        late = [line for line in scenario.lines()[before:] if line["what"] == "handled" and line["by"] == "A"]
        per_partition = Counter(line["partition"] for line in late if line["epoch"] <= old[line["partition"]])
        assert all(times <= 1 for times in per_partition.values()), "at most the one that was in its hands"
        assert scenario.checkpoints() == checkpoints, "B's progress stands"
        values += scenario.send(40, first=400)
        scenario.await_owners("A", "B")
        scenario.await_done()
        assert set(values_of(scenario.lines("handled"))) == set(values)
        assert all(scenario.checkpoints()[p] >= checkpoints[p] for p in checkpoints)


def test_b01_a_second_process_with_the_same_id_fences_the_first(tmp_path: Path) -> None:
    with Scenario(tmp_path, partitions=4, lease_ms=3_000, poll_ms=1_000, commit_interval_ms=50) as scenario:
        first = scenario.start("A", delay=0.002)
        scenario.await_owners("A")
        values = scenario.send(200)
        eventually(lambda: len(scenario.lines("handled")) >= 20, "work of the first")
        second = scenario.start("A", delay=0.002)
        assert first.wait(DEADLINE) == 0
        [end] = scenario.lines("ended", pid=first.pid)
        assert (end["state"], end["error"]) == ("fenced", "DuplicateMember")
        values += scenario.send(100, first=200)
        scenario.await_done()
        lines = scenario.lines("handled")
        assert set(values_of(lines)) == set(values)
        check_order(lines)
        epochs = {line["partition"]: line["epoch"] for line in scenario.lines("claimed", pid=second.pid)}
        assert {p: line.epoch for p, line in enumerate(scenario.queue.group("g").describe())} == epochs


def test_b06_the_death_of_a_process_frees_everything_within_its_lease(tmp_path: Path) -> None:
    """No lock, no lease and no thread outlives it: a new process takes all, also of a member that led."""
    with Scenario(tmp_path, partitions=4, lease_ms=1_500, poll_ms=500) as scenario:
        scenario.start("A")
        scenario.await_owners("A")
        scenario.processes[0].kill()
        scenario.processes[0].wait(DEADLINE)
        scenario.start("B")
        scenario.await_owners("B")
        values = scenario.send(40)
        scenario.await_done()
        assert sorted(values_of(scenario.lines("handled"))) == sorted(values)


def test_an_idle_consumer_of_8_partitions_hardly_uses_the_processor(tmp_path: Path) -> None:
    """The issue's own number: less than 50 ms of processor time in 10 s, of the whole process, with the defaults."""
    with Scenario(tmp_path) as scenario:
        scenario.send(80)
        process = scenario.start("A", measure=10)
        assert process.wait(DEADLINE) == 0
        [measured] = scenario.lines("measured")
        assert measured["cpu_seconds"] < 0.050
