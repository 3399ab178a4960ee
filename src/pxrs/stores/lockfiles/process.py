"""One life of one process, told apart from every other: its id is used again, its id with its start time is not.

A process counts as dead only where that is proven: its id is gone, or belongs to a process with another start time,
or the machine was started anew since. Age proves nothing, and neither does an id of another PID namespace.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import NamedTuple

from pxrs.io.process import boot_id, status_of


class ProcessIdentity(NamedTuple):
    """A process: its id, when it started (clock ticks after boot), which boot, and whose count of ids."""

    pid: int
    started: int
    boot: str
    namespace: str

    def __str__(self) -> str:
        return f"process {self.pid} started {self.started} boot {self.boot} namespace {self.namespace}"


def my_life() -> ProcessIdentity | None:
    """This process; None where the system does not say enough to tell it from others."""
    return _life_of_this_process(os.getpid())


@lru_cache(maxsize=1)  # a forked child has another id, and asks anew
def _life_of_this_process(pid: int) -> ProcessIdentity | None:
    boot = boot_id()
    try:
        started, namespace = status_of(pid).started, str(os.stat("/proc/self/ns/pid").st_ino)
        return ProcessIdentity(pid, started, boot, namespace) if boot else None
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
        found = status_of(life.pid)
    except OSError:
        return False  # gone in this moment, or hidden from us: nothing is proven
    return found.started != life.started or (found.state in "ZX" and found.threads <= 1)
