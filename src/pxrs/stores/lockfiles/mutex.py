"""The one lock of a directory: held for the moment of a read or a write, freed by the kernel when its holder dies.

The file is never deleted: whoever opened it before a delete would hold another lock than whoever opens it after.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pxrs.errors import Unavailable
from pxrs.io.clock import SystemClock
from pxrs.io.fork import guard_fork

_CLOCK = SystemClock()
# Seconds between two looks at a lock that another process holds. The kernel itself would wait without an end, also
# for a holder that is stopped.
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.0002, 0.01, 1.05

# A lock lives as long as any copy of its descriptor. A child that is forked while it is held must close its copies,
# and no fork may come between the opening of one and its entry here.
_open: set[int] = set()
_gate = threading.RLock()


def _after_fork_in_child() -> None:
    for fd in _open:
        os.close(fd)
    _open.clear()
    _gate.release()


guard_fork(_gate.acquire, _gate.release, _after_fork_in_child)


class Mutex:
    """The lock of one directory. Threads queue here first, so that only processes compete for the file."""

    def __init__(self, path: str, seconds: float) -> None:
        self.path = path
        self._seconds = seconds
        self._threads = threading.Lock()

    @contextmanager
    def held(self) -> Iterator[int]:
        """Hold it; the block gets the open file. Unavailable if another holds it for too long."""
        deadline = _CLOCK.monotonic() + self._seconds
        threads = self._threads
        if not threads.acquire(timeout=self._seconds):
            raise self._busy("another thread")
        try:
            fd = self._lock(deadline)
            try:
                yield fd
            finally:
                _free(fd)
        finally:
            threads.release()

    def after_fork(self) -> None:
        """In a forked child: the thread that may hold it is not here."""
        self._threads = threading.Lock()

    def _lock(self, deadline: float) -> int:
        while True:
            fd = self._open()
            try:
                self._wait(fd, deadline)
                if _is_same(fd, self.path):
                    return fd
            except BaseException:
                _free(fd)
                raise
            _free(fd)  # the whole directory was emptied meanwhile: this is not the file that others will lock

    def _open(self) -> int:
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(self.path))
        with _gate:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            _open.add(fd)
            return fd

    def _wait(self, fd: int, deadline: float) -> None:
        pause = _FIRST_PAUSE
        while not _try(fd):
            if _CLOCK.monotonic() >= deadline:
                raise self._busy("another process")
            time.sleep(pause)
            pause = min(_GROWTH * pause, _LONGEST_PAUSE)

    def _busy(self, who: str) -> Unavailable:
        return Unavailable(f"{self.path} is held by {who} for more than {self._seconds:g} s; nothing was written")


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _free(fd: int) -> None:
    if fd not in _open:
        return  # this is a forked child, and the lock its parent's
    with _gate:
        fcntl.flock(fd, fcntl.LOCK_UN)  # not only by closing: a process that is being started may have a copy
        _open.discard(fd)
        os.close(fd)
