"""Streaming queries as members of a group, beside a Pipeline: each a separate application with its own JVM.

A is a Pipeline and outlives all. S, T and U are streaming queries, fenced into the same directory of Parquet files;
each keeps its own checkpoint directory of Spark over its restarts. After each story all that was ever sent is proved.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from .harness import DEADLINE, ROOT, eventually
from .spark_harness import COMMON, Application, SparkTown, is_alive, places_of

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.xdist_group("stream-stories")]

STREAMS: dict[str, dict[str, Any]] = {
    "S": {"settings": {"lease_ms": 3_000}},
    # T is soon taken for stuck, and its Python function runs in a worker of its executor.
    "T": {"settings": {"lease_ms": 3_000}, "options": {"pxrs.max.batch.ms": "8000"}, "in_task": True},
}


class StreamTown(SparkTown):
    """A town where some applications are streaming queries."""

    def start(self, member: str, **more: Any) -> subprocess.Popen[bytes]:
        if member not in STREAMS:
            return super().start(member, **more)
        profile = STREAMS[member]
        settings = {name: COMMON[name] for name in ("poll_ms", "revoke_timeout_ms")} | profile["settings"]
        config = {
            "url": self._url, "member": member, "out": str(self._out), "sink": str(self.shown),
            "gates": str(self.gates), "settings": settings, "options": profile.get("options", {}),
            "in_task": profile.get("in_task", False), "checkpoint": str(self.checkpoint(member)), **more,
        }  # fmt: skip
        environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "tests.acceptance.stream_process", json.dumps(config)]
        process = subprocess.Popen(command, cwd=ROOT, env=environ)
        self.processes.append(process)
        return process

    def checkpoint(self, member: str) -> Path:
        return self._directory / f"checkpoint-{member}"

    def unfinished(self, member: str) -> set[int]:
        """The batches that stand in Spark's offset log and not in its commit log."""
        planned, done = (
            {int(path.name) for path in (self.checkpoint(member) / log).iterdir() if path.name.isdecimal()}
            for log in ("offsets", "commits")
        )
        return planned - done

    def prove(self) -> None:
        """A streaming query tells of a claim with its first batch: so each partition gets a message."""
        with self.load():
            eventually(self._every_claim_is_told, "a batch of every owner")
        super().prove()

    def _every_claim_is_told(self) -> bool:
        self._remember_owners()
        return self._claims_are_told() and None not in self.owners().values()


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


def test_b74_a_stream_killed_before_its_commit_and_restarted_after_the_others_moved_on(town: StreamTown) -> None:
    town.crew("A", "S")
    hold = town.hold("S", "staged")
    town.post(400)
    held = hold.await_held()
    assert town.unfinished("S") == {held["batch"]}, "planned, and not done"
    kill_everything(town.lose("S"))
    hold.release()
    town.await_owners("A")
    town.post(200)
    town.await_done()
    assert town.rows_of(held) == [], "what was not committed is not seen"
    mark = town.mark()
    town.crew("A", "S")
    eventually(lambda: held["batch"] not in town.unfinished("S"), "the old batch to end")
    replayed = [line for line in town.since(mark, "working", by="S") if line["batch"] == held["batch"]]
    assert [line["ranges"] for line in replayed] == [[]], "its rows are A's: dropped"
    town.prove()
    assert {row.member for row in town.rows() if (row.partition, row.offset) in set(places_of(held))} == {"A"}
    town.leave("S")


def test_b74_a_stream_killed_alone_has_the_same_rows_in_its_batch(town: StreamTown) -> None:
    town.crew("T")
    hold = town.hold("T", "staged")
    town.post(400)
    held = hold.await_held()
    kill_everything(town.lose("T"))
    hold.release()
    mark = town.mark()
    town.crew("T")
    eventually(lambda: town.since(mark, "batch", by="T", batch=held["batch"]), "the batch to be done again")
    [again] = town.since(mark, "working", by="T", batch=held["batch"])
    assert sorted(places_of(again)) == sorted(places_of(held)), "same batch id, same rows"
    assert all(new[3] > old[3] for new, old in zip(again["ranges"], held["ranges"], strict=True)), "under new epochs"
    town.prove()
    assert town.rows_of(held) == []


def test_b78_a_worker_killed_in_its_task_and_the_task_is_tried_again(town: StreamTown) -> None:
    town.crew("T")
    hold, mark = town.hold("T", "task"), town.mark()
    town.post(400)
    worker = hold.await_held()["pid"]
    assert worker in {child.pid for child in town.applications["T"].jvm.children(recursive=True)}
    psutil.Process(worker).kill()
    hold.release()
    town.prove()
    assert set(town.begun(mark).values()) == {1}, "no batch was needed twice: Spark has tried the task again"


def test_a_stream_whose_jvm_hangs_loses_its_partitions_although_its_member_beats(town: StreamTown) -> None:
    town.crew("A", "T")
    hold = town.hold("T", "staged")
    town.post(400)
    held = hold.await_held()
    stuck = town.applications["T"]
    stuck.jvm.suspend()
    town.await_owners("A")
    town.await_done()
    states = {line.member: line.state for line in town.queue.group("g").members()}
    assert states["T"] == "stalled", "it is alive, and has said so itself"
    checkpoints = town.checkpoints()
    hold.release()
    eventually(lambda: town.outcomes("T", held), "T's driver to hear what became of its commit")
    assert town.outcomes("T", held) == ["refused"] and town.checkpoints() == checkpoints
    stuck.jvm.resume()
    town.await_owners("A", "T")
    town.prove()
    assert town.rows_of(held) == [] == town.staged(held)


def test_b73_two_applications_on_one_checkpoint_directory(town: StreamTown) -> None:
    town.crew("T")
    older = town.lose("T")
    town.post(100)
    town.await_done()
    town.crew("T")
    assert town.applications["T"].process.pid != older.process.pid
    assert older.process.wait(DEADLINE) == 0
    [end] = town.lines("ended", pid=older.process.pid)
    assert "member 'T' was replaced by a newer process" in end["error"]
    town.post(200)
    town.prove()
    eventually(lambda: not is_alive(older.jvm), "its JVM to end")


def test_sigterm_frees_the_partitions_at_once(town: StreamTown) -> None:
    town.crew("A", "T")
    town.prove()
    mark = town.mark()
    town.leave("T")
    town.await_owners("A")
    assert town.since(mark, "forced") == [] and [line.member for line in town.queue.group("g").members()] == ["A"]
    town.prove()
