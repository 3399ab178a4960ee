"""work: handlers in processes that are started, killed, paused and reloaded for real."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pxrs as library
from tests.apps.cli.helpers import QUEUE, Pxrs, make_queue
from tests.tools.waiting import DEADLINE, eventually

pytestmark = pytest.mark.processes
HANDLER = """
import os

def handle(message):
    with open("seen", "a") as file:
        file.write(f"{os.getpid()} {message.partition}\\n")
"""
WAITING = """
import os, time

def handle(message):
    open("begun", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.01)
"""


class Work:
    """One ``pxrs work`` in a process of its own, and what it has said so far."""

    def __init__(self, directory: Path, *words: object) -> None:
        self._directory = directory
        self._said = directory / f"said-{time.monotonic_ns()}"
        command = [
            sys.executable,
            "-m",
            "pxrs.apps.cli",
            "work",
            "app:handle",
            QUEUE,
            "-g",
            "billing",
            *map(str, words),
        ]
        patient = {"PXRS_LEASE_MS": "60000", "PXRS_POLL_MS": "60000"}  # nobody is judged dead within a test
        with open(self._said, "wb") as said:
            self.process = subprocess.Popen(command, stderr=said, cwd=directory, env=os.environ | patient)

    @property
    def said(self) -> str:
        return self._said.read_text()

    def hears(self, text: str, times: int = 1) -> None:
        eventually(
            lambda: len(re.findall(text, self.said)) >= times, f"{text!r}, {times} times", said=lambda: self.said
        )

    def pids(self) -> list[int]:
        """Of all processes that were started, in this order."""
        return [int(found) for found in re.findall(r"starts: pid (\d+)", self.said)]

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def work(pxrs: Pxrs, tmp_path: Path) -> Iterator[Callable[..., Work]]:
    make_queue(pxrs, messages=40)
    (tmp_path / "app.py").write_text(HANDLER)
    all_of_them: list[Work] = []

    def start(*words: object) -> Work:
        all_of_them.append(Work(tmp_path, *words))
        return all_of_them[-1]

    yield start
    for one in all_of_them:
        if one.process.poll() is None:
            one.process.kill()  # its processes leave when it is gone
            one.process.wait()


def owners() -> dict[int, tuple[str | None, int]]:
    with library.open(QUEUE, create=False) as queue:
        return {line.partition: (line.owner, line.epoch) for line in queue.group("billing").describe(patient=False)}


def members() -> list[str]:
    with library.open(QUEUE, create=False) as queue:
        return sorted(line.member for line in queue.group("billing").members(patient=False))


def states() -> list[str]:
    with library.open(QUEUE, create=False) as queue:
        return [line.state for line in queue.group("billing").members(patient=False)]


def lag() -> int:
    with library.open(QUEUE, create=False) as queue:
        return queue.group("billing").describe(patient=False).total_lag


def names_of_owners() -> list[str]:
    return sorted({owner or "" for owner, _ in owners().values()})


def test_a_killed_process_starts_again_and_takes_its_own_partitions_back(work: Callable[..., Work]) -> None:
    running = work("--processes", 2, "--name", "shop")
    running.hears("has joined group billing", 2)
    eventually(lambda: names_of_owners() == ["shop-1", "shop-2"], "both own partitions")
    before, (first, second) = owners(), running.pids()
    os.kill(second, signal.SIGKILL)
    running.hears(r"process 2 was ended by SIGKILL; it starts again in 1 s")
    running.hears("process 2 has joined group billing", 2)
    others = [p for p, (owner, _) in before.items() if owner == "shop-1"]
    eventually(lambda: all(owners()[p][1] > before[p][1] for p in before if p not in others), "claimed again")
    after = owners()
    assert {p: owner for p, (owner, _) in after.items()} == {p: owner for p, (owner, _) in before.items()}
    assert {p: after[p] for p in others} == {p: before[p] for p in others}, "nobody else was touched"
    assert running.end() == 0 and members() == [] and lag() == 0
    assert "SIGTERM: 2 processes are asked to leave" in running.said and running.said.count("has left") == 2
    assert not any(is_alive(pid) for pid in (first, *running.pids()))


def test_sigterm_lets_handlers_finish_also_if_the_supervisor_was_stopped(
    work: Callable[..., Work], tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(WAITING)
    running = work()
    eventually((tmp_path / "begun").exists, "a handler that runs")
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT):
        running.process.send_signal(number)
    running.hears("SIGTERM: 1 process is asked to leave")
    eventually(lambda: states() == ["leaving"], "a process that takes nothing more")
    assert running.process.poll() is None and lag() == 40
    (tmp_path / "go").touch()
    assert running.process.wait(DEADLINE) == 0 and members() == []
    assert 36 <= lag() <= 39, "what was at hand in each partition is done and committed, and nothing else was taken"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def handle(message) pass", r"module 'app' cannot be imported: SyntaxError: .*\(app.py, line 1\)"),
        ("async def handle(message): ...", "handler handle is async: it would return before its work is done; use def"),
    ],
    ids=["syntax", "async"],
)
def test_what_cannot_be_a_handler_is_said_once_and_nothing_is_tried_again(
    work: Callable[..., Work], tmp_path: Path, source: str, said: str
) -> None:
    (tmp_path / "app.py").write_text(source)
    running = work("--processes", 4)
    assert running.process.wait(DEADLINE) == 1
    assert len(re.findall(said, running.said)) == 1 and len(running.pids()) == 1
    assert running.said.endswith("pxrs: error: process 1 cannot start, so none is started\n")


def test_reload_starts_again_when_the_source_changes_and_waits_where_it_is_broken(
    work: Callable[..., Work], tmp_path: Path
) -> None:
    running = work("--reload")
    running.hears("has joined group billing")
    (tmp_path / "app.py").write_text("def handle(message) broken")
    running.hears(r"app\.py has changed: all processes start again")
    running.hears("process 1 cannot start; it waits for a change of the source")
    (tmp_path / "app.py").write_text(HANDLER.replace('"seen"', '"seen by the new code"'))
    running.hears("has joined group billing", 2)
    with library.open(QUEUE, create=False) as queue, queue.producer() as producer:
        producer.send("acct-1", b"one more")
    eventually((tmp_path / "seen by the new code").exists, "a message for the new code")
    assert running.end(signal.SIGINT) == 0 and members() == [] and len(running.pids()) == 3


def test_processes_leave_cleanly_when_their_supervisor_is_killed(work: Callable[..., Work]) -> None:
    running = work("--processes", 2)
    running.hears("has joined group billing", 2)
    pids = running.pids()
    running.process.kill()
    eventually(lambda: not any(map(is_alive, pids)), "the end of all processes")
    assert members() == [] and {owner for owner, _ in owners().values()} == {None}


def test_two_under_one_name_do_not_fight_the_newer_one_stays(work: Callable[..., Work]) -> None:
    older = work("--name", "shop")
    older.hears("has joined group billing")
    newer = work("--name", "shop")
    newer.hears("has joined group billing")
    with library.open(QUEUE, create=False) as queue:
        queue.group("billing").pause()  # wakes the older one: it looks at its row
        assert older.process.wait(DEADLINE) == 1
    assert "error: shop-1 runs elsewhere: give each `pxrs work` of a group another --name" in older.said
    assert newer.process.poll() is None and members() == ["shop-1"] and newer.end() == 0


def test_until_end_ends_with_all_done(work: Callable[..., Work], tmp_path: Path) -> None:
    running = work("--processes", 2, "--until-end")
    assert running.process.wait(DEADLINE) == 0, running.said
    assert lag() == 0 and len((tmp_path / "seen").read_text().splitlines()) == 40
    assert len(running.pids()) == 2 and running.said.count("has left; it is not started again") == 2
