"""One life of one process, told apart from every other: its id is used again, its id with its start time is not.

A process counts as dead only where that is proven: its id is gone, or belongs to a process with another start time,
or the machine was started anew since. Age proves nothing, and neither does an id of another PID namespace.
"""

from __future__ import annotations

import os
from functools import cache, lru_cache
from typing import NamedTuple


class ProcessIdentity(NamedTuple):
    """A process: its id, when it started (clock ticks after boot), which boot, and whose count of ids."""

    pid: int
    started: int
    boot: str
    namespace: str

    def __str__(self) -> str:
        return f"process {self.pid} started {self.started} boot {self.boot} namespace {self.namespace}"


@cache
def boot_id() -> str:
    """Which start of this machine it is; "" where the system does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def my_life() -> ProcessIdentity | None:
    """This process; None where the system does not say enough to tell it from others."""
    return _life_of_this_process(os.getpid())


@lru_cache(maxsize=1)  # a forked child has another id, and asks anew
def _life_of_this_process(pid: int) -> ProcessIdentity | None:
    boot = boot_id()
    try:
        _, _, started = _status(pid)
        return ProcessIdentity(pid, started, boot, str(os.stat("/proc/self/ns/pid").st_ino)) if boot else None
    except OSError:
        return None


def is_dead(life: ProcessIdentity, other_machines: bool = False) -> bool:
    """Whether it is proven that this process runs no more. ``other_machines``: another boot may be another machine."""
    here = my_life()
    if here is None:
        return False
    if life.boot != here.boot:
        return not other_machines
    return life.namespace == here.namespace and _has_ended(life)


def _has_ended(life: ProcessIdentity) -> bool:
    try:
        os.kill(life.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is there, and another user's
    try:
        state, threads, started = _status(life.pid)
    except OSError:
        return False  # gone in this moment, or hidden from us: nothing is proven
    return started != life.started or (state in "ZX" and threads <= 1)


def _status(pid: int) -> tuple[str, int, int]:
    """State, number of threads and start time of a process."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The second field is the program's name in brackets, and may hold anything.
        fields = file.read().rpartition(b")")[2].split()
    return fields[0].decode(), int(fields[17]), int(fields[19])
