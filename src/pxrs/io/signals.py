"""Signals between threads, in a fraction of the time that ``threading.Event`` takes: one of the kernel's locks each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

logger = logging.getLogger(__name__)

SLICE_SECONDS = 0.5
"""The main thread waits so long at a time: see ``wait_long``."""


def wait_long(wait: Callable[[float], object], timeout: float | None = None) -> bool:
    """Call ``wait(seconds)`` until it returns something true, or the time is over.

    Python runs signal handlers in the main thread only, and a process that was stopped (SIGSTOP) may get its signals in
    any other thread: a main thread that waits without limit would never run the handler. So it waits in slices.
    """
    longest = threading.TIMEOUT_MAX
    left = longest if timeout is None else min(longest, max(0.0, timeout))
    part = SLICE_SECONDS if threading.current_thread() is threading.main_thread() else longest
    while left > part:
        if wait(part):
            return True
        left -= part
    return bool(wait(left))


def join(thread: threading.Thread) -> None:
    """Wait until a thread has ended, however long that takes."""

    def ended(seconds: float) -> bool:
        thread.join(seconds)
        return not thread.is_alive()

    wait_long(ended)


def call_each(functions: Iterable[Callable[[], object]]) -> None:
    """Call all who subscribed to something. One that fails keeps neither the others nor the caller from their work."""
    for function in functions:
        try:
            function()
        except Exception:
            logger.exception("a subscriber's callback failed; the others go on")


class Latch:
    """A signal that is given once, and reaches all who wait for it, before and after."""

    __slots__ = ("_is_set", "_lock")

    def __init__(self) -> None:
        self._is_set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set and wait_long(self._acquire, timeout):
            self._lock.release()  # for the next who waits
        return self._is_set

    def _acquire(self, seconds: float) -> bool:
        return self._lock.acquire(timeout=seconds)


class Nudge:
    """A signal that one thread waits for, again and again; any thread gives it. Several in a row count as one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        with suppress(RuntimeError):  # it was given already, and not yet taken
            self._lock.release()

    def clear(self) -> None:
        self._lock.acquire(blocking=False)

    def wait(self, timeout: float | None) -> bool:
        """Take the signal; False if there is none within this many seconds."""
        return self._lock.acquire(timeout=-1 if timeout is None else max(0, timeout))
