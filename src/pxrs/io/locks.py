"""File locks: freed by the kernel when their holder dies, and never kept by a forked child."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pxrs.io.clock import SystemClock
from pxrs.io.fork import after_fork

_CLOCK = SystemClock()
# Seconds between two looks at a lock that another holds. They grow slowly: the lock of a busy partition is free only
# for moments, and who looks seldom misses them; it takes half a second to come to the longest.
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.0005, 0.01, 1.02

# The descriptors that are open while something is locked. A child that is forked in that moment must close
# its copies: a lock lives as long as any copy of its descriptor, and would outlive its holder.
_held: set[int] = set()


@after_fork
def _after_fork() -> None:
    for fd in _held:
        os.close(fd)
    _held.clear()


def open_held(path: str, flags: int) -> int:
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

    The kernel would wait for ever, also for a holder that is stopped and never goes on.
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
    """Hold the lock of this file, open; None if another still holds it after so many seconds."""
    fd = open_held(path, flags)
    try:
        yield fd if wait_for_lock(fd, _CLOCK.monotonic() + patience) else None
    finally:
        close_held(fd)  # frees the lock


def close_held(fd: int) -> None:
    _held.discard(fd)
    os.close(fd)
