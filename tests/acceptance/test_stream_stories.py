"""Streaming queries as members of a group, beside a Pipeline: each a separate application with its own JVM.

A is a Pipeline. S is a streaming query, fenced into the same directory of Parquet files; it keeps its checkpoint
directory of Spark over its restarts. Starting an application takes long, so the order of the stories is one that needs
few. After each, all that was ever sent is proved.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.acceptance.harness import DEADLINE, ROOT, eventually, registry_is_free
from tests.acceptance.spark_harness import COMMON, Application, MixedScenario, is_alive, places_of

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.xdist_group("spark-stories")]

# S is soon taken for stuck; its rows pass through a Python function in a worker of its executor.
SETTINGS = {"lease_ms": 3_000, "poll_ms": COMMON["poll_ms"], "revoke_timeout_ms": COMMON["revoke_timeout_ms"]}
OPTIONS = {"pxrs.max.batch.ms": "8000"}


class StreamScenario(MixedScenario):
    """A scenario where some applications are streaming queries."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.checkpoint = directory / "checkpoint"

    def start(self, member: str, **more: Any) -> subprocess.Popen[bytes]:
        if member != "S":
            return super().start(member, **more)
        config = {
            "url": self._url, "member": member, "out": str(self._out), "sink": str(self.shown),
            "gates": str(self.gates), "settings": SETTINGS, "options": OPTIONS, "checkpoint": str(self.checkpoint),
        }  # fmt: skip
        environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "tests.acceptance.stream_process", json.dumps(config)]
        process = subprocess.Popen(command, cwd=ROOT, env=environ)
        self.processes.append(process)
        return process

    def unfinished(self) -> set[int]:
        """The batches that stand in Spark's offset log and not in its commit log."""
        planned, done = (
            {int(path.name) for path in (self.checkpoint / log).iterdir() if path.name.isdecimal()}
            for log in ("offsets", "commits")
        )
        return planned - done

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """SIGSTOP of driver, JVM and all that it has started, but not in the middle of a SQLite transaction."""
        jvm = self.applications[name].jvm
        family = [psutil.Process(self.applications[name].process.pid), jvm, *jvm.children(recursive=True)]
        for _ in range(1_000):
            _each(family, psutil.Process.suspend)
            eventually(lambda: all(map(_stands, family)), f"all of {name} to stand still")
            if registry_is_free(self._directory / "orders" / "registry.db"):
                break
            _each(family, psutil.Process.resume)
        try:
            yield
        finally:
            _each(family, psutil.Process.resume)


def _each(family: list[psutil.Process], do: Callable[[psutil.Process], None]) -> None:
    for process in family:
        with suppress(psutil.NoSuchProcess):
            do(process)


def _stands(process: psutil.Process) -> bool:
    return not is_alive(process) or process.status() == psutil.STATUS_STOPPED


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamScenario]:
    scenario = StreamScenario(tmp_path_factory.mktemp("streams"))
    try:
        yield scenario
    finally:
        scenario.close()


def kill_everything(application: Application) -> None:
    """kill -9 of driver, JVM and all that it has started: nobody is left to leave the group."""
    family = application.jvm.children(recursive=True)
    application.kill()
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def test_a_stream_and_a_pipeline_share_a_group(scenario: StreamScenario) -> None:
    scenario.run_only("A", "S")
    scenario.post(400)
    scenario.prove()
    assert Counter(scenario.owners().values()) == {"A": 4, "S": 4}
    engines = {line.member: (line.engine, line.jvm) for line in scenario.queue.group("g").members()}
    assert engines == {
        "A": ("spark", str(scenario.applications["A"].jvm.pid)),
        "S": ("spark-stream", str(scenario.applications["S"].jvm.pid)),
    }


def test_a_stream_whose_jvm_hangs_loses_its_partitions_although_its_member_beats(scenario: StreamScenario) -> None:
    scenario.run_only("A", "S")
    hold = scenario.hold("S", "staged")
    scenario.post(400)
    held = hold.await_held()
    stuck = scenario.applications["S"]
    stuck.jvm.suspend()
    scenario.await_owners("A")
    scenario.await_done()
    states = {line.member: line.state for line in scenario.queue.group("g").members()}
    assert states["S"] == "stalled", "it is alive, and has said so itself"
    checkpoints = scenario.checkpoints()
    hold.release()
    eventually(lambda: scenario.outcomes("S", held), "S's driver to hear what became of its commit")
    assert scenario.outcomes("S", held) == ["refused"] and scenario.checkpoints() == checkpoints
    stuck.jvm.resume()
    scenario.await_owners("A", "S")
    scenario.prove()
    assert scenario.rows_of(held) == [] == scenario.staged(held)


def test_a_stream_stopped_as_a_whole_past_its_lease_has_its_late_batch_refused(scenario: StreamScenario) -> None:
    scenario.run_only("A", "S")
    hold = scenario.hold("S", "staged")
    scenario.post(400)
    held = hold.await_held()
    with scenario.frozen("S"):
        scenario.await_owners("A")
        scenario.await_done()
        checkpoints = scenario.checkpoints()
        assert "S" not in {line.member for line in scenario.queue.group("g").members()}, "it is taken for dead"
        hold.release()
    eventually(lambda: scenario.outcomes("S", held), "S's driver to hear what became of its commit")
    assert scenario.outcomes("S", held) == ["refused"] and scenario.checkpoints() == checkpoints
    scenario.await_owners("A", "S")
    scenario.post(200)
    scenario.prove()
    assert scenario.rows_of(held) == [] == scenario.staged(held)


def test_b74_a_stream_killed_before_its_commit_and_restarted_after_the_others_moved_on(
    scenario: StreamScenario,
) -> None:
    scenario.run_only("A", "S")
    hold = scenario.hold("S", "staged")
    scenario.post(400)
    held = hold.await_held()
    assert scenario.unfinished() == {held["batch"]}, "planned, and not done"
    kill_everything(scenario.lose("S"))
    hold.release()
    scenario.await_owners("A")
    scenario.post(200)
    scenario.await_done()
    assert scenario.rows_of(held) == [], "what was not committed is not seen"
    mark = scenario.mark()
    scenario.run_only("A", "S")
    eventually(lambda: held["batch"] not in scenario.unfinished(), "the old batch to end")
    replayed = [line for line in scenario.since(mark, "working", by="S") if line["batch"] == held["batch"]]
    assert [line["ranges"] for line in replayed] == [[]], "its rows are A's: dropped"
    scenario.prove()
    assert {row.member for row in scenario.rows() if (row.partition, row.offset) in set(places_of(held))} == {"A"}


def test_b74_a_stream_killed_alone_has_the_same_rows_in_its_batch(scenario: StreamScenario) -> None:
    scenario.run_only("S")
    hold = scenario.hold("S", "staged")
    scenario.post(400)
    held = hold.await_held()
    kill_everything(scenario.lose("S"))
    hold.release()
    mark = scenario.mark()
    scenario.run_only("S")
    eventually(lambda: scenario.since(mark, "batch", by="S", batch=held["batch"]), "the batch to be done again")
    [again] = scenario.since(mark, "working", by="S", batch=held["batch"])
    assert sorted(places_of(again)) == sorted(places_of(held)), "same batch id, same rows"
    assert all(new[3] > old[3] for new, old in zip(again["ranges"], held["ranges"], strict=True)), "under new epochs"
    scenario.prove()
    assert scenario.rows_of(held) == []


def test_b78_a_worker_killed_in_its_task_and_the_task_is_tried_again(scenario: StreamScenario) -> None:
    scenario.run_only("S")
    hold, mark = scenario.hold("S", "task"), scenario.mark()
    scenario.post(400)
    worker = hold.await_held()["pid"]
    assert worker in {child.pid for child in scenario.applications["S"].jvm.children(recursive=True)}
    psutil.Process(worker).kill()
    hold.release()
    scenario.prove()
    assert set(scenario.begun(mark).values()) == {1}, "no batch was needed twice: Spark has tried the task again"


def test_b73_two_applications_on_one_checkpoint_directory(scenario: StreamScenario) -> None:
    scenario.run_only("S")
    older = scenario.lose("S")
    scenario.run_only("S")
    assert scenario.applications["S"].process.pid != older.process.pid
    assert older.process.wait(DEADLINE) == 0
    [end] = scenario.lines("ended", pid=older.process.pid)
    assert "member 'S' was replaced by a newer process" in end["error"]
    scenario.post(200)
    scenario.prove()
    eventually(lambda: not is_alive(older.jvm), "its JVM to end")


def test_sigterm_frees_the_partitions_at_once(scenario: StreamScenario) -> None:
    scenario.run_only("S")
    scenario.post(100)
    scenario.await_done()
    mark = scenario.mark()
    scenario.leave("S")
    assert set(scenario.owners().values()) == {None} and scenario.queue.group("g").members() == []
    assert scenario.since(mark, "ended")[0]["error"] is None
    causes = {scenario.queue.group("g").history(partition)[-1].cause for partition in range(8)}
    assert causes == {"release"}, "a clean leave"
