"""Identifies processes: the boot id of the machine, and the status of each process."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple


@cache
def boot_id() -> str:
    """The id of this start of the machine; "" where the system does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


class ProcessStatus(NamedTuple):
    """One line of ``/proc/PID/stat``. ``started`` counts clock ticks after boot: a pid comes again, both do not."""

    state: str
    parent: int
    threads: int
    started: int


def status_of(pid: int) -> ProcessStatus:
    """The status of a process; OSError if it is gone, hidden, or the system does not say."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The second field is the program's name in brackets, and may hold anything.
        fields = file.read().rpartition(b")")[2].split()
    return ProcessStatus(fields[0].decode(), int(fields[1]), int(fields[17]), int(fields[19]))
