"""Real processes on one queue in a directory: started, paused, continued and killed by their ids."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import pxrs
from tests.tools.waiting import DEADLINE as DEADLINE
from tests.tools.waiting import eventually as eventually

ROOT = Path(__file__).resolve().parents[2]
Line = dict[str, Any]


class Scenario:
    """A queue with file log and SQLite registry, its member processes, and the lines that they write."""

    def __init__(self, directory: Path, partitions: int = 8, **settings: Any) -> None:
        self.settings = settings
        self._directory = directory
        self._url = f"file:{directory}/orders"
        self._out = directory / "lines.jsonl"
        self._out.touch()
        self.queue = pxrs.open(self._url, partitions=partitions, settings=pxrs.Settings(**settings))
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, member: str, **more: Any) -> subprocess.Popen[bytes]:
        config = {"url": self._url, "group": "g", "member": member, "out": str(self._out), **more}
        config["settings"] = {**self.settings, **more.get("settings", {})}
        environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "tests.acceptance.member_process", json.dumps(config)]
        process = subprocess.Popen(command, cwd=ROOT, env=environ)
        self.processes.append(process)
        return process

    def send(self, count: int, first: int = 0, keys: int = 40) -> list[str]:
        values = [f"message-{number}" for number in range(first, first + count)]
        with self.queue.producer() as producer:
            for number, value in enumerate(values):
                producer.send(f"key-{number % keys}", value.encode())
        return values

    def lines(self, what: str | None = None, **facts: Any) -> list[Line]:
        """The whole lines so far, in the order in which they were written."""
        text = self._out.read_text()
        found = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        wanted = {**({"what": what} if what else {}), **facts}
        return [line for line in found if wanted.items() <= line.items()]

    def owners(self) -> dict[int, str | None]:
        if "g" not in self.queue.groups():
            return {}
        return {line.partition: line.owner for line in self.queue.group("g").describe()}

    def checkpoints(self) -> dict[int, int]:
        return {line.partition: line.checkpoint for line in self.queue.group("g").describe()}

    def await_owners(self, *names: str) -> None:
        def shared() -> bool:
            owners = list(self.owners().values())
            shares = [owners.count(name) for name in names]
            return sum(shares) == len(owners) > 0 and max(shares) - min(shares) <= 1

        eventually(shared, f"partitions shared by {names}")

    def await_done(self) -> None:
        eventually(lambda: self.queue.group("g").describe().total_lag == 0, "everything handled and committed")

    def stop_outside_a_write(self, process: subprocess.Popen[bytes]) -> None:
        """SIGSTOP, but not in the middle of a SQLite transaction: that would hold the file's lock, and all others."""
        for _ in range(1_000):
            process.send_signal(signal.SIGSTOP)
            eventually(lambda: _is_stopped(process.pid), "every thread of the process to stand still")
            if registry_is_free(self._directory / "orders" / "registry.db"):
                return
            process.send_signal(signal.SIGCONT)
        pytest.fail("the process was in a transaction each time it was stopped")

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(DEADLINE)
        self.queue.close()

    def __enter__(self) -> Scenario:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def values_of(lines: list[Line]) -> list[str]:
    return [line["value"] for line in lines]


def check_order(lines: list[Line]) -> None:
    """In each ownership offsets come one after the other; a later ownership leaves no gap behind an earlier one."""
    partitions = {line["partition"] for line in lines}
    for partition in partitions:
        done = 0
        mine = [line for line in lines if line["partition"] == partition]
        for epoch in sorted({line["epoch"] for line in mine}):
            offsets = [line["offset"] for line in mine if line["epoch"] == epoch]
            assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), (partition, epoch)
            assert offsets[0] <= done, f"partition {partition}: epoch {epoch} skips from {done} to {offsets[0]}"
            done = max(done, offsets[-1] + 1)


def _is_stopped(pid: int) -> bool:
    """A signal takes effect a moment after it was sent, and for each thread."""
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return bool(states) and set(states) == {"T"}


def registry_is_free(path: Path) -> bool:
    """Whether nobody is in the middle of a SQLite transaction."""
    with closing(sqlite3.connect(path, timeout=0.5)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.rollback()
        return True
