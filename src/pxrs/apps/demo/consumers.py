"""The consumers of the demo, as processes or as threads: started, killed, and stopped each by its own handle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pxrs.apps.demo import member as demo_member
from pxrs.apps.demo.proof import Handled

if TYPE_CHECKING:
    from pxrs.runtime.consumer.consumer import Consumer
    from pxrs.runtime.queue.queue import Queue
    from pxrs.runtime.views.group import MemberLine
    from pxrs.runtime.views.tables import Table

MEMBERS = ("A", "B", "C")
_STOP_SECONDS = 15


class Consumers(ABC):
    """Consumers A, B and C, and the files in which they write down what they handle."""

    patience_seconds: ClassVar[float] = 120
    look_seconds: ClassVar[float] = 0.05
    checkpoints: ClassVar[str] = "commits follow the handlers at a small distance"
    evidence: ClassVar[str] = "what the consumers wrote down"
    verdict: ClassVar[str] = "every message was handled, in order per key"

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def path(self, member: str, kind: str = "jsonl") -> str:
        return os.path.join(self._directory, f"consumer-{member}.{kind}")

    def handled(self) -> list[Handled]:
        """Everything that all consumers have written down so far."""
        return [call for member in MEMBERS for call in _read(self.path(member))]

    @abstractmethod
    def start(self, member: str) -> None: ...

    @abstractmethod
    def kill(self, member: str) -> str:
        """End a consumer as a crash would; says how."""

    @abstractmethod
    def stop(self) -> None:
        """End all that still run: cleanly, and by force where that takes too long."""

    @abstractmethod
    def ended(self) -> list[str]:
        """The consumers that should run and do not."""

    def complaint(self) -> str:
        """The consumers' own report of trouble."""
        return ""

    def joined(self, members: Sequence[MemberLine]) -> bool:
        """Called again and again with those who have joined, while the story waits; answers whether all have."""
        return set(MEMBERS) <= {member.member for member in members}

    def evidence_table(self) -> Table | None:
        """A table of who wrote what, where there is more to say than how much each has handled."""
        return None


def _read(path: str) -> list[Handled]:
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [Handled(**json.loads(line), line=place) for place, line in enumerate(file) if line.endswith("\n")]


class Processes(Consumers):
    """Each consumer is a Python process of its own."""

    def __init__(self, directory: str, log: str, registry: str) -> None:
        super().__init__(directory)
        self._places = (log, registry)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def command(self, member: str) -> list[str]:
        """The command that starts a consumer."""
        return [sys.executable, "-m", demo_member.__name__, "processes", *self._places, member, self.path(member)]

    def start(self, member: str) -> None:
        with open(self.path(member, "log"), "wb") as log:
            self._running[member] = subprocess.Popen(
                self.command(member), stdin=subprocess.PIPE, stdout=log, stderr=log
            )

    def kill(self, member: str) -> str:
        process = self._running.pop(member)
        process.kill()
        process.wait()
        _close(process)
        return f"kill -9 {process.pid} (process {member}): no goodbye, no flush, no release"

    def stop(self) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _close(process)
        self._running.clear()

    def ended(self) -> list[str]:
        return [member for member, process in self._running.items() if process.poll() is not None]

    def complaint(self) -> str:
        texts = []
        for member in MEMBERS:
            if os.path.exists(self.path(member, "log")):
                with open(self.path(member, "log"), errors="replace") as log:
                    texts += [f"{member}: {line.rstrip()}" for line in log.readlines()[-5:]]
        return "\n".join(texts)


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()


class Threads(Consumers):
    """Runs all consumers in this process, each with threads of its own."""

    def __init__(self, directory: str, queue: Queue) -> None:
        super().__init__(directory)
        self._queue = queue
        self._running: dict[str, Consumer] = {}

    def start(self, member: str) -> None:
        handler = demo_member.recorder(member, self.path(member))
        consumer = self._queue.consumer(demo_member.GROUP, handler, member)
        self._running[member] = consumer.start()

    def kill(self, member: str) -> str:
        self._running.pop(member).kill()
        return f"consumer {member} ends as a crash would: no goodbye, no flush, no release"

    def stop(self) -> None:
        for consumer in self._running.values():
            consumer.stop(_STOP_SECONDS)
        self._running.clear()

    def ended(self) -> list[str]:
        return [member for member, consumer in self._running.items() if consumer.wait(0)]
