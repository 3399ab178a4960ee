"""Spark applications on one queue in a directory, each a process with its own JVM: held at gates, paused and killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow.dataset as ds
import pytest

from pxrs.model import Owner, Tenure
from pxrs.testing.faults.checker import check
from tests.acceptance.harness import DEADLINE, ROOT, Line, Scenario, eventually
from tests.acceptance.spark_output import Evidence, Message, Place, Row, check_output, count_rows, read_rows

START_DEADLINE = 180.0
KEYS = 40
COMMON = {
    "poll_ms": 500,
    "drain_ms": 10_000,
    "revoke_timeout_ms": 10_000,
    "target_batch_ms": 5_000,  # below it a held batch, or a busy machine, does not make the next batches tiny
}
PROFILES: dict[str, dict[str, Any]] = {
    # A outlives the others, and is never judged dead by mistake.
    "A": {"lease_ms": 15_000},
    "B": {"lease_ms": 3_000},
    # C reads by tasks of Spark, in the workers of its executor.
    "C": {"lease_ms": 3_000, "fast_rows": 0},
    # D is soon taken for stuck.
    "D": {"lease_ms": 3_000, "progress_limit_ms": 8_000},
}


class Application(NamedTuple):
    """A running application: the process of its driver, and its JVM."""

    name: str
    process: subprocess.Popen[bytes]
    jvm: psutil.Process

    @property
    def owner(self) -> Owner:
        return Owner(self.name, str(self.process.pid))

    def kill(self) -> None:
        """kill -9 of everything at once."""
        self.jvm.kill()
        self.process.kill()
        self.process.wait(DEADLINE)

    def kill_driver(self) -> None:
        """kill -9 of the Python side; the JVM goes by itself, since nobody is left to talk to."""
        self.process.kill()
        self.process.wait(DEADLINE)
        eventually(lambda: not is_alive(self.jvm), f"the JVM of {self.name} to end")


class Hold(NamedTuple):
    """One batch of one application that waits at a gate."""

    scenario: SparkScenario
    member: str
    point: str
    mark: int

    def await_held(self) -> Line:
        def found() -> list[Line]:
            return self.scenario.since(self.mark, "held", by=self.member, point=self.point)

        eventually(found, f"a batch of {self.member} at the gate {self.point}")
        return found()[0]

    def release(self) -> None:
        for path in self.scenario.gates.glob(f"{self.member}.{self.point}*"):
            path.unlink(missing_ok=True)


class SparkScenario(Scenario):
    """A queue, the Spark applications that share it, and the directory of their output."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, partitions=8, **COMMON)
        self.gates = directory / "gates"
        self.gates.mkdir()
        self.shown = directory / "shown"
        self.staging = directory / "_shown.staging"
        self.applications: dict[str, Application] = {}
        self.sent: dict[Place, Message] = {}
        self._jvms: list[psutil.Process] = []
        self._numbers = count()
        self._tenures: dict[int, dict[int, Tenure]] = {p: {} for p in range(8)}

    # ---- who is there ----------------------------------------------------------------------------------------------

    def run_only(self, *names: str) -> None:
        """Exactly these applications run, and share the partitions. Those that run already go on."""
        self._mend()
        for name in [name for name in self.applications if name not in names]:
            self.leave(name)
        missing = {name: self.start(name) for name in names if name not in self.applications}
        for name, process in missing.items():
            self._await_ready(name, process)
        self.await_owners(*names)

    def start(self, member: str, **more: Any) -> subprocess.Popen[bytes]:
        config = {
            "url": self._url, "member": member, "out": str(self._out), "sink": str(self.shown),
            "gates": str(self.gates), "settings": {**COMMON, **PROFILES[member]}, "in_task": member == "C", **more,
        }  # fmt: skip
        environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "tests.acceptance.spark_process", json.dumps(config)]
        process = subprocess.Popen(command, cwd=ROOT, env=environ)
        self.processes.append(process)
        return process

    def _await_ready(self, name: str, process: subprocess.Popen[bytes]) -> None:
        eventually(lambda: self._has_started(process), f"application {name} to start", START_DEADLINE)
        [line] = self.lines("ready", pid=process.pid)
        self._jvms.append(psutil.Process(line["jvm"]))
        self.applications[name] = Application(name, process, self._jvms[-1])

    def _has_started(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.poll() is None, f"an application ended with {process.returncode} before it was ready"
        return bool(self.lines("ready", pid=process.pid))

    def leave(self, name: str) -> None:
        """SIGTERM: a clean leave."""
        application = self.applications.pop(name)
        application.process.terminate()
        assert application.process.wait(DEADLINE) == 0

    def lose(self, name: str) -> Application:
        """This application is about to be killed by the test."""
        return self.applications.pop(name)

    def _mend(self) -> None:
        """Whatever another story has left behind: nobody is held, nobody is stopped, the dead are forgotten."""
        for path in self.gates.iterdir():
            path.unlink(missing_ok=True)
        for name, application in list(self.applications.items()):
            if application.process.poll() is not None or not is_alive(application.jvm):
                _end(self.applications.pop(name))
                continue
            application.jvm.resume()
            psutil.Process(application.process.pid).resume()

    def await_owners(self, *names: str) -> None:
        super().await_owners(*names)
        self._remember_owners()

    def _remember_owners(self) -> None:
        """A row remembers its last eight owners; this remembers all."""
        for partition, tenures in self._tenures.items():
            tenures |= {tenure.epoch: tenure for tenure in self.queue.group("g").history(partition)}

    # ---- what happens ----------------------------------------------------------------------------------------------

    def hold(self, member: str, point: str) -> Hold:
        """The next batch of this application that comes to this gate waits there."""
        mark = self.mark()
        (self.gates / f"{member}.{point}").touch()
        return Hold(self, member, point, mark)

    def post(self, messages: int) -> None:
        """Send so many messages over all keys, and write down what is acknowledged."""
        with self.queue.producer() as producer:
            numbers = [next(self._numbers) for _ in range(messages)]
            sent = [Message(f"key-{number % KEYS}".encode(), str(number).encode()) for number in numbers]
            receipts = [producer.send(*message) for message in sent]
            self.sent |= {receipt.result(): message for receipt, message in zip(receipts, sent, strict=True)}

    @contextmanager
    def load(self) -> Iterator[None]:
        """Messages come all the time."""
        enough = threading.Event()

        def send() -> None:
            while not enough.wait(0.1):
                self.post(KEYS)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            yield
        finally:
            enough.set()
            sender.join()

    def mark(self) -> int:
        """This moment, for ``since``."""
        return len(self.lines())

    def since(self, mark: int, what: str, **facts: Any) -> list[Line]:
        wanted = {"what": what, **facts}
        return [line for line in self.lines()[mark:] if wanted.items() <= line.items()]

    def begun(self, mark: int) -> Counter[Place]:
        """How often each message was in a batch that began since."""
        return Counter(place for line in self.since(mark, "working") for place in places_of(line))

    def outcomes(self, member: str, held: Line) -> list[str]:
        """What became of the batch that was held."""
        return [line["outcome"] for line in self.lines("batch", by=member, pid=held["pid"], batch=held["batch"])]

    # ---- what is seen ----------------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        return read_rows(self.shown)

    def rows_of(self, held: Line) -> list[Row]:
        """The visible rows that were written by the batch that was held, and not by another with the same messages."""
        where = (ds.field("pid") == held["pid"]) & (ds.field("batch") == held["batch"])
        return read_rows(self.shown, where)

    def staged(self, held: Line) -> list[Path]:
        """What the staging directory has of the batch that was held: its plan and its data."""
        return [path for path in self.staging.rglob("*") if held["name"] in path.name]

    def prove(self) -> None:
        """After a story: everything is handled, by whom it should be, and each message is seen once, in order."""
        self.await_done()
        eventually(lambda: count_rows(self.shown) >= len(self.sent), "all that is committed to be published")
        rows, lines = self._collect()
        check_output(rows, self.sent)
        live = [application.owner for application in self.applications.values()]
        assert check(Evidence(self.sent, rows, self._tenures, lines).events(live)) == []
        self._check_processes()

    def _collect(self) -> tuple[list[Row], list[Line]]:
        """Rows, owners and lines of one moment: if a partition moves meanwhile, look again."""
        for _ in range(10):
            self.await_owners(*self.applications)
            eventually(self._claims_are_told, "every owner has written down its claim")
            before = {partition: max(tenures) for partition, tenures in self._tenures.items()}
            rows, lines = self.rows(), self.lines()
            self._remember_owners()
            if before == {partition: max(tenures) for partition, tenures in self._tenures.items()}:
                return rows, lines
        pytest.fail("the partitions do not come to rest")

    def _claims_are_told(self) -> bool:
        told = {(line["partition"], line["epoch"]) for line in self.lines("claimed")}
        return {(partition, max(tenures)) for partition, tenures in self._tenures.items()} <= told

    def _check_processes(self) -> None:
        """Every application was a process with a JVM that no other had."""
        ready = {line["pid"]: line["jvm"] for line in self.lines("ready")}
        assert len({*ready, *ready.values()}) == 2 * len(self.lines("ready"))
        assert {(line["pid"], line["jvm"]) for line in self.lines("batch")} <= set(ready.items())

    def close(self) -> None:
        for path in self.gates.iterdir():
            path.unlink(missing_ok=True)
        for jvm in self._jvms:
            with suppress(psutil.NoSuchProcess):
                jvm.kill()
        super().close()


class MixedScenario(SparkScenario):
    """A scenario where some applications are streaming queries."""

    def prove(self) -> None:
        """A streaming query tells of a claim with its first batch: so each partition gets a message."""
        with self.load():
            eventually(self._every_claim_is_told, "a batch of every owner")
        super().prove()

    def _every_claim_is_told(self) -> bool:
        self._remember_owners()
        return self._claims_are_told() and None not in self.owners().values()


def places_of(line: Line) -> list[Place]:
    """The messages of the batch that a line is about."""
    return [(partition, offset) for partition, start, end, _ in line["ranges"] for offset in range(start, end)]


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _end(application: Application) -> None:
    with suppress(psutil.NoSuchProcess):
        application.jvm.kill()
    application.process.kill()
    application.process.wait(DEADLINE)
