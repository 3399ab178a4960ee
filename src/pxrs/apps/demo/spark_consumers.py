"""The consumers of the demo as Spark applications: each a driver and a JVM of its own, one output for all three."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pxrs.apps.demo import member as demo_member
from pxrs.apps.demo.consumers import MEMBERS, Processes
from pxrs.apps.demo.proof import Handled
from pxrs.io.clock import SystemClock
from pxrs.runtime.views.tables import Table, ranges

if TYPE_CHECKING:
    from pxrs.runtime.views.group import MemberLine

_clock = SystemClock()
_WORD_SECONDS = 5.0
_JVM_SECONDS = 10
"""A JVM ends when the pipe to its driver closes; after this long it is helped."""


class Applications(Processes):
    """Each consumer is a Spark application: a Python driver and its JVM. What they write is one Parquet directory."""

    patience_seconds = 180
    look_seconds = 0.1
    checkpoints = "output is shown by the commit that moves them"
    evidence = "the Parquet files, read with plain pyarrow.dataset"
    verdict = "every message is in the output exactly once, in order per key"

    def __init__(self, directory: str, log: str, registry: str) -> None:
        super().__init__(directory, log, registry)
        self._output = os.path.join(directory, "output")
        self._began = _clock.monotonic()
        self._next_word = _WORD_SECONDS
        self._jvms: dict[str, int] = {}
        self._files: list[str] = []
        self._rows: list[dict[str, Any]] = []

    # ---- starting and ending ----------------------------------------------------------------------------------------

    def command(self, member: str) -> list[str]:
        return [sys.executable, "-m", demo_member.__name__, "spark", *self._places, member, self._output]

    def start(self, member: str) -> None:
        super().start(member)
        if len(self._running) == len(MEMBERS):
            print(f"Starting {len(MEMBERS)} Spark applications at once, each with a JVM of its own:", flush=True)

    def joined(self, members: Sequence[MemberLine]) -> bool:
        for member in members:
            if member.member in MEMBERS and member.member not in self._jvms:
                self._jvms[member.member] = int(member.jvm)
                self._say(f"{member.member} has joined: {member.app}, JVM {member.jvm}")
        missing = [member for member in MEMBERS if member not in self._jvms]
        if missing and _clock.monotonic() - self._began > self._next_word:
            self._say(f"waiting for {', '.join(missing)}")
        return not missing

    def _say(self, text: str) -> None:
        """A line with the time since the start; the next one comes soon enough to show that something happens."""
        seconds = _clock.monotonic() - self._began
        self._next_word = seconds + _WORD_SECONDS
        print(f"  {seconds:4.1f} s  {text}", flush=True)

    def kill(self, member: str) -> str:
        driver = self._running[member].pid
        super().kill(member)
        jvm = self._jvms[member]
        fate = "ended with it" if _ended(jvm, _JVM_SECONDS) else "lived on, and was killed too"
        return f"kill -9 {driver} (the driver of {member}): no goodbye, no flush, no release. Its JVM {jvm} {fate}."

    def stop(self) -> None:
        super().stop()
        for jvm in self._jvms.values():
            _ended(jvm, _JVM_SECONDS)

    # ---- what they wrote --------------------------------------------------------------------------------------------

    def handled(self) -> list[Handled]:
        """Rows in the order of their batches, and within a batch in the order of its file."""
        files = sorted(os.listdir(self._output)) if os.path.isdir(self._output) else []
        if files != self._files:  # files appear and never change
            self._rows, self._files = _read(self._output), files
        rows = sorted(self._rows, key=lambda row: row["batch"])
        return [
            Handled(line=line, **{name: value for name, value in row.items() if name != "batch"})
            for line, row in enumerate(rows)
        ]

    def evidence_table(self) -> Table:
        columns = ["CONSUMER", "JVM", "BATCHES", "MESSAGES", "OF PARTITIONS"]
        return Table(columns, [[member, self._jvms.get(member), *self._share(member)] for member in MEMBERS])

    def _share(self, member: str) -> tuple[int, int, str]:
        rows = [row for row in self._rows if row["member"] == member]
        partitions = sorted({row["partition"] for row in rows})
        return len({row["batch"] for row in rows}), len(rows), ranges(partitions)


def _read(directory: str) -> list[dict[str, Any]]:
    import pyarrow.dataset as ds

    rows: list[dict[str, Any]] = ds.dataset(directory, format="parquet").to_table().to_pylist()
    return rows


def _ended(jvm: int, seconds: float) -> bool:
    """Wait for the end of a JVM whose driver is gone; one that lives on is killed, and the answer is False."""
    deadline = _clock.monotonic() + seconds
    while _is_java(jvm):
        if _clock.monotonic() > deadline:
            with suppress(ProcessLookupError):
                os.kill(jvm, signal.SIGKILL)
            return False
        time.sleep(0.05)
    return True


def _is_java(pid: int) -> bool:
    """Whether this process still runs; an ended one that nobody has waited for has no command line."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as words:
            return b"java" in words.read()
    except OSError:
        return False
