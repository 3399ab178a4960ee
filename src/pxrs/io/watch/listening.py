"""A thread that waits for a change in a directory, and hears of it from the kernel itself.

The watcher's thread hears everything and wakes whom it concerns. For a message that comes to an idle consumer these are
two changes of thread, and each takes longer than to read the message. So a thread that waits does so where the watcher
does: of all who wait there the kernel wakes one, in the order they came, and the watcher's own thread comes last.
Whoever is woken tells all whom it concerns, itself among them.
"""

from __future__ import annotations

import os
import select
import weakref

from pxrs.io.clock import SystemClock
from pxrs.io.fork import after_fork
from pxrs.io.signals import Nudge
from pxrs.io.watch.inotify import InotifyWatcher, shared_watcher
from pxrs.io.watch.polling import NoInotify

LISTENERS = 16
"""So many of a process listen at a time: each has two file descriptors."""

_MOST_SECONDS = 3_600.0  # the kernel counts in milliseconds, and not very far
_CLOCK = SystemClock()
_listeners: weakref.WeakSet[ListeningNudge] = weakref.WeakSet()


def listening_nudge() -> Nudge:
    """A nudge whose waiting thread listens for changes, if there is room for one more; else an ordinary one."""
    if len(_listeners) >= LISTENERS:
        return Nudge()
    try:
        return ListeningNudge(shared_watcher())
    except (NoInotify, OSError):  # such as: no more file descriptors
        return Nudge()


class ListeningNudge(Nudge):
    """Does the watcher's work while it waits. Its descriptors live as long as it does: whoever sets it holds it."""

    def __init__(self, watcher: InotifyWatcher) -> None:
        super().__init__()
        self._watcher = watcher
        self._is_asleep = False
        self._epoll = select.epoll()
        self._alarm = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Not at the end of the process, when consumers are still told to stop.
        weakref.finalize(self, os.close, self._alarm).atexit = False
        self._epoll.register(self._alarm, select.EPOLLIN)
        watcher.let_listen(self._epoll)
        _listeners.add(self)

    def set(self) -> None:
        super().set()
        if self._is_asleep:
            os.eventfd_write(self._alarm, 1)

    def wait(self, timeout: float | None) -> bool:
        ends = None if timeout is None else _CLOCK.monotonic() + timeout
        while not self._lock.acquire(blocking=False):
            left = None if ends is None else ends - _CLOCK.monotonic()
            if left is not None and left <= 0:
                return False
            self._sleep(left)
        return True

    def _sleep(self, seconds: float | None) -> None:
        """Until it is set, or something has changed somewhere, or the time is over."""
        self._is_asleep = True
        # Whoever sets it looks whether it sleeps after that, and here it is the other way round: one of both sees it.
        ready = self._epoll.poll(_bounded(seconds)) if self._lock.locked() else []
        self._is_asleep = False
        for descriptor, _ in ready:
            if descriptor == self._alarm:
                os.eventfd_read(self._alarm)
            else:
                self._watcher.hear()

    def leave_to_parent(self) -> None:
        """In a forked child: the thread that sleeps is the parent's."""
        self._is_asleep = False


def _bounded(seconds: float | None) -> float | None:
    return None if seconds is None else min(seconds, _MOST_SECONDS)


@after_fork
def _after_fork() -> None:
    for nudge in list(_listeners):
        nudge.leave_to_parent()
    _listeners.clear()
