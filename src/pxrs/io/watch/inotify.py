"""Watches directories for changes: one inotify instance and one sleeping thread per process.

The thread blocks in the kernel and costs nothing while nothing happens. Where inotify is missing, or the user's limit
of watches is reached, a thread compares the directory's entries every 20 ms instead, and says so in a log line. Changes
made on another host (a network file system) are seen only by that second way.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import select
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from pxrs.errors import NotFound, Unavailable
from pxrs.io.fork import after_fork
from pxrs.io.process_exit import Stage, at_exit
from pxrs.io.signals import call_each

logger = logging.getLogger(__name__)

_ACCESS, _MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x1, 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_Q_OVERFLOW, _IGNORED = 0x4000, 0x8000
_ONLY_DIRECTORY, _AND_BEFORE = 0x01000000, 0x20000000
_ANY = _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLY_DIRECTORY
_TOUCHED = _ACCESS | _MODIFY | _ATTRIB  # of a single file; to delete it changes its attributes
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_READ = 8_192  # what does not fit is there for the next read


Notify = Callable[[], None]
Cancel = Callable[[], None]

POLL_SECONDS = 0.02


class NoInotify(Exception):
    """The kernel has no inotify, or no more watches, for this user."""


def _refusal(path: str, number: int) -> Exception:
    if number in (errno.ENOENT, errno.ENOTDIR):
        return NotFound(f"{path}: no such directory to watch")
    if number in (errno.ENOSPC, errno.ENOMEM):
        return NoInotify("the limit of inotify watches is reached (fs.inotify.max_user_watches)")
    return Unavailable(f"{path} cannot be watched: {os.strerror(number)}")


class _Subscriber(NamedTuple):
    """A function to call. ``only``: the one entry of the directory whose modifications matter to it."""

    notify: Notify
    only: bytes | None = None


class InotifyWatcher:
    """Watches directories with the kernel's help. ``wakeups`` counts how often its thread was woken by a change."""

    def __init__(self) -> None:
        self.wakeups = 0
        self._lock = threading.Lock()
        self._cancelled: deque[tuple[int, object]] = deque()
        self._subscribers: dict[int, dict[object, _Subscriber]] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._new_instance()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC)
        self._poll = select.poll()
        for fd in (self._fd, self._wake_read):
            self._poll.register(fd, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="pxrs-inotify", daemon=True)
        self._thread.start()

    def _new_instance(self) -> int:
        try:
            fd = int(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        except AttributeError:
            raise NoInotify("this system has no inotify") from None
        if fd < 0:
            raise NoInotify(os.strerror(ctypes.get_errno()))
        return fd

    def watch(self, path: str, notify: Notify, only: str | None = None) -> Cancel:
        return self._watch([path], _ANY, _Subscriber(notify, None if only is None else os.fsencode(only)))

    def watch_files(self, paths: Sequence[str], notify: Notify) -> Cancel:
        return self._watch(paths, _TOUCHED, _Subscriber(notify))

    def _watch(self, paths: Sequence[str], mask: int, subscriber: _Subscriber) -> Cancel:
        token = object()
        watches: list[int] = []

        def cancel() -> None:
            for watch in watches:
                self._cancel(watch, token)

        try:
            with self._holding():
                for path in paths:
                    watches.append(self._add(path, mask))
                    # The kernel gives the same number for the same file: the subscribers are the reference count.
                    self._subscribers.setdefault(watches[-1], {})[token] = subscriber
        except BaseException:
            cancel()
            raise
        return cancel

    def _add(self, path: str, mask: int) -> int:
        watch = int(self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask | _AND_BEFORE))
        if watch < 0:
            raise _refusal(path, ctypes.get_errno())
        return watch

    def _cancel(self, watch: int, token: object) -> None:
        if self._fd < 0:  # closed, or the parent's: in a forked child even the lock cannot be trusted
            return
        self._cancelled.append((watch, token))
        self._clear_away()

    @contextmanager
    def _holding(self) -> Iterator[None]:
        with self._lock:
            yield
        self._clear_away()

    def _clear_away(self) -> None:
        """Forget cancelled subscribers, unless the lock is held: its holder does it then. The holder may be this very
        thread, if the garbage collector has cancelled in the middle of its work.
        """
        while self._cancelled and self._lock.acquire(blocking=False):
            try:
                self._forget_cancelled()
            finally:
                self._lock.release()

    def _forget_cancelled(self) -> None:
        while self._cancelled:
            watch, token = self._cancelled.popleft()
            subscribers = self._subscribers.get(watch, {})
            if subscribers.pop(token, None) is not None and not subscribers:
                del self._subscribers[watch]
                self._libc.inotify_rm_watch(self._fd, watch)

    def _run(self) -> None:
        while self._wake_read not in dict(self._poll.poll()):
            self.wakeups += 1
            call_each(self._concerned(os.read(self._fd, _READ)))

    def _concerned(self, events: bytes) -> list[Notify]:
        """The functions that the events concern, each once, however many events there are."""
        found: dict[object, Notify] = {}
        position = 0
        with self._holding():
            while position < len(events):
                watch, mask, _, length = _EVENT.unpack_from(events, position)
                position += _EVENT.size + length
                name = events[position - length : position].rstrip(b"\0") if mask & _MODIFY else None
                for number in self._subscribers if mask & _Q_OVERFLOW else (watch,):
                    for token, one in self._subscribers.get(number, {}).items():
                        if not (name and one.only and name != one.only):
                            found[token] = one.notify
                if mask & _IGNORED:  # what was watched is gone
                    self._subscribers.pop(watch, None)
        return list(found.values())

    def end(self) -> threading.Thread:
        """Let the thread end; returns it."""
        os.write(self._wake_write, b"x")
        return self._thread

    def close(self) -> None:
        self.end().join()
        self.close_descriptors()

    def close_descriptors(self) -> None:
        """All that is left to do in a forked child, where the thread does not exist."""
        for fd in (self._fd, self._wake_read, self._wake_write):
            os.close(fd)
        self._fd = -1


class PollingWatcher:
    """Watches by looking again and again: for systems without inotify, or without a free watch."""

    def __init__(self, seconds: float = POLL_SECONDS) -> None:
        self._seconds = seconds

    def watch(
        self,
        path: str,
        notify: Notify,
        only: str | None = None,  # noqa: ARG002 - it compares all
    ) -> Cancel:
        return self._start(path, notify, _entries(path))

    def watch_files(self, paths: Sequence[str], notify: Notify) -> Cancel:
        """Watch files for reads: these leave no trace, so there might be one at any time."""
        return self._start(paths[-1], notify, None)

    def _start(self, path: str, notify: Notify, first: frozenset[object] | None) -> Cancel:
        stop = threading.Event()
        arguments = (path, notify, stop, first)
        thread = threading.Thread(target=self._run, args=arguments, name="pxrs-polling", daemon=True)
        _polling[thread] = stop
        thread.start()
        return stop.set

    def _run(self, path: str, notify: Notify, stop: threading.Event, seen: frozenset[object] | None) -> None:
        while not stop.wait(self._seconds):
            if seen is None:
                call_each([notify])
                continue
            try:
                now = _entries(path)
            except (NotFound, Unavailable):
                now = frozenset()
            if now != seen:
                seen = now
                call_each([notify])


_polling: weakref.WeakKeyDictionary[threading.Thread, threading.Event] = weakref.WeakKeyDictionary()


def _entries(path: str) -> frozenset[object]:
    found: set[object] = set()
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                status = os.stat(entry.path, follow_symlinks=False)
                found.add((entry.name, status.st_ino, status.st_size, status.st_mtime_ns))
    except OSError as error:
        raise _refusal(path, error.errno or errno.EIO) from error
    return frozenset(found)


class _ProcessWatches:
    """The watchers of this process; made at the first need, and anew in a forked child."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.watcher: InotifyWatcher | None = None
        self.without_inotify = False

    def inotify(self) -> InotifyWatcher:
        with self.lock:
            if self.without_inotify:
                raise NoInotify("no inotify in this process")
            if self.watcher is None:
                try:
                    self.watcher = InotifyWatcher()
                except NoInotify:
                    self.without_inotify = True
                    raise
            return self.watcher


_process = _ProcessWatches()


@after_fork
def _after_fork() -> None:
    # The child has the parent's descriptors but not its thread; and the parent's lock may be held forever.
    global _process
    inherited, _process = _process.watcher, _ProcessWatches()
    if inherited is not None:
        inherited.close_descriptors()


@at_exit(Stage.LOOPS)
def _end() -> list[threading.Thread]:
    for stop in list(_polling.values()):
        stop.set()
    return [*_polling, *([] if _process.watcher is None else [_process.watcher.end()])]


def watch_directory(path: str, notify: Notify, only: str | None = None) -> Cancel:
    """Call ``notify`` after any entry of the directory was modified, created, renamed or deleted. With ``only``, the
    modifications of other entries may be passed over.

    It is called from the watcher's thread, and must be quick; several changes may make one call. A call that is already
    under way when the returned cancel function runs may still finish after it.
    """
    try:
        return _process.inotify().watch(path, notify, only)
    except NoInotify as reason:
        _say_polled(path, reason)
        return PollingWatcher().watch(path, notify, only)


def watch_files(paths: Sequence[str], notify: Notify) -> Cancel:
    """Call ``notify``, as ``watch_directory`` does, after one of these files was read, modified or deleted. Another
    file that comes in its place is not watched.
    """
    try:
        return _process.inotify().watch_files(paths, notify)
    except NoInotify as reason:
        _say_polled(paths[-1], reason)
        return PollingWatcher().watch_files(paths, notify)


def _say_polled(path: str, reason: NoInotify) -> None:
    logger.warning("%s: watched by polling every %d ms: %s", path, POLL_SECONDS * 1000, reason)


def wakeups() -> int:
    """The number of times that changes have woken this process; an idle one stays where it is."""
    watcher = _process.watcher
    return 0 if watcher is None else watcher.wakeups
