"""Whether a member can read its log: one that reaches the registry and not the log must not keep its partitions."""

from __future__ import annotations

import threading
import weakref
from math import inf

from pxrs.io.clock import Clock
from pxrs.io.fork import after_fork
from pxrs.io.process_exit import Stage, at_exit
from pxrs.logs.base import Log
from pxrs.runtime.failures.parking import PARKED_SECONDS, pause_after
from pxrs.settings import Settings


class Blindness:
    """Since when the log has not answered. Who could not read for too long counts as blind for a while longer.

    After an outage for everybody the first one that can read again must not take what the others get back in a moment.
    """

    def __init__(self, clock: Clock, settings: Settings) -> None:
        self._clock = clock
        self._limit = settings.progress_limit_ms / 1000
        self._grace = PARKED_SECONDS + settings.lease_ms / 1000
        self._since: float | None = None
        self._counts_until = -inf
        self.sees_nothing = False
        """The state at this moment."""

    def saw(self, answers: bool) -> None:
        """Whether the log has answered just now."""
        now = self._clock.monotonic()
        if answers and self.is_lost(now):
            self._counts_until = now + self._grace
        self._since = None if answers else (now if self._since is None else self._since)
        self.sees_nothing = not answers

    @property
    def is_blind(self) -> bool:
        """The state that the other members shall know."""
        return self.sees_nothing or self._clock.monotonic() < self._counts_until

    def is_lost(self, now: float) -> bool:
        """Whether the log has not answered for longer than the progress limit."""
        since = self._since
        return since is not None and now - since > self._limit


class LogReachability:
    """Keeps what the reads of one member have shown. While they fail, a thread looks whether the log answers again.

    Nobody reads for a member that holds no partition; ``look`` does, so that a member which could not read takes none.
    """

    def __init__(self, log: Log, clock: Clock, settings: Settings) -> None:
        self.blindness = Blindness(clock, settings)
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._looker: threading.Thread | None = None
        self._looked_at = clock.monotonic()
        weakref.finalize(self, self._ended.set).atexit = False
        _all.add(self)

    def worked(self) -> None:
        """A read had an answer, after one that had none."""
        self.blindness.saw(True)

    def failed(self) -> None:
        """Note that a read had no answer. From now on the log is looked at until it answers."""
        self.blindness.saw(False)
        self._start()

    def look(self, every: float) -> None:
        """Look at the log in a thread of its own, unless that was done not long ago."""
        if self._clock.monotonic() - self._looked_at >= every:
            self._start()

    def end(self) -> list[threading.Thread]:
        """Stop looking; returns the thread that ends by this, if there is one."""
        self._ended.set()
        return [] if self._looker is None else [self._looker]

    def _start(self) -> None:
        with self._lock:
            if (self._looker is not None and self._looker.is_alive()) or self._ended.is_set():
                return
            self._looked_at = self._clock.monotonic()
            arguments = (weakref.ref(self), self._log, self._ended)
            self._looker = threading.Thread(target=_look, args=arguments, name="pxrs-sight", daemon=True)
            self._looker.start()


_all: weakref.WeakSet[LogReachability] = weakref.WeakSet()
after_fork(_all.clear)  # they are the parent's, and a thread of it may have held their locks


@at_exit(Stage.THREADS)
def _end_threads() -> list[threading.Thread]:
    return [thread for sight in list(_all) for thread in sight.end()]


def _look(sight: weakref.ref[LogReachability], log: Log, ended: threading.Event) -> None:
    """Look until the log answers, or nobody asks any more. Only this thread waits for a dead log."""
    tries = 0
    while not ended.is_set() and not _has_answered(sight, log):
        tries += 1
        ended.wait(pause_after(tries))


def _has_answered(sight: weakref.ref[LogReachability], log: Log) -> bool:
    try:
        log.bounds(0)
        works = True
    except Exception:
        works = False
    told = sight()
    if told is not None:
        told.blindness.saw(works)
    return works or told is None
