"""Work on a file log in processes that strace kills, or lies to, at a chosen system call."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

QUERIES = {"newfstatat", "fstat", "lseek", "ioctl", "readlink", "fcntl", "statx", "getcwd"}
"""Calls that neither change what is stored nor take it in: a kill there is one at the next call that does."""

_CALL = re.compile(r" *(\w+)\((.*)\) += (-?\d+|\?)")
_UNFINISHED, _RESUMED = " <unfinished ...>", re.compile(r" *<\.\.\. \w+ resumed>")


def need_strace() -> None:
    """Without strace these tests prove nothing: that is said, and in CI it is a failure."""
    if shutil.which("strace") is None:
        text = "strace is not installed: the log is not tested against kills and errors at single system calls"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)


class Call(NamedTuple):
    """One system call of a trace, with the files behind descriptors named."""

    name: str
    args: str
    result: str


class Ended(NamedTuple):
    code: int
    calls: list[Call]


class Zygote:
    """The test's side of ``strace_child.py``."""

    def __init__(self, process: subprocess.Popen[str], place: Path) -> None:
        self._process = process
        self._trace = place / "trace"
        self._result = place / "result"

    def _ask(self, **request: Any) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def start(self, work: str, gated: bool = False, **args: Any) -> int:
        """Begin some work in a fresh process; returns its id."""
        return self._ask(work=work, gated=gated, args=args)

    def wait(self, pid: int) -> int:
        """The exit code; negative for a signal."""
        return self._ask(wait=pid)

    def run(self, work: str, **args: Any) -> int:
        return self.wait(self.start(work, **args))

    def look(self, queue: Path) -> dict[str, Any]:
        """What a fresh process finds."""
        self._result.unlink(missing_ok=True)
        assert self.run("look", queue=str(queue), result=str(self._result)) == 0
        found: dict[str, Any] = pickle.loads(self._result.read_bytes())
        return found

    def traced(self, options: list[str], work: str, **args: Any) -> Ended:
        """Do some work under strace."""
        pid = self.start(work, gated=True, **args)
        command = ["strace", "-f", "-y", "-s", "0", "-o", str(self._trace), *options, "-p", str(pid)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
            assert strace.stderr is not None
            said = strace.stderr.readline()
            os.kill(pid, signal.SIGUSR1)
            code = self.wait(pid)
        assert "attached" in said, said
        return Ended(code, list(_calls(self._trace.read_text())))


def _calls(trace: str) -> Iterator[Call]:
    """The calls in the order in which they were done. One that another thread interrupts stands in two lines."""
    begun: dict[str, str] = {}
    for line in trace.splitlines():
        pid, _, text = line.partition(" ")
        if text.endswith(_UNFINISHED):
            begun[pid] = text.removesuffix(_UNFINISHED)
            continue
        resumed = _RESUMED.match(text)
        if resumed is not None and pid in begun:
            text = begun.pop(pid) + text[resumed.end() :]
        found = _CALL.match(text)
        if found is not None:
            yield Call(*found.groups())


@contextmanager
def zygote(place: Path) -> Iterator[Zygote]:
    need_strace()
    command = [sys.executable, "-m", "tests.logs.file.strace_child"]
    root = str(Path(__file__).parents[3])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        yield Zygote(process, place)
        assert process.stdin is not None
        process.stdin.close()
