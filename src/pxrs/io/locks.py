"""File locks: freed by the kernel when their holder dies, and never kept by a forked child.

A lock lives as long as any copy of its descriptor. A child that is forked while it is held must close its copies, and
no fork may come between the opening of one and its entry here.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pxrs.io.clock import SystemClock
from pxrs.io.fork import guard_fork

_CLOCK = SystemClock()
# Seconds between two looks at a lock that another holds. They grow slowly: the lock of a busy partition is free only
# for moments, and who looks seldom misses them; it takes half a second to come to the longest.
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.0002, 0.01, 1.02

_held: set[int] = set()
_gate = threading.RLock()


def _after_fork_in_child() -> None:
    for fd in _held:
        os.close(fd)
    _held.clear()
    _gate.release()


guard_fork(_gate.acquire, _gate.release, _after_fork_in_child)


def open_held(path: str, flags: int) -> int:
    """Open a file while something is locked: it itself, or what the lock is for."""
    with _gate:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
        _held.add(fd)
        return fd


def try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(fd: int, deadline: float) -> bool:
    """Take the lock; False if another still holds it at the deadline.

    The kernel would wait forever, also for a holder that is stopped and never goes on.
    """
    pause = _FIRST_PAUSE
    while not try_lock(fd):
        if _CLOCK.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(_GROWTH * pause, _LONGEST_PAUSE)
    return True


@contextmanager
def locked_file(path: str, patience: float, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[int | None]:
    """Hold the lock of this file, open; None if another process still holds it after this many seconds."""
    fd = open_held(path, flags)
    try:
        yield fd if wait_for_lock(fd, _CLOCK.monotonic() + patience) else None
    finally:
        close_held(fd)  # frees the lock


def close_held(fd: int) -> None:
    """Close it, which frees its lock. In a forked child it is closed already, and the lock its parent's."""
    with _gate:
        if fd in _held:
            _held.discard(fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_UN)  # not only by closing: a process that is being started may have a copy
            finally:
                os.close(fd)
