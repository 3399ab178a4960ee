"""The one lock of a directory: held for the moment of a read or a write, freed by the kernel when its holder dies.

The file is never deleted: whoever opened it before a delete would hold another lock than whoever opens it after.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pxrs.errors import Unavailable
from pxrs.io.clock import SystemClock
from pxrs.io.locks import close_held, open_held, wait_for_lock

_CLOCK = SystemClock()


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
                close_held(fd)
        finally:
            threads.release()

    def after_fork(self) -> None:
        """In a forked child: the thread that may hold it is not here."""
        self._threads = threading.Lock()

    def _lock(self, deadline: float) -> int:
        while True:
            fd = self._open()
            try:
                if not wait_for_lock(fd, deadline):
                    raise self._busy("another process")
                if _is_same(fd, self.path):
                    return fd
            except BaseException:
                close_held(fd)
                raise
            close_held(fd)  # the whole directory was emptied meanwhile: this is not the file that others will lock

    def _open(self) -> int:
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(self.path))
        return open_held(self.path, os.O_RDWR | os.O_CREAT)

    def _busy(self, who: str) -> Unavailable:
        return Unavailable(f"{self.path} is held by {who} for more than {self._seconds:g} s; nothing was written")


def _is_same(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
