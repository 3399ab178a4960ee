"""The promises, with Spark applications that share a queue: each has its own driver process and its own JVM.

Starting one takes long, so the stories share them: each says which applications it needs, and starts what is missing.
After each, all that was ever sent is proved: in the Parquet files, as any reader sees them, and by the checker.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest

from tests.acceptance.harness import DEADLINE, eventually
from tests.acceptance.spark_harness import SparkScenario, is_alive, places_of

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.xdist_group("spark-stories")]


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkScenario]:
    scenario = SparkScenario(tmp_path_factory.mktemp("stories"))
    try:
        yield scenario
    finally:
        scenario.close()


def test_two_applications_share_eight_partitions(scenario: SparkScenario) -> None:
    scenario.run_only("A", "B")
    mark = scenario.mark()
    scenario.post(400)
    scenario.await_done()
    assert Counter(scenario.owners().values()) == {"A": 4, "B": 4}
    eventually(lambda: {line["by"] for line in scenario.since(mark, "batch")} == {"A", "B"}, "work of both")
    jvms = {name: str(application.jvm.pid) for name, application in scenario.applications.items()}
    assert {line.member: line.jvm for line in scenario.queue.group("g").members()} == jvms
    scenario.prove()


def test_b77_a_partition_lost_and_claimed_again_by_the_same_application_before_the_commit(
    scenario: SparkScenario,
) -> None:
    """It is the owner again, under a later epoch: the whole batch, planned under the earlier one, is refused."""
    scenario.run_only("A", "B")
    hold = scenario.hold("B", "staged")
    scenario.post(400)
    held = hold.await_held()
    partition, start, _, epoch = held["ranges"][0]
    assert scenario.staged(held), "its output waits for the commit"
    checkpoints = scenario.checkpoints()
    scenario.queue.group("g").seek({partition: start})
    eventually(lambda: _has_claimed_again(scenario, partition, epoch), "B owns it again")
    hold.release()
    eventually(lambda: scenario.outcomes("B", held), "the end of the batch")
    assert scenario.outcomes("B", held) == ["refused"]
    scenario.prove()
    assert scenario.rows_of(held) == [] == scenario.staged(held), "all of it was refused, not the one partition only"
    again = [row for row in scenario.rows() if (row.partition, row.offset) in set(places_of(held))]
    assert {row.member for row in again} == {"B"}, "nobody else was needed"
    assert {row.epoch for row in again if row.partition == partition} == {epoch + 2}, "released and claimed"
    assert all(scenario.checkpoints()[p] >= checkpoints[p] for p in checkpoints)


def _has_claimed_again(scenario: SparkScenario, partition: int, epoch: int) -> bool:
    return any(line["epoch"] > epoch for line in scenario.lines("claimed", by="B", partition=partition))


def test_b01_an_application_stopped_past_its_lease_is_refused_when_it_goes_on(scenario: SparkScenario) -> None:
    """Driver and JVM are stopped when the output is written and the commit is next."""
    scenario.run_only("A", "B")
    hold = scenario.hold("B", "staged")
    scenario.post(400)
    held = hold.await_held()
    stopped = scenario.applications["B"]
    stopped.jvm.suspend()
    scenario.stop_outside_a_write(stopped.process)
    scenario.await_owners("A")
    scenario.await_done()
    checkpoints = scenario.checkpoints()
    hold.release()
    stopped.jvm.resume()
    stopped.process.send_signal(signal.SIGCONT)
    eventually(lambda: scenario.outcomes("B", held), "B to hear what became of its commit")
    assert scenario.outcomes("B", held) == ["refused"]
    assert scenario.checkpoints() == checkpoints, "A's progress stands"
    assert scenario.rows_of(held) == [] == scenario.staged(held)
    scenario.await_owners("A", "B")
    scenario.post(200)
    scenario.prove()


def test_a_third_application_joins_under_load_and_nothing_is_even_begun_twice(scenario: SparkScenario) -> None:
    scenario.run_only("A", "B")
    before, mark = scenario.owners(), scenario.mark()
    with scenario.load():
        scenario.run_only("A", "B", "C")
        eventually(lambda: scenario.since(mark, "batch", by="C", outcome="committed"), "work of C")
    scenario.prove()
    after = scenario.owners()
    assert sorted(Counter(after.values()).values()) == [2, 3, 3]
    assert all(after[p] in (before[p], "C") for p in after), "only what C needs has moved"
    assert set(scenario.begun(mark).values()) == {1}
    assert scenario.since(mark, "lost") == scenario.since(mark, "refused") == []


def test_b78_a_python_worker_of_the_executor_killed_in_its_task(scenario: SparkScenario) -> None:
    """The batch is large: the executor writes its files. The first try leaves some behind, the second is shown."""
    scenario.run_only("A", "B", "C")
    scenario.queue.group("g").pause()
    scenario.post(60_000)
    hold, mark = scenario.hold("C", "task"), scenario.mark()
    scenario.queue.group("g").resume()
    worker = hold.await_held()["pid"]
    jvm = scenario.applications["C"].jvm
    assert worker in {child.pid for child in jvm.children(recursive=True)}
    psutil.Process(worker).kill()
    eventually(lambda: scenario.since(mark, "batch", by="C", outcome="failed"), "the task to fail")
    failed = scenario.since(mark, "batch", by="C", outcome="failed")[0]
    scenario.prove()
    eventually(lambda: len(scenario.outcomes("C", failed)) > 1, "the outcome of the second try")
    tries = scenario.lines("batch", pid=failed["pid"], batch=failed["batch"])
    assert [(line["attempt"], line["outcome"]) for line in tries] == [(1, "failed"), (2, "committed")]
    assert tries[0]["ranges"] == tries[1]["ranges"], "the same range is read again"
    assert list(scenario.queue.group("g").dead_letters) == [], "no message is to blame"
    assert is_alive(jvm)


def test_an_application_killed_in_the_middle_of_a_task(scenario: SparkScenario) -> None:
    scenario.run_only("A", "B", "C")
    hold, mark = scenario.hold("C", "task"), scenario.mark()
    scenario.post(400)
    hold.await_held()
    begun = scenario.since(mark, "working", by="C")[-1]
    scenario.lose("C").kill()
    hold.release()  # its worker has lost its driver, and ends
    scenario.await_owners("A", "B")
    scenario.prove()
    assert scenario.rows_of(begun) == []
    redone = [row for row in scenario.rows() if (row.partition, row.offset) in set(places_of(begun))]
    assert len(redone) == len(places_of(begun))
    assert {row.member for row in redone} <= {"A", "B"}


def test_b74_the_driver_killed_between_output_and_commit(scenario: SparkScenario) -> None:
    scenario.run_only("A", "B")
    hold = scenario.hold("B", "staged")
    scenario.post(400)
    held = hold.await_held()
    assert scenario.staged(held)
    scenario.lose("B").kill_driver()
    scenario.await_owners("A")
    scenario.prove()
    assert scenario.rows_of(held) == [], "what was not committed is not seen"
    assert scenario.staged(held) == [], "and does not lie about"


def test_a_jvm_that_hangs_loses_its_partitions_although_its_driver_beats(scenario: SparkScenario) -> None:
    scenario.run_only("A", "D")
    mark = scenario.mark()
    stuck = scenario.applications["D"]
    stuck.jvm.suspend()
    scenario.post(400)
    scenario.await_owners("A")
    scenario.await_done()
    assert scenario.since(mark, "stalled", by="D"), "it has said so itself"
    assert "D" in {line.member for line in scenario.queue.group("g").members()}, "it is alive"
    stuck.jvm.resume()
    eventually(lambda: scenario.since(mark, "batch", by="D"), "the late commit of D")
    late = scenario.since(mark, "batch", by="D")[0]
    assert late["outcome"] == "refused"
    assert scenario.rows_of(late) == []
    scenario.await_owners("A", "D")
    scenario.post(200)
    scenario.prove()


def test_b74_the_driver_killed_between_commit_and_publish(scenario: SparkScenario) -> None:
    scenario.run_only("A", "D")
    hold, mark = scenario.hold("D", "committed"), scenario.mark()
    scenario.post(400)
    held = hold.await_held()
    assert scenario.rows_of(held) == []
    assert all(scenario.checkpoints()[p] == end for p, _, end, _ in held["ranges"]), (
        "the commit has moved the checkpoints"
    )
    scenario.lose("D").kill_driver()
    scenario.await_owners("A")
    scenario.prove()
    assert {(row.partition, row.offset) for row in scenario.rows_of(held)} == set(places_of(held)), "A has shown it"
    assert {scenario.begun(mark)[place] for place in places_of(held)} == {1}, "and has processed none of it"
    eventually(lambda: not scenario.staged(held), "nothing of it to lie about")


def test_sigterm_in_the_middle_of_a_batch_leaves_cleanly_with_zero_repeats(scenario: SparkScenario) -> None:
    scenario.run_only("A", "B")
    hold, mark = scenario.hold("A", "process"), scenario.mark()
    with scenario.load():
        held = hold.await_held()
        leaver = scenario.lose("A")
        leaver.process.terminate()
        eventually(lambda: len(scenario.since(mark, "draining", by="A")) == 4, "A to stop taking")
        assert leaver.process.poll() is None, "it waits for its batch"
        hold.release()
        assert leaver.process.wait(DEADLINE) == 0
        scenario.await_owners("B")
    scenario.prove()
    [end] = scenario.lines("ended", pid=leaver.process.pid)
    assert (end["state"], end["error"]) == ("stopped", None)
    eventually(lambda: not is_alive(leaver.jvm), "its JVM to end")
    assert scenario.outcomes("A", held) == ["committed"]
    assert set(scenario.begun(mark).values()) == {1}
    assert scenario.since(mark, "lost") == scenario.since(mark, "refused") == scenario.since(mark, "forced") == []
