"""ThreadConnections to one SQLite file: one for each thread, closed when the thread ends, and none across a fork.

None is ever closed while a thread is inside of it: Python's module would crash. What is still in use when all are to
be closed is closed by the last who uses it, and what is in use when the process ends is not closed at all.

SQLite remembers its file locks per process, in memory that a forked child inherits although the kernel gives the
child none of the locks. A child that opened the file again would trust that memory and skip real locks. So before a
fork every connection is closed, after running calls have ended, and both sides open new ones when they need them.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from typing import ParamSpec, TypeVar
from urllib.parse import quote

from pxrs.errors import Closed, Damaged, PxrsError, Refused, Unavailable, disk_text
from pxrs.io.clock import SystemClock
from pxrs.io.file_system import denied_error, is_read_only, read_only_error
from pxrs.io.fork import guard_fork

PATIENCE_SECONDS = 10.0
"""The time for which a locked database is tried again before the caller gets an error."""

# SQLite's own back-off grows to 100 ms a step: under the load of many processes some starve. Ours is finer and random.
_SQLITE_PATIENCE_MS = 5
_STEP_SECONDS = (0.0005, 0.004)

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
# SQLITE_ERROR is what a missing table or column gives.
_DAMAGED = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR}
# SQLite does not tell a read-only mount from a file that this user may not write.
_UNWRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR}

T = TypeVar("T")
P = ParamSpec("P")


def is_busy(error: sqlite3.Error) -> bool:
    return _primary_code(error) in _BUSY


def patiently(act: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """The answer of ``act``, tried again while another connection has the file locked."""
    try:
        return act(*args, **more)
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise
    return _again(act, *args, **more)


def _again(act: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    clock = SystemClock()
    deadline = clock.monotonic() + PATIENCE_SECONDS
    while True:
        time.sleep(random.uniform(*_STEP_SECONDS))
        try:
            return act(*args, **more)
        except sqlite3.OperationalError as error:
            if not is_busy(error) or clock.monotonic() > deadline:
                raise


def _primary_code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


class _ThreadConnection:
    """A thread's connection. It closes with the thread: nobody else refers to this object."""

    def __init__(self, connection: sqlite3.Connection, generation: int) -> None:
        self.connection = connection
        self.generation = generation
        self.close = weakref.finalize(self, connection.close)
        self.close.atexit = False  # its thread may be inside of it then


class ThreadConnections:
    """All connections of this process to one file, for one user object."""

    def __init__(self, path: str, after_fork: Callable[[], None]) -> None:
        self._path = path
        self._after_fork = after_fork
        self._new_gate()
        self._running = 0
        self._generation = 0
        self._closed = False
        self._forking = False
        self._torn = False
        self._shut = False
        """Whether one of these is so: then a call has to look closer."""
        self._own = threading.local()
        self._held: weakref.WeakSet[_ThreadConnection] = weakref.WeakSet()
        _everywhere.add(self)

    def _new_gate(self) -> None:
        self._lock = threading.Lock()
        self._gate = threading.Condition(self._lock)

    def call(self, work: Callable[[sqlite3.Connection], T], create: bool = False) -> T:
        """Call ``work`` with this thread's connection. A transaction that it leaves open is rolled back."""
        with self._lock:
            if self._shut:
                self._pass_gate()
            self._running += 1
        try:
            connection = self._mine("rwc" if create else "rw")
            try:
                return work(connection)
            finally:
                if connection.in_transaction:
                    connection.rollback()
        except sqlite3.Error as error:
            raise self._told(error) from error
        except UnicodeEncodeError as error:
            raise Refused(f"key {error.object!r} has no UTF-8 form") from None
        finally:
            with self._lock:
                self._running -= 1
                if self._shut:
                    self._passed_out()

    def _told(self, error: sqlite3.Error) -> PxrsError:
        """An error of SQLite as one of ours, which names the file."""
        if _primary_code(error) in _DAMAGED:
            return Damaged(
                f"{self._path} is no database of ours, or a damaged one: {error}. Stop its users, and put it back from "
                "a copy; or move it away with its -wal and -shm, begin anew with `pxrs registry adopt`, and set the "
                "checkpoints with `pxrs group seek`"
            )
        if _primary_code(error) in _UNWRITABLE:
            why = read_only_error(self._path) if is_read_only(self._path) else denied_error(self._path)
            if why is not None:
                return Unavailable(disk_text(why, self._path))
        return Unavailable(f"{self._path} does not answer: {error}")

    def count(self) -> int:
        return sum(held.close.alive for held in self._held)

    def close(self) -> None:
        """Close them all, once the calls that are running have ended; after a while it is left to the last of these."""
        with self._gate:
            self._closed = self._shut = True
            if self._gate.wait_for(lambda: self._running == 0, PATIENCE_SECONDS):
                self._close_all()

    def _passed_out(self) -> None:
        self._gate.notify_all()
        if self._closed and self._running == 0:
            self._close_all()

    def _pass_gate(self) -> None:
        """Wait while a fork is under way; raise if there is nothing to go on with."""
        while self._forking:
            self._gate.wait()
        if self._closed:
            raise Closed(f"{self._path} was closed before this call")
        if self._torn:
            raise Unavailable(f"{self._path}: this process was forked in the middle of a call; open it anew")

    def _mine(self, mode: str) -> sqlite3.Connection:
        held: _ThreadConnection | None = getattr(self._own, "held", None)
        if held is None or held.generation != self._generation:
            held = _ThreadConnection(_connect(self._path, mode), self._generation)
            self._own.held = held
            with self._gate:
                self._held.add(held)
        return held.connection

    def _close_all(self) -> None:
        self._generation += 1
        for held in list(self._held):
            held.close()
        self._held.clear()

    def before_fork(self) -> None:
        """Let running calls end, let no new one begin, and close everything. The gate stays locked over the fork."""
        self._gate.acquire()
        self._forking = self._shut = True
        # Bounded: a signal handler may fork in the very thread whose call is running.
        self._torn = not self._gate.wait_for(lambda: self._running == 0, PATIENCE_SECONDS)
        if not self._torn:
            self._close_all()

    def after_fork_in_parent(self) -> None:
        self._forking = self._torn = False
        self._shut = self._closed
        self._gate.notify_all()
        self._gate.release()

    def after_fork_in_child(self) -> None:
        self._new_gate()
        self._forking = False
        self._shut = self._closed or self._torn
        self._running = 0
        self._after_fork()


def _connect(path: str, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode={mode}",
        uri=True,
        timeout=_SQLITE_PATIENCE_MS / 1000,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        # The default of a build may be NORMAL, with which a power cut may take acknowledged commits back.
        patiently(connection.execute, "PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


_everywhere: weakref.WeakSet[ThreadConnections] = weakref.WeakSet()
_forking: list[ThreadConnections] = []


def _before_fork() -> None:
    _forking.extend(_everywhere)
    for connections in _forking:
        connections.before_fork()


def _after_fork_in_parent() -> None:
    for connections in _forking:
        connections.after_fork_in_parent()
    _forking.clear()


def _after_fork_in_child() -> None:
    for connections in _forking:
        connections.after_fork_in_child()
    _forking.clear()


guard_fork(_before_fork, _after_fork_in_parent, _after_fork_in_child)
