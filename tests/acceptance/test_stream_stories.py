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
from tests.acceptance.spark_harness import COMMON, Application, MixedTown, is_alive, places_of

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.xdist_group("spark-stories")]

# S is soon taken for stuck; its rows pass through a Python function in a worker of its executor.
SETTINGS = {"lease_ms": 3_000, "poll_ms": COMMON["poll_ms"], "revoke_timeout_ms": COMMON["revoke_timeout_ms"]}
OPTIONS = {"pxrs.max.batch.ms": "8000"}


class StreamTown(MixedTown):
    """A town where some applications are streaming queries."""

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
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamTown]:
    town = StreamTown(tmp_path_factory.mktemp("streams"))
    try:
        yield town
    finally:
        town.close()


def kill_everything(application: Application) -> None:
    """kill -9 of driver, JVM and all that it has started: nobody is left to leave the group."""
    family = application.jvm.children(recursive=True)
    application.kill()
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def test_a_stream_and_a_pipeline_share_a_group(town: StreamTown) -> None:
    town.crew("A", "S")
    town.post(400)
    town.prove()
    assert Counter(town.owners().values()) == {"A": 4, "S": 4}
    engines = {line.member: (line.engine, line.jvm) for line in town.queue.group("g").members()}
    assert engines == {
        "A": ("spark", str(town.applications["A"].jvm.pid)),
        "S": ("spark-stream", str(town.applications["S"].jvm.pid)),
    }


def test_a_stream_whose_jvm_hangs_loses_its_partitions_although_its_member_beats(town: StreamTown) -> None:
    town.crew("A", "S")
    hold = town.hold("S", "staged")
    town.post(400)
    held = hold.await_held()
    stuck = town.applications["S"]
    stuck.jvm.suspend()
    town.await_owners("A")
    town.await_done()
    states = {line.member: line.state for line in town.queue.group("g").members()}
    assert states["S"] == "stalled", "it is alive, and has said so itself"
    checkpoints = town.checkpoints()
    hold.release()
    eventually(lambda: town.outcomes("S", held), "S's driver to hear what became of its commit")
    assert town.outcomes("S", held) == ["refused"] and town.checkpoints() == checkpoints
    stuck.jvm.resume()
    town.await_owners("A", "S")
    town.prove()
    assert town.rows_of(held) == [] == town.staged(held)


def test_a_stream_stopped_as_a_whole_past_its_lease_has_its_late_batch_refused(town: StreamTown) -> None:
    town.crew("A", "S")
    hold = town.hold("S", "staged")
    town.post(400)
    held = hold.await_held()
    with town.frozen("S"):
        town.await_owners("A")
        town.await_done()
        checkpoints = town.checkpoints()
        assert "S" not in {line.member for line in town.queue.group("g").members()}, "it is taken for dead"
        hold.release()
    eventually(lambda: town.outcomes("S", held), "S's driver to hear what became of its commit")
    assert town.outcomes("S", held) == ["refused"] and town.checkpoints() == checkpoints
    town.await_owners("A", "S")
    town.post(200)
    town.prove()
    assert town.rows_of(held) == [] == town.staged(held)


def test_b74_a_stream_killed_before_its_commit_and_restarted_after_the_others_moved_on(town: StreamTown) -> None:
    town.crew("A", "S")
    hold = town.hold("S", "staged")
    town.post(400)
    held = hold.await_held()
    assert town.unfinished() == {held["batch"]}, "planned, and not done"
    kill_everything(town.lose("S"))
    hold.release()
    town.await_owners("A")
    town.post(200)
    town.await_done()
    assert town.rows_of(held) == [], "what was not committed is not seen"
    mark = town.mark()
    town.crew("A", "S")
    eventually(lambda: held["batch"] not in town.unfinished(), "the old batch to end")
    replayed = [line for line in town.since(mark, "working", by="S") if line["batch"] == held["batch"]]
    assert [line["ranges"] for line in replayed] == [[]], "its rows are A's: dropped"
    town.prove()
    assert {row.member for row in town.rows() if (row.partition, row.offset) in set(places_of(held))} == {"A"}


def test_b74_a_stream_killed_alone_has_the_same_rows_in_its_batch(town: StreamTown) -> None:
    town.crew("S")
    hold = town.hold("S", "staged")
    town.post(400)
    held = hold.await_held()
    kill_everything(town.lose("S"))
    hold.release()
    mark = town.mark()
    town.crew("S")
    eventually(lambda: town.since(mark, "batch", by="S", batch=held["batch"]), "the batch to be done again")
    [again] = town.since(mark, "working", by="S", batch=held["batch"])
    assert sorted(places_of(again)) == sorted(places_of(held)), "same batch id, same rows"
    assert all(new[3] > old[3] for new, old in zip(again["ranges"], held["ranges"], strict=True)), "under new epochs"
    town.prove()
    assert town.rows_of(held) == []


def test_b78_a_worker_killed_in_its_task_and_the_task_is_tried_again(town: StreamTown) -> None:
    town.crew("S")
    hold, mark = town.hold("S", "task"), town.mark()
    town.post(400)
    worker = hold.await_held()["pid"]
    assert worker in {child.pid for child in town.applications["S"].jvm.children(recursive=True)}
    psutil.Process(worker).kill()
    hold.release()
    town.prove()
    assert set(town.begun(mark).values()) == {1}, "no batch was needed twice: Spark has tried the task again"


def test_b73_two_applications_on_one_checkpoint_directory(town: StreamTown) -> None:
    town.crew("S")
    older = town.lose("S")
    town.crew("S")
    assert town.applications["S"].process.pid != older.process.pid
    assert older.process.wait(DEADLINE) == 0
    [end] = town.lines("ended", pid=older.process.pid)
    assert "member 'S' was replaced by a newer process" in end["error"]
    town.post(200)
    town.prove()
    eventually(lambda: not is_alive(older.jvm), "its JVM to end")


def test_sigterm_frees_the_partitions_at_once(town: StreamTown) -> None:
    town.crew("S")
    town.post(100)
    town.await_done()
    mark = town.mark()
    town.leave("S")
    assert set(town.owners().values()) == {None} and town.queue.group("g").members() == []
    assert town.since(mark, "ended")[0]["error"] is None
    causes = {town.queue.group("g").history(partition)[-1].cause for partition in range(8)}
    assert causes == {"release"}, "a clean leave"
