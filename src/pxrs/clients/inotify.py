"""Be told when something changes in a directory: one inotify instance and one sleeping thread per process.

The thread blocks in the kernel and costs nothing while nothing happens. Where inotify is missing, or the
user's limit of watches is reached, a thread compares the directory's entries every 20 ms instead, and says so
in a log line. Changes made on another host (a network file system) are seen only by that second way.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import select
import struct
import threading
from collections.abc import Callable
from typing import NamedTuple

from pxrs.errors import NotFound, Unavailable

logger = logging.getLogger(__name__)

Notify = Callable[[], None]
Cancel = Callable[[], None]

POLL_SECONDS = 0.02

_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
_Q_OVERFLOW, _IGNORED = 0x4000, 0x8000
_ONLY_DIRECTORY = 0x01000000
_MASK = _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLY_DIRECTORY
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_READ = 8_192  # what does not fit is there for the next read
_EVERYONE = -1  # the watch number of the kernel's "events were lost"


class _LimitError(Exception):
    """The kernel has no inotify, or no more watches, for this user."""


class _Listener(NamedTuple):
    """Whom to call; ``only``: the one entry whose modifications matter to it."""

    notify: Notify
    only: bytes | None

    def hears(self, modified: set[bytes], other: bool) -> bool:
        return other or self.only is None or self.only in modified


class InotifyWatcher:
    """Watches directories with the kernel's help. ``wakeups`` counts how often its thread ran."""

    def __init__(self) -> None:
        self.wakeups = 0
        self._lock = threading.Lock()
        self._callbacks: dict[int, dict[object, _Listener]] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._new_instance()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="pxrs-inotify", daemon=True)
        self._thread.start()

    def _new_instance(self) -> int:
        try:
            fd = int(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        except AttributeError:
            raise _LimitError("this system has no inotify") from None
        if fd < 0:
            raise _LimitError(os.strerror(ctypes.get_errno()))
        return fd

    def watch(self, path: str, notify: Notify, only: str | None = None) -> Cancel:
        with self._lock:
            watch = int(self._libc.inotify_add_watch(self._fd, os.fsencode(path), _MASK))
            if watch < 0:
                raise _refusal(path, ctypes.get_errno())
            # The kernel gives the same number for the same directory: the callbacks are the reference count.
            token = object()
            entry = None if only is None else os.fsencode(only)
            self._callbacks.setdefault(watch, {})[token] = _Listener(notify, entry)
        return lambda: self._cancel(watch, token)

    def _cancel(self, watch: int, token: object) -> None:
        if self._fd < 0:  # closed, or the parent's: in a forked child even the lock cannot be trusted
            return
        with self._lock:
            callbacks = self._callbacks.get(watch, {})
            if callbacks.pop(token, None) is not None and not callbacks:
                del self._callbacks[watch]
                self._libc.inotify_rm_watch(self._fd, watch)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            self.wakeups += 1
            if self._wake_read in ready:
                return
            for notify in self._changed(os.read(self._fd, _READ)):
                _call(notify)

    def _changed(self, events: bytes) -> list[Notify]:
        """The callbacks of every directory named in the events, each once, however many events there are."""
        modified: dict[int, set[bytes]] = {}
        other: set[int] = set()
        gone: set[int] = set()
        position = 0
        while position < len(events):
            watch, mask, _, name_length = _EVENT.unpack_from(events, position)
            position += _EVENT.size
            if mask & _MODIFY:
                modified.setdefault(watch, set()).add(events[position : position + name_length].rstrip(b"\0"))
            else:
                other.add(_EVERYONE if mask & _Q_OVERFLOW else watch)
            if mask & _IGNORED:
                gone.add(watch)
            position += name_length
        with self._lock:
            found = self._hearing(modified, other)
            for watch in gone:
                self._callbacks.pop(watch, None)
        return found

    def _hearing(self, modified: dict[int, set[bytes]], other: set[int]) -> list[Notify]:
        if _EVERYONE in other:
            return [one.notify for listeners in self._callbacks.values() for one in listeners.values()]
        return [
            one.notify
            for watch in modified.keys() | other
            for one in self._callbacks.get(watch, {}).values()
            if one.hears(modified.get(watch, set()), watch in other)
        ]

    def close(self) -> None:
        os.write(self._wake_write, b"x")
        self._thread.join()
        self.close_descriptors()

    def close_descriptors(self) -> None:
        """All that is left to do in a forked child, where the thread does not exist."""
        for fd in (self._fd, self._wake_read, self._wake_write):
            os.close(fd)
        self._fd = -1


class PollingWatcher:
    """The same by looking again and again: for systems without inotify, or without a free watch."""

    def __init__(self, seconds: float = POLL_SECONDS) -> None:
        self._seconds = seconds

    def watch(self, path: str, notify: Notify, only: str | None = None) -> Cancel:  # noqa: ARG002 - it compares all
        first = _entries(path)
        stop = threading.Event()
        arguments = (path, notify, stop, first)
        threading.Thread(target=self._run, args=arguments, name="pxrs-polling", daemon=True).start()
        return stop.set

    def _run(self, path: str, notify: Notify, stop: threading.Event, seen: frozenset[object]) -> None:
        while not stop.wait(self._seconds):
            try:
                now = _entries(path)
            except (NotFound, Unavailable):
                now = frozenset()
            if now != seen:
                seen = now
                _call(notify)


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


def _refusal(path: str, number: int) -> Exception:
    if number in (errno.ENOENT, errno.ENOTDIR):
        return NotFound(f"{path}: no such directory to watch")
    if number in (errno.ENOSPC, errno.ENOMEM):
        return _LimitError("the limit of inotify watches is reached (fs.inotify.max_user_watches)")
    return Unavailable(f"{path} cannot be watched: {os.strerror(number)}")


def _call(notify: Notify) -> None:
    try:
        notify()
    except Exception:
        logger.exception("a callback for a changed directory failed; the others go on")


class _Process:
    """What this process watches with; made at the first need, and anew in a forked child."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.watcher: InotifyWatcher | None = None
        self.without_inotify = False

    def inotify(self) -> InotifyWatcher:
        with self.lock:
            if self.without_inotify:
                raise _LimitError("no inotify in this process")
            if self.watcher is None:
                try:
                    self.watcher = InotifyWatcher()
                except _LimitError:
                    self.without_inotify = True
                    raise
            return self.watcher


_process = _Process()


def _after_fork() -> None:
    # The child has the parent's descriptors but not its thread; and the parent's lock may be held for ever.
    global _process
    inherited, _process = _process.watcher, _Process()
    if inherited is not None:
        inherited.close_descriptors()


os.register_at_fork(after_in_child=_after_fork)


def watch_directory(path: str, notify: Notify, only: str | None = None) -> Cancel:
    """Call ``notify`` after any entry of the directory was modified, created, renamed or deleted. With ``only``, the
    modifications of other entries may be passed over.

    It is called from the watcher's thread and must be quick; several changes may make one call. A call that
    is already under way when the returned cancel function runs may still finish after it.
    """
    try:
        return _process.inotify().watch(path, notify, only)
    except _LimitError as reason:
        logger.warning("%s: watched by polling every %d ms: %s", path, POLL_SECONDS * 1000, reason)
        return PollingWatcher().watch(path, notify, only)


def wakeups() -> int:
    """How often this process's watcher thread has run so far; an idle one stays where it is."""
    watcher = _process.watcher
    return 0 if watcher is None else watcher.wakeups
