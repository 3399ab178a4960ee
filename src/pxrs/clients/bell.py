"""A bell that processes of one machine ring for each other: a file in a directory of its own, read to ring.

To write would change the times of the file, and the next sync of any other file would have to make that durable too:
a quarter of a commit to SQLite. To read changes nothing, and the kernel tells of it as well.

A ring is a hint that something may be new. It can be lost (the ringer dies first, or the bell was just deleted) and it
can come for nothing.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

from pxrs.clients.inotify import watch_directory
from pxrs.clock import SystemClock
from pxrs.errors import Unavailable

CHECK_SECONDS = 0.1
"""How long a bell that was deleted may be rung for nobody: to see whether it was costs as much as the ring itself."""

_monotonic = SystemClock.monotonic


class Bell:
    """Listeners block in the kernel. Those of the ringing process are woken directly, without the file."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._new_lock()
        self._heard = 0
        self._cancel: Callable[[], None] | None = None
        self._file: int | None = None
        self._checked = 0.0
        self._let_go: Callable[[], object] = lambda: None
        self._closed = False

    def _new_lock(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may close it in a thread that rings it
        self._rung = threading.Condition(self._lock)
        self._waiting = 0

    def listen(self) -> None:
        """From now on rings of other processes are heard too. Nothing happens the second time."""
        with self._rung:
            if self._cancel is None and not self._closed:
                try:
                    os.makedirs(self._directory, exist_ok=True)
                except OSError as error:
                    raise Unavailable(f"{self._directory} cannot be made: {error.strerror}") from error
                hear = weakref.WeakMethod(self._hear)  # to be watched must not keep a bell that nobody has any more
                self._cancel = watch_directory(self._directory, lambda: _call(hear()), reads=True)
                weakref.finalize(self, self._cancel).atexit = False

    @property
    def heard(self) -> int:
        """How many rings came so far. Ask before looking at what the bell is for: ``wait`` needs it."""
        return self._heard

    def ring(self) -> None:
        with self._lock:
            self._heard += 1
            if self._waiting:
                self._rung.notify_all()
            if self._closed:
                return
            try:
                file = self._clapper()
                if not os.pread(file, 1, 0):  # nobody is told of a read that finds nothing
                    os.pwrite(file, b"!", 0)
            except OSError:
                return  # a hint may get lost

    def _clapper(self) -> int:
        """The file to read, kept open: to open it costs more than to ring. One that was deleted rings for nobody."""
        now = _monotonic()
        if now - self._checked >= CHECK_SECONDS:
            self._checked = now
            if self._file is not None and not os.fstat(self._file).st_nlink:
                self._drop_clapper()
        if self._file is None:
            with suppress(FileExistsError):
                os.mkdir(self._directory)
            path = os.path.join(self._directory, "ring")
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            let_go = self._let_go = weakref.finalize(self, os.close, self._file)
            let_go.atexit = False  # threads still ring then, and another file may have got the number
        return self._file

    def _drop_clapper(self) -> None:
        self._file = None
        self._let_go()

    def wait(self, heard: int, timeout: float) -> bool:
        """True as soon as there were more rings than ``heard``; False when closed or after the time-out."""
        with self._rung:
            self._waiting += 1
            try:
                self._rung.wait_for(lambda: self._closed or self._heard != heard, max(0.0, timeout))
            finally:
                self._waiting -= 1
            return not self._closed and self._heard != heard

    def pause(self, seconds: float) -> None:
        """Let that much time pass, unless the bell is closed."""
        with self._rung:
            self._rung.wait_for(lambda: self._closed, max(0.0, seconds))

    def close(self) -> None:
        with self._rung:
            self._closed = True
            cancel, self._cancel = self._cancel, None
            self._drop_clapper()
            self._rung.notify_all()
        if cancel is not None:
            cancel()

    def after_fork(self) -> None:
        """In a forked child: the parent's watch and lock are not ours."""
        self._new_lock()
        self._cancel = None

    def _hear(self) -> None:
        with self._rung:
            self._heard += 1
            self._rung.notify_all()


def _call(hear: Callable[[], None] | None) -> None:
    if hear is not None:
        hear()
