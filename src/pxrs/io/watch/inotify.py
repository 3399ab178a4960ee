"""Be told when something changes in a directory: one inotify instance and one sleeping thread per process.

The thread blocks in the kernel and costs nothing while nothing happens; threads that wait for a change may listen
beside it (``pxrs.io.watch.listening``). Where inotify is missing, or the user's limit of watches is reached, a thread
compares the directory's entries every 20 ms instead, and says so in a log line. Changes made on another host (a network
file system) are seen only by that second way.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import struct
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from pxrs.errors import NotFound, Unavailable
from pxrs.io.fork import after_fork
from pxrs.io.process_exit import Stage, at_exit
from pxrs.io.watch.polling import POLL_SECONDS, Cancel, NoInotify, Notify, PollingWatcher, call, refusal

logger = logging.getLogger(__name__)

_ACCESS, _MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x1, 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_Q_OVERFLOW, _IGNORED = 0x4000, 0x8000
_ONLY_DIRECTORY, _AND_BEFORE = 0x01000000, 0x20000000
_ENTRIES = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLY_DIRECTORY
_TOUCHED = _ACCESS | _MODIFY | _ATTRIB  # of a single file; to delete it changes its attributes
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_READ, _LARGEST = 8_192, 272  # what does not fit is there for the next read
_ALONE = getattr(select, "EPOLLIN", 0) | getattr(select, "EPOLLEXCLUSIVE", 0)  # of all who wait for it, one is woken
_EVERYONE = -1  # the watch number of the kernel's "events were lost"
_ITSELF = b""  # the name in an event of a file that is watched by itself


class _Subscriber(NamedTuple):
    """Whom to call. ``only``: the one entry of the directory whose modifications matter to it."""

    notify: Notify
    path: str
    home: int
    """The watch of the directory."""
    only: bytes | None

    def hears(self, modified: set[bytes], other: bool) -> bool:
        return other or self.only is None or not modified.isdisjoint((self.only, _ITSELF))


class InotifyWatcher:
    """Watches directories with the kernel's help. ``wakeups`` counts how often it had to look what has changed."""

    def __init__(self) -> None:
        self.wakeups = 0
        self._lock = threading.Lock()
        self._cancelled: deque[tuple[int, object]] = deque()
        self._callbacks: dict[int, dict[object, _Subscriber]] = {}
        self._files: dict[object, int] = {}
        """The watches of single files, for listeners to whom nothing else matters."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._new_instance()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._wake_read, select.EPOLLIN)
        self._epoll.register(self._fd, _ALONE)
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
        token = object()
        with self._holding():
            home = self._add(path, _ENTRIES | _MODIFY | _AND_BEFORE)
            listener = _Subscriber(notify, path, home, None if only is None else os.fsencode(only))
            # The kernel gives the same number for the same directory: the callbacks are the reference count.
            self._callbacks.setdefault(home, {})[token] = listener
            self._aim(home)
        return lambda: self._cancel(home, token)

    def watch_files(self, paths: Sequence[str], notify: Notify) -> Cancel:
        token = object()
        homes: list[int] = []

        def cancel() -> None:
            for home in homes:
                self._cancel(home, token)

        try:
            with self._holding():
                for path in paths:
                    homes.append(self._add(path, _TOUCHED | _AND_BEFORE))
                    self._callbacks.setdefault(homes[-1], {})[token] = _Subscriber(notify, path, homes[-1], None)
        except BaseException:
            cancel()
            raise
        return cancel

    def _add(self, path: str, mask: int) -> int:
        watch = int(self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask))
        if watch < 0:
            raise refusal(path, ctypes.get_errno())
        return watch

    def _aim(self, home: int) -> None:
        """Where one file is all that matters, watch it by itself once it is there: of every modification of another
        the kernel would tell as well, and wake somebody for nothing. The file of that name may be another than before.
        """
        listeners = self._callbacks[home]
        for token, listener in listeners.items():
            if listener.only is not None:
                self._aim_at_file(token, listener)
        needed = _ENTRIES if listeners.keys() <= self._files.keys() else _ENTRIES | _MODIFY
        with suppress(NoInotify, NotFound, Unavailable):
            self._tell_of(next(iter(listeners.values())), needed)

    def _aim_at_file(self, token: object, listener: _Subscriber) -> None:
        now, before = self._find(listener), self._files.get(token)
        if now == before:
            return
        if before is not None:
            self._forget(self._files.pop(token), token)
        if now is not None:
            self._files[token] = now
            self._callbacks.setdefault(now, {})[token] = listener

    def _find(self, listener: _Subscriber) -> int | None:
        try:
            return self._add(os.path.join(listener.path, os.fsdecode(listener.only or b"")), _MODIFY)
        except (NoInotify, NotFound, Unavailable):
            return None

    def _tell_of(self, listener: _Subscriber, mask: int) -> None:
        """Let the kernel tell of this only, from now on."""
        watch = self._add(listener.path, mask | _AND_BEFORE)
        if watch == listener.home:
            self._add(listener.path, mask)
        elif watch not in self._callbacks:  # another directory stands there now, and nobody's
            self._libc.inotify_rm_watch(self._fd, watch)

    def _cancel(self, home: int, token: object) -> None:
        if self._fd < 0:  # closed, or the parent's: in a forked child even the lock cannot be trusted
            return
        self._cancelled.append((home, token))
        self._clear_away()

    @contextmanager
    def _holding(self) -> Iterator[None]:
        with self._lock:
            yield
        self._clear_away()

    def _clear_away(self) -> None:
        """Forget who has cancelled, unless the lock is held: its holder does it then. The holder may be this very
        thread, if the garbage collector has cancelled in the middle of its work.
        """
        while self._cancelled and self._lock.acquire(blocking=False):
            try:
                self._forget_cancelled()
            finally:
                self._lock.release()

    def _forget_cancelled(self) -> None:
        while self._cancelled:
            home, token = self._cancelled.popleft()
            self._forget(home, token)
            if token in self._files:
                self._forget(self._files.pop(token), token)

    def _forget(self, watch: int, token: object) -> None:
        callbacks = self._callbacks.get(watch, {})
        if callbacks.pop(token, None) is not None and not callbacks:
            del self._callbacks[watch]
            self._libc.inotify_rm_watch(self._fd, watch)

    def let_listen(self, epoll: select.epoll) -> None:
        """Let another thread be woken, which must then call ``hear``. The kernel asks in the order they came, and goes
        on to the next where nobody waits: the thread that always does comes last again.
        """
        with self._holding():
            epoll.register(self._fd, _ALONE)
            # Out first, then in: that looks whether there is something to hear. The other way round the kernel may tell
            # the one that goes out, and nobody would hear of it.
            self._epoll.unregister(self._fd)
            self._epoll.register(self._fd, _ALONE)

    def hear(self) -> None:
        """Read what has changed, all of it, and tell those whom it concerns."""
        self.wakeups += 1
        while events := self._read():
            for notify in self._changed(events):
                call(notify)
            if len(events) <= _READ - _LARGEST:  # there was room for one more
                return

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, _READ)
        except BlockingIOError:  # another thread was quicker
            return b""

    def _run(self) -> None:
        while self._wake_read not in dict(self._epoll.poll()):
            self.hear()

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
        with self._holding():
            found = self._hearing(modified, other)
            for watch in gone:
                self._lose(watch)
            for home in self._homes(other):
                self._aim(home)
        return found

    def _homes(self, changed: set[int]) -> set[int]:
        """The directories, of those in which entries came or went, where one file matters to somebody."""
        watches = self._callbacks.keys() if _EVERYONE in changed else changed & self._callbacks.keys()
        return {
            watch
            for watch in watches
            if any(one.only is not None and one.home == watch for one in self._callbacks[watch].values())
        }

    def _lose(self, watch: int) -> None:
        """What was watched is gone. If it was a file, another of its name may come."""
        for token, listener in self._callbacks.pop(watch, {}).items():
            if self._files.pop(token, None) is not None and listener.home in self._callbacks:
                self._aim(listener.home)

    def _hearing(self, modified: dict[int, set[bytes]], other: set[int]) -> list[Notify]:
        if _EVERYONE in other:
            return [one.notify for listeners in self._callbacks.values() for one in listeners.values()]
        return [
            one.notify
            for watch in modified.keys() | other
            for one in self._callbacks.get(watch, {}).values()
            if one.hears(modified.get(watch, set()), watch in other)
        ]

    def end(self) -> threading.Thread:
        """Let the thread end; returns it."""
        os.write(self._wake_write, b"x")
        return self._thread

    def close(self) -> None:
        self.end().join()
        self.close_descriptors()

    def close_descriptors(self) -> None:
        """All that is left to do in a forked child, where the thread does not exist."""
        self._epoll.close()
        for fd in (self._fd, self._wake_read, self._wake_write):
            os.close(fd)
        self._fd = -1


class _ProcessWatches:
    """What this process watches with; made at the first need, and anew in a forked child."""

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
    # The child has the parent's descriptors but not its thread; and the parent's lock may be held for ever.
    global _process
    inherited, _process = _process.watcher, _ProcessWatches()
    if inherited is not None:
        inherited.close_descriptors()


@at_exit(Stage.LOOPS)
def _end() -> list[threading.Thread]:
    return [] if _process.watcher is None else [_process.watcher.end()]


def watch_directory(path: str, notify: Notify, only: str | None = None) -> Cancel:
    """Call ``notify`` after any entry of the directory was modified, created, renamed or deleted. With ``only``, the
    modifications of other entries may be passed over.

    It is called from the watcher's thread, or from one that listens beside it, and must be quick; several changes may
    make one call, and two threads may make one each at the same time. A call that is already under way when the
    returned cancel function runs may still finish after it.
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


def shared_watcher() -> InotifyWatcher:
    """The one of this process; NoInotify if there is none."""
    return _process.inotify()


def wakeups() -> int:
    """How often this process was woken by changes so far; an idle one stays where it is."""
    watcher = _process.watcher
    return 0 if watcher is None else watcher.wakeups
