"""Real consumers with an SQL sink: killed (-9) at any moment, and stopped past their lease. Each message's row is
there once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pxrs
from pxrs.testing.servers.base import wait_until
from tests.acceptance.harness import registry_is_free
from tests.sinks.sql.support import PLAIN, SqlPlace, elsewhere

pytestmark = [pytest.mark.slow, pytest.mark.processes]
ROOT = Path(__file__).resolve().parents[3]
SETTINGS = {"lease_ms": 3_000, "commit_every": 20, "commit_interval_ms": 50, "deliver_rows": 10}
MESSAGES = 400
KILLS = 4


class Scenario:
    """A queue in a directory, a table in a database, and the consumers between them."""

    def __init__(self, place: SqlPlace, directory: Path, delay: float) -> None:
        self.place = place
        log = f"file:{directory}/log"
        self.config = {
            "log": log,
            "registry": place.registry,
            "database": place.url(),
            "table": place.table,
            "settings": SETTINGS,
            "delay": delay,
        }
        self.queue = pxrs.open(log=log, registry=place.registry, partitions=3, settings=pxrs.Settings(lease_ms=3_000))
        self._processes: list[subprocess.Popen[bytes]] = []

    def send(self, count: int) -> list[str]:
        values = [f"message-{number}" for number in range(count)]
        with self.queue.producer() as producer:
            for number, value in enumerate(values):
                producer.send(f"key-{number % 20}", value.encode())
        return sorted(values)

    def start(self, member: str) -> subprocess.Popen[bytes]:
        config = json.dumps({**self.config, "member": member})
        environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "tests.sinks.sql.member_process", config]
        self._processes.append(subprocess.Popen(command, cwd=ROOT, env=environ))
        return self._processes[-1]

    def shown(self) -> int:
        return len(self.place.rows("value"))

    def stop_outside_a_write(self, process: subprocess.Popen[bytes]) -> None:
        """SIGSTOP, but not in the middle of a transaction: that would hold locks, and all others."""
        for _ in range(1_000):
            process.send_signal(signal.SIGSTOP)
            registry = self.place.registry_elsewhere.removeprefix("sqlite:")
            if (not registry or registry_is_free(Path(registry))) and not self.place.is_in_a_transaction():
                return
            process.send_signal(signal.SIGCONT)
        pytest.fail("the process was in a transaction each time it was stopped")

    def await_more(self, than: int) -> None:
        wait_until(lambda: self.shown() > than, f"more than {than} rows in the table", 90)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(30)
        self.queue.close()


@contextmanager
def scenario(place: SqlPlace, tmp_path: Path, mode: str, **more: Any) -> Iterator[Scenario]:
    place.registry_elsewhere = elsewhere(tmp_path) if mode == "aside" else ""
    place.make(PLAIN)  # nothing in it would keep a repeated row out
    made = Scenario(place, tmp_path, **more)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("mode", ["together", "aside"])
def test_consumers_that_are_killed_at_any_moment_write_each_message_once(
    place: SqlPlace, mode: str, tmp_path: Path
) -> None:
    rng = random.Random(11)
    with scenario(place, tmp_path, mode, delay=0.25) as here:
        sent = here.send(MESSAGES)
        for _ in range(KILLS):
            before = here.shown()
            process = here.start("A")
            here.await_more(before)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0.0, 0.4))  # any moment of its work
            process.kill()
            assert process.wait(30) == -signal.SIGKILL
        assert here.start("A").wait(120) == 0
        assert place.values() == sent
        assert place.staged() == 0


@pytest.mark.parametrize("mode", ["together", "aside"])
def test_b23_a_consumer_that_is_stopped_past_its_lease_writes_nothing_more(
    place: SqlPlace, mode: str, tmp_path: Path
) -> None:
    with scenario(place, tmp_path, mode, delay=0.25) as here:
        sent = here.send(MESSAGES)
        paused = here.start("A")
        here.await_more(0)
        here.stop_outside_a_write(paused)
        before = here.shown()
        assert before < len(sent)
        assert here.start("B").wait(120) == 0
        assert place.values() == sent
        paused.send_signal(signal.SIGCONT)
        paused.wait(60)
        assert place.values() == sent
        assert place.staged() == 0
