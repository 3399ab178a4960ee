"""Be told when something changes in a directory by looking at it again and again: the way that works everywhere."""

from __future__ import annotations

import errno
import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence

from pxrs.errors import NotFound, Unavailable
from pxrs.io.process_exit import Stage, at_exit

logger = logging.getLogger(__name__)

Notify = Callable[[], None]
Cancel = Callable[[], None]

POLL_SECONDS = 0.02


class NoInotify(Exception):
    """The kernel has no inotify, or no more watches, for this user."""


class PollingWatcher:
    """The same by looking again and again: for systems without inotify, or without a free watch."""

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
        """Who reads a file leaves no trace: there might be one at any time."""
        return self._start(paths[-1], notify, None)

    def _start(self, path: str, notify: Notify, first: frozenset[object] | None) -> Cancel:
        stop = threading.Event()
        arguments = (path, notify, stop, first)
        thread = threading.Thread(target=self._run, args=arguments, name="pxrs-polling", daemon=True)
        _threads[thread] = stop
        thread.start()
        return stop.set

    def _run(self, path: str, notify: Notify, stop: threading.Event, seen: frozenset[object] | None) -> None:
        while not stop.wait(self._seconds):
            if seen is None:
                call(notify)
                continue
            try:
                now = _entries(path)
            except (NotFound, Unavailable):
                now = frozenset()
            if now != seen:
                seen = now
                call(notify)


_threads: weakref.WeakKeyDictionary[threading.Thread, threading.Event] = weakref.WeakKeyDictionary()


@at_exit(Stage.LOOPS)
def _end() -> list[threading.Thread]:
    threads = dict(_threads)
    for stop in threads.values():
        stop.set()
    return list(threads)


def _entries(path: str) -> frozenset[object]:
    found: set[object] = set()
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                status = os.stat(entry.path, follow_symlinks=False)
                found.add((entry.name, status.st_ino, status.st_size, status.st_mtime_ns))
    except OSError as error:
        raise refusal(path, error.errno or errno.EIO) from error
    return frozenset(found)


def refusal(path: str, number: int) -> Exception:
    if number in (errno.ENOENT, errno.ENOTDIR):
        return NotFound(f"{path}: no such directory to watch")
    if number in (errno.ENOSPC, errno.ENOMEM):
        return NoInotify("the limit of inotify watches is reached (fs.inotify.max_user_watches)")
    return Unavailable(f"{path} cannot be watched: {os.strerror(number)}")


def call(notify: Notify) -> None:
    try:
        notify()
    except Exception:
        logger.exception("a callback for a changed directory failed; the others go on")
