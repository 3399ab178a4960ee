"""File bells wake processes of one machine: each bell is a file in a directory of its own, and reading it is the ring.

To write would change the times of the file, and the next sync of any other file would have to make that durable too:
a quarter of a commit to SQLite. To read changes nothing, and the kernel tells of it as well.

Each prefix of keys that somebody waits for has a bell of its own. A process that has changed rows rings only the
bells of the beginnings of their keys, and where nobody ever waited there is no file to read. A ring is a hint that
something may be new. It can be lost (the ringer dies first, or the bell was just deleted) and it can come for nothing.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache

import xxhash

from pxrs.errors import Closed, NotFound, Unavailable
from pxrs.io.clock import SystemClock
from pxrs.io.watch.inotify import watch_files

EVERYTHING = "ring"
"""The one bell of versions up to 0.5.1, which read it after every change and listen to every bell of the directory."""

_BELLS = 0xFFFF
"""The most bell files, however many groups come and go: two prefixes with one bell wake each other's listeners."""


_LOOK_EVERY_SECONDS = 0.005
"""The least time between two looks of a waiter, however often it is woken."""
_now = SystemClock().monotonic


class Bell:
    """The bell of one prefix, for the threads that wait for it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._rung = threading.Condition(threading.RLock())  # the garbage collector may close it in a waiting thread
        self._heard = 0
        self._closed = False
        self._file: tuple[int, int, int] | None = None
        self._deafen: Callable[[], object] = lambda: None

    def listen(self) -> None:
        """Listen to other processes from now on, also if the file was deleted since the last call."""
        with self._rung:
            if self._closed or (self._file is not None and self._file == _identity(self.path)):
                return
            self._deafen()
            everything = os.path.join(os.path.dirname(self.path), EVERYTHING)
            try:
                for path in (everything, self.path):
                    _make(path)
                hear = weakref.WeakMethod(self.hear)  # to be watched must not keep a bell that nobody has any more
                cancel = watch_files((everything, self.path), lambda: _call(hear()))
            except (OSError, NotFound) as error:
                raise Unavailable(f"{self.path} cannot be watched: {error}") from error
            self._file = _identity(self.path)
            self._deafen = deafen = weakref.finalize(self, cancel)
            deafen.atexit = False

    @property
    def heard(self) -> int:
        """The number of rings so far. Read it before looking at the rows: ``wait`` needs it."""
        return self._heard

    def hear(self) -> None:
        with self._rung:
            self._heard += 1
            self._rung.notify_all()

    def wait(self, heard: int, timeout: float) -> bool:
        """Wait until there are more rings than ``heard``; False when closed or after the time-out."""
        with self._rung:
            self._rung.wait_for(lambda: self._closed or self._heard != heard, max(0.0, timeout))
            return not self._closed and self._heard != heard

    def pause(self, seconds: float) -> None:
        """Let this much time pass, unless the bell is closed."""
        with self._rung:
            self._rung.wait_for(lambda: self._closed, max(0.0, seconds))

    def close(self) -> None:
        with self._rung:
            self._closed = True
            self._rung.notify_all()
        self._deafen()

    def leave_to_parent(self) -> None:
        """In a forked child: what is watched is watched by the parent."""
        if isinstance(self._deafen, weakref.finalize):
            self._deafen.detach()


class Bells:
    """All bells of one store. Threads of the ringing process are woken directly, without the files."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._bells: dict[str, Bell] = {}
        self._closed = False

    def listening(self, prefix: str) -> Bell:
        """The bell for keys that begin with this prefix. From now on it listens to other processes."""
        path = paths_of(self._directory, prefix)[-1]
        with self._lock:
            bell = self._bells.get(path) or self._bells.setdefault(path, Bell(path))
            if self._closed:
                bell.close()
        bell.listen()
        return bell

    def wait(self, prefix: str, after: int, timeout: float, look: Callable[[], int]) -> int:
        """The mark that ``look`` finds, as soon as it is another one than ``after``, or after the time-out."""
        deadline = _now() + timeout
        mark: int | None = None
        while True:
            bell = self.listening(prefix)
            heard = bell.heard  # before the look: a ring during it ends the wait that follows
            try:
                mark = look()
            except Closed:  # closed while waiting: the wait ends, with the mark it has
                if mark is None:
                    raise
                return mark
            looked = _now()
            if mark != after or not bell.wait(heard, deadline - looked):
                return mark
            bell.pause(looked + _LOOK_EVERY_SECONDS - _now())

    def ring(self, keys: Iterable[str]) -> None:
        """Wake all who wait for a prefix of one of these keys."""
        paths = {path for parent in {_parent(key) for key in keys} for path in paths_of(self._directory, parent)}
        for path in paths:
            bell = self._bells.get(path)
            if bell is not None:
                bell.hear()
            if not self._closed and os.access(path, os.F_OK):
                _strike(path)

    def ring_all(self) -> None:
        """Wake all who wait for anything, in all processes."""
        self.ring_here()
        with suppress(OSError):
            for name in os.listdir(self._directory):
                _strike(os.path.join(self._directory, name))

    def ring_here(self) -> None:
        """Wake all who wait for anything, in this process."""
        for bell in list(self._bells.values()):
            bell.hear()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            bells = list(self._bells.values())
        for bell in bells:
            bell.close()

    def after_fork(self) -> None:
        """In a forked child: locks, watches and those who wait are the parent's."""
        self._lock = threading.Lock()
        for bell in self._bells.values():
            bell.leave_to_parent()
        self._bells = {}


@lru_cache(4_096)
def paths_of(directory: str, prefix: str) -> tuple[str, ...]:
    """The files of the bells to ring for a key that begins so; the last is the one to listen to."""
    stem = _parent(prefix)
    beginnings = [stem[: place + 1] for place, letter in enumerate(stem) if letter == "/"]
    return tuple(os.path.join(directory, _name(beginning)) for beginning in ("", *beginnings))


def _parent(key: str) -> str:
    return key[: key.rfind("/") + 1]


def _name(prefix: str) -> str:
    return f"{xxhash.xxh3_64_intdigest(prefix.encode(errors='surrogatepass')) & _BELLS:04x}"


def _make(path: str) -> None:
    """Make a bell file with one byte: inotify does not report a read that finds nothing."""
    with suppress(FileExistsError):
        os.mkdir(os.path.dirname(path))
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if not os.fstat(file).st_size:
            os.pwrite(file, b"!", 0)
    finally:
        os.close(file)


def _strike(path: str) -> None:
    with suppress(OSError):  # a hint may get lost
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.pread(file, 1, 0)
        finally:
            os.close(file)


def _identity(path: str) -> tuple[int, int, int] | None:
    """The identity of a file that is not held open: a file that replaces it may have the same inode number."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _call(hear: Callable[[], None] | None) -> None:
    if hear is not None:
        hear()
