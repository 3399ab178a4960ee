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
from tests.acceptance.spark_harness import SparkTown, is_alive, places_of

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.xdist_group("spark-stories")]


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkTown]:
    town = SparkTown(tmp_path_factory.mktemp("stories"))
    try:
        yield town
    finally:
        town.close()


def test_two_applications_share_eight_partitions(town: SparkTown) -> None:
    town.crew("A", "B")
    mark = town.mark()
    town.post(400)
    town.await_done()
    assert Counter(town.owners().values()) == {"A": 4, "B": 4}
    eventually(lambda: {line["by"] for line in town.since(mark, "batch")} == {"A", "B"}, "work of both")
    jvms = {name: str(application.jvm.pid) for name, application in town.applications.items()}
    assert {line.member: line.jvm for line in town.queue.group("g").members()} == jvms
    town.prove()


def test_b77_a_partition_lost_and_claimed_again_by_the_same_application_before_the_commit(town: SparkTown) -> None:
    """It is the owner again, under a later epoch: the whole batch, planned under the earlier one, is refused."""
    town.crew("A", "B")
    hold = town.hold("B", "staged")
    town.post(400)
    held = hold.await_held()
    partition, start, _, epoch = held["ranges"][0]
    assert town.staged(held), "its output waits for the commit"
    checkpoints = town.checkpoints()
    town.queue.group("g").seek({partition: start})
    eventually(lambda: _has_claimed_again(town, partition, epoch), "B owns it again")
    hold.release()
    eventually(lambda: town.outcomes("B", held), "the end of the batch")
    assert town.outcomes("B", held) == ["refused"]
    town.prove()
    assert town.rows_of(held) == [] == town.staged(held), "all of it was refused, not the one partition only"
    again = [row for row in town.rows() if (row.partition, row.offset) in set(places_of(held))]
    assert {row.member for row in again} == {"B"}, "nobody else was needed"
    assert {row.epoch for row in again if row.partition == partition} == {epoch + 2}, "released and claimed"
    assert all(town.checkpoints()[p] >= checkpoints[p] for p in checkpoints)


def _has_claimed_again(town: SparkTown, partition: int, epoch: int) -> bool:
    return any(line["epoch"] > epoch for line in town.lines("claimed", by="B", partition=partition))


def test_b01_an_application_stopped_past_its_lease_is_refused_when_it_goes_on(town: SparkTown) -> None:
    """Driver and JVM are stopped when the output is written and the commit is next."""
    town.crew("A", "B")
    hold = town.hold("B", "staged")
    town.post(400)
    held = hold.await_held()
    stopped = town.applications["B"]
    stopped.jvm.suspend()
    town.stop_outside_a_write(stopped.process)
    town.await_owners("A")
    town.await_done()
    checkpoints = town.checkpoints()
    hold.release()
    stopped.jvm.resume()
    stopped.process.send_signal(signal.SIGCONT)
    eventually(lambda: town.outcomes("B", held), "B to hear what became of its commit")
    assert town.outcomes("B", held) == ["refused"]
    assert town.checkpoints() == checkpoints, "A's progress stands"
    assert town.rows_of(held) == [] == town.staged(held)
    town.await_owners("A", "B")
    town.post(200)
    town.prove()


def test_a_third_application_joins_under_load_and_nothing_is_even_begun_twice(town: SparkTown) -> None:
    town.crew("A", "B")
    before, mark = town.owners(), town.mark()
    with town.load():
        town.crew("A", "B", "C")
        eventually(lambda: town.since(mark, "batch", by="C", outcome="committed"), "work of C")
    town.prove()
    after = town.owners()
    assert sorted(Counter(after.values()).values()) == [2, 3, 3]
    assert all(after[p] in (before[p], "C") for p in after), "only what C needs has moved"
    assert set(town.begun(mark).values()) == {1}
    assert town.since(mark, "lost") == town.since(mark, "refused") == []


def test_b78_a_python_worker_of_the_executor_killed_in_its_task(town: SparkTown) -> None:
    """The batch is large: the executor writes its files. The first try leaves some behind, the second is shown."""
    town.crew("A", "B", "C")
    town.queue.group("g").pause()
    town.post(60_000)
    hold, mark = town.hold("C", "task"), town.mark()
    town.queue.group("g").resume()
    worker = hold.await_held()["pid"]
    jvm = town.applications["C"].jvm
    assert worker in {child.pid for child in jvm.children(recursive=True)}
    psutil.Process(worker).kill()
    eventually(lambda: town.since(mark, "batch", by="C", outcome="failed"), "the task to fail")
    failed = town.since(mark, "batch", by="C", outcome="failed")[0]
    town.prove()
    eventually(lambda: len(town.outcomes("C", failed)) > 1, "the outcome of the second try")
    tries = town.lines("batch", pid=failed["pid"], batch=failed["batch"])
    assert [(line["attempt"], line["outcome"]) for line in tries] == [(1, "failed"), (2, "committed")]
    assert tries[0]["ranges"] == tries[1]["ranges"], "the same range is read again"
    assert list(town.queue.group("g").dead_letters) == [], "no message is to blame"
    assert is_alive(jvm)


def test_an_application_killed_in_the_middle_of_a_task(town: SparkTown) -> None:
    town.crew("A", "B", "C")
    hold, mark = town.hold("C", "task"), town.mark()
    town.post(400)
    hold.await_held()
    begun = town.since(mark, "working", by="C")[-1]
    town.lose("C").kill()
    hold.release()  # its worker has lost its driver, and ends
    town.await_owners("A", "B")
    town.prove()
    assert town.rows_of(begun) == []
    redone = [row for row in town.rows() if (row.partition, row.offset) in set(places_of(begun))]
    assert len(redone) == len(places_of(begun))
    assert {row.member for row in redone} <= {"A", "B"}


def test_b74_the_driver_killed_between_output_and_commit(town: SparkTown) -> None:
    town.crew("A", "B")
    hold = town.hold("B", "staged")
    town.post(400)
    held = hold.await_held()
    assert town.staged(held)
    town.lose("B").kill_driver()
    town.await_owners("A")
    town.prove()
    assert town.rows_of(held) == [], "what was not committed is not seen"
    assert town.staged(held) == [], "and does not lie about"


def test_a_jvm_that_hangs_loses_its_partitions_although_its_driver_beats(town: SparkTown) -> None:
    town.crew("A", "D")
    mark = town.mark()
    stuck = town.applications["D"]
    stuck.jvm.suspend()
    town.post(400)
    town.await_owners("A")
    town.await_done()
    assert town.since(mark, "stalled", by="D"), "it has said so itself"
    assert "D" in {line.member for line in town.queue.group("g").members()}, "it is alive"
    stuck.jvm.resume()
    eventually(lambda: town.since(mark, "batch", by="D"), "the late commit of D")
    late = town.since(mark, "batch", by="D")[0]
    assert late["outcome"] == "refused"
    assert town.rows_of(late) == []
    town.await_owners("A", "D")
    town.post(200)
    town.prove()


def test_b74_the_driver_killed_between_commit_and_publish(town: SparkTown) -> None:
    town.crew("A", "D")
    hold, mark = town.hold("D", "committed"), town.mark()
    town.post(400)
    held = hold.await_held()
    assert town.rows_of(held) == []
    assert all(town.checkpoints()[p] == end for p, _, end, _ in held["ranges"]), "the commit has moved the checkpoints"
    town.lose("D").kill_driver()
    town.await_owners("A")
    town.prove()
    assert {(row.partition, row.offset) for row in town.rows_of(held)} == set(places_of(held)), "A has shown it"
    assert {town.begun(mark)[place] for place in places_of(held)} == {1}, "and has processed none of it"
    eventually(lambda: not town.staged(held), "nothing of it to lie about")


def test_sigterm_in_the_middle_of_a_batch_leaves_cleanly_with_zero_repeats(town: SparkTown) -> None:
    town.crew("A", "B")
    hold, mark = town.hold("A", "process"), town.mark()
    with town.load():
        held = hold.await_held()
        leaver = town.lose("A")
        leaver.process.terminate()
        eventually(lambda: len(town.since(mark, "draining", by="A")) == 4, "A to stop taking")
        assert leaver.process.poll() is None, "it waits for its batch"
        hold.release()
        assert leaver.process.wait(DEADLINE) == 0
        town.await_owners("B")
    town.prove()
    [end] = town.lines("ended", pid=leaver.process.pid)
    assert (end["state"], end["error"]) == ("stopped", None)
    eventually(lambda: not is_alive(leaver.jvm), "its JVM to end")
    assert town.outcomes("A", held) == ["committed"]
    assert set(town.begun(mark).values()) == {1}
    assert town.since(mark, "lost") == town.since(mark, "refused") == town.since(mark, "forced") == []
