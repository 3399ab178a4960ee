"""A process that forks a fresh child for each piece of work on a file log, so that strace can be put on the child.

Importing takes much longer than the work: this process has imported everything, and has opened nothing. It reads
requests, a line of JSON each, from its input. A child waits for SIGUSR1 first: nothing that it does before strace is
on it counts.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pyarrow.parquet  # noqa: F401 - so that no child has to import it

from pxrs.errors import PxrsError
from pxrs.logs.base import OpenOptions, Stamp
from pxrs.logs.batches import times
from pxrs.logs.file.log import FileLog
from pxrs.settings import Settings
from pxrs.testing.logs.hooks import entries, numbered, read_all

_PR_SET_PTRACER, _ANYBODY = 0x59616D61, ctypes.c_ulong(-1)


def opened(queue: str, create: bool = False, partitions: int | None = None, **settings: Any) -> FileLog:
    chosen = Settings.from_mapping({"delete_delay_ms": 0, **settings})
    return FileLog.open(f"file:{queue}", OpenOptions(partitions), chosen, create)


def tell(report: str, line: str) -> None:
    """Add a line to the report, by a system call that the log itself never makes."""
    fd = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.writev(fd, [line.encode() + b"\n"])
    os.close(fd)


# --- the work


def seal(queue: str, report: str = "") -> None:
    """Seal; a refusal is told."""
    try:
        made = opened(queue).seal(0)
    except PxrsError as error:
        tell(report, f"{type(error).__name__}: {error}")
    else:
        if report:
            tell(report, f"sealed {[(chunk.start, chunk.end) for chunk in made]}")


def trim(queue: str, offset: int) -> None:
    opened(queue).trim(0, offset)


def create(queue: str) -> None:
    opened(queue, create=True, partitions=1).append({0: entries(numbered(1))})


def append(queue: str, report: str, first: int, count: int, partitions: int = 1, **settings: Any) -> None:
    """Append batches of two one after the other; tell what was acknowledged, and what was refused."""
    log = opened(queue, **settings)
    for sequence in range(first, first + count):
        batches = {partition: entries(numbered(2, 2 * sequence)) for partition in range(partitions)}
        try:
            given = log.append(batches, {partition: Stamp("p", sequence) for partition in batches})
        except PxrsError as error:
            tell(report, f"{sequence} {type(error).__name__}: {error}")
        else:
            tell(report, f"{sequence} given {given[0]}")


def look(queue: str, result: str) -> None:
    """Everything that a new process sees; one append after it; and what stands in the directory then."""
    log = opened(queue)
    bounds, rows = log.bounds(0), whole_rows(log)
    given = log.append({0: entries([b"after"])}, {0: Stamp("after", 0)})[0]
    log.close()
    log = opened(queue)
    last = read_all(log, 0, given)
    names = sorted(os.listdir(os.path.join(queue, "partition-0")))
    chunks = [(os.path.basename(chunk.path), chunk.start, chunk.end) for chunk in log.chunks(0)]
    found = {"bounds": bounds, "rows": rows, "given": given, "last": last, "names": names, "chunks": chunks}
    with open(result, "wb") as file:
        pickle.dump(found, file)


def whole_rows(log: FileLog) -> list[dict[str, Any]]:
    offset, end = log.bounds(0)
    rows: list[dict[str, Any]] = []
    while offset < end:
        batch = log.read(0, offset)
        assert batch is not None
        rows += batch.to_pylist()
        offset += batch.num_rows
    return rows


WORK: dict[str, Callable[..., None]] = {work.__name__: work for work in (seal, trim, create, append, look)}


# --- the process


def fork(work: str, gated: bool, args: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANYBODY)  # else only a parent may trace, where Yama is on
        if gated:
            signal.sigwait({signal.SIGUSR1})
        WORK[work](**args)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    times(entries(numbered(1)))  # the first conversion imports what Arrow needs for it
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            print(os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1]), flush=True)
        else:
            print(fork(**request), flush=True)


if __name__ == "__main__":
    main()
