"""A consumer: a member of a group, a thread for each of its partitions, and one loop that talks to the registry.

The loop and the watcher know their consumer only weakly: one that is dropped without ``stop`` ends like a crashed
one, instead of keeping partitions for ever that nobody works on.
"""

from __future__ import annotations

import logging
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pxrs.clock import Clock
from pxrs.errors import Closed, PxrsError, Unavailable, Unexpected
from pxrs.runtime.member import Member
from pxrs.runtime.meter import Meter
from pxrs.runtime.registry import Registry
from pxrs.runtime.worker import Job, Tally
from pxrs.runtime.workforce import Workforce

logger = logging.getLogger("pxrs.consumer")


class Loop:
    """Calls ``step`` until it returns None; ``step`` returns how long to sleep. Anybody may ``wake`` it."""

    def __init__(self, name: str, step: Callable[[], float | None]) -> None:
        self._bell = threading.Event()
        self._step = weakref.WeakMethod(step)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def wake(self) -> None:
        self._bell.set()

    def _run(self) -> None:
        while True:
            self._bell.clear()
            step = self._step()
            pause = step() if step is not None else None
            del step
            if pause is None:
                return
            self._bell.wait(pause)


class Watcher:
    """Waits for the bell, and tells. It holds nobody alive while it waits."""

    def __init__(self, name: str, registry: Registry, seconds: float, rang: Callable[[], bool]) -> None:
        self._registry = registry
        self._seconds = seconds
        self._rang = weakref.WeakMethod(rang)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        mark, pause = 0, threading.Event()
        while self._tell():
            try:
                mark = self._registry.wait(mark, self._seconds)
            except (Unavailable, Closed):
                pause.wait(1.0)

    def _tell(self) -> bool:
        rang = self._rang()
        return rang is not None and rang()


class Consumer:
    """Processes its share of a queue's partitions. Made by ``queue.consumer(...)``."""

    def __init__(
        self,
        registry: Registry,
        member: Member,
        workforce: Workforce,
        meter: Meter,
        clock: Clock,
        loop_name: str,
        running: set[Consumer],
    ) -> None:
        self.member_id = member.me.id
        self._registry = registry
        self._member = member
        self._workforce = workforce
        self.meter = meter
        self._clock = clock
        self._running = running
        self._done = threading.Event()
        self._stopping = False
        self._killed = False
        self._error: PxrsError | None = None
        self._loop = Loop(f"pxrs-{loop_name}", self._round)
        self._watcher = Watcher(f"pxrs-{loop_name}-watch", registry, member.poll_seconds, self._rang)
        workforce.job.wake = self._loop.wake
        workforce.job.fail = _weakly(self._fail)
        workforce.job.stop = _weakly(self._request_stop)
        weakref.finalize(self, Workforce.halt, workforce)

    # ---- what users call -----------------------------------------------------------------------------------------

    def start(self) -> Consumer:
        """Begin, without blocking."""
        if self._loop.thread.ident is not None:
            raise Closed("a consumer starts once; make a new one")
        self._running.add(self)
        self._loop.thread.start()
        self._watcher.thread.start()
        return self

    def run(self) -> None:
        """Consume until stopped: by ``stop``, by SIGTERM or SIGINT (a clean leave), or by an error, which is raised."""
        with self._signals():
            self.start()
            self._done.wait()
        self.check()

    def stop(self, timeout: float | None = None) -> None:
        """Leave cleanly: drain, flush, release; the others see it at once. Blocks until done."""
        self._request_stop()
        if not self._loop.thread.is_alive():  # never started, or left behind by a fork
            self._finish()
        elif not self._is_own_thread() and not self._done.wait(timeout):
            raise Unavailable(f"consumer {self.member_id!r} is still leaving after {timeout} s")

    def kill(self) -> None:
        """End as a crash would, with no flush and no release: for tests and drills."""
        self._killed = True
        self._workforce.halt()
        self._loop.wake()
        if self._loop.thread.ident is not None and threading.current_thread() is not self._loop.thread:
            self._loop.thread.join(10)
        self._workforce.halt()  # again: the loop may have started a worker meanwhile
        self._finish()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the consumer has ended; False if the time was over first."""
        return self._done.wait(timeout)

    def check(self) -> None:
        """Raise the error that has ended this consumer, if one has."""
        if self.error is not None:
            raise self.error

    @property
    def error(self) -> PxrsError | None:
        """What has ended this consumer, if something went wrong."""
        return self._error or self._member.error

    @property
    def state(self) -> str:
        """registering, waiting, replaying, live, stopping, stopped or fenced."""
        if self._member.error is not None:
            return "fenced"
        if self._done.is_set():
            return "stopped"
        if self._stopping:
            return "stopping"
        return self._working_state()

    def _working_state(self) -> str:
        if not self._member.joined:
            return "registering"
        workers = list(self._workforce.workers.values())
        if not workers:
            return "waiting"
        return "live" if all(worker.is_live for worker in workers) else "replaying"

    @property
    def troubles(self) -> dict[int, PxrsError]:
        """Partitions that are held up because their log cannot be read, with the reason."""
        workers = list(self._workforce.workers.items())
        return {number: worker.trouble for number, worker in workers if worker.trouble is not None}

    @property
    def partitions(self) -> list[int]:
        """The partitions in this consumer's hands now."""
        return sorted(self._member.handles)

    @property
    def tally(self) -> Tally:
        """What was handled, retried, skipped and dead-lettered so far."""
        return self._workforce.tally()

    @property
    def beat_age(self) -> float:
        """Seconds since the registry last confirmed a beat."""
        return self._member.beat_age(self._clock.monotonic())

    def __enter__(self) -> Consumer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- the loops -----------------------------------------------------------------------------------------------

    def _round(self) -> float | None:
        if self._killed or self._done.is_set():
            return None
        if self._stopping:
            self._member.leave()
        try:
            wake_at = self._member.round()
        except Exception as error:  # a driver's bug must end this consumer loudly, not leave it half alive
            logger.exception("consumer %s ends", self.member_id)
            named = error if isinstance(error, PxrsError) else Unexpected(f"consumer {self.member_id!r}: {error!r}")
            named.__cause__ = None if named is error else error
            self._fail(named)
            self.kill()
            return None
        if self._member.finished:
            self._finish()
            return None
        return max(0.0, wake_at - self._clock.monotonic())

    def _rang(self) -> bool:
        """Somebody has changed something, or the time is over: look at the rows. False: there is nobody to look."""
        if self._done.is_set():
            return False
        self._member.poll()
        self._loop.wake()
        return True

    def _request_stop(self) -> None:
        self._stopping = True
        self._loop.wake()

    def _fail(self, error: PxrsError) -> None:
        if self._error is None:
            self._error = error
        self._request_stop()

    def _finish(self) -> None:
        self._done.set()
        self._running.discard(self)

    def _is_own_thread(self) -> bool:
        """A handler may ask its own consumer to stop: it must not wait for itself."""
        own = [self._loop.thread, *(w.thread for w in list(self._workforce.workers.values()))]
        return threading.current_thread() in own

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def leave(_number: int, _frame: FrameType | None) -> None:
            self._request_stop()

        before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """The bound method, without keeping its object alive."""
    weak: Any = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        alive = weak()
        if alive is not None:
            alive(*arguments)

    return call


class Subscription:
    """Reads given partitions from given offsets, outside any group: no member, no checkpoints, no registry."""

    def __init__(self, workforce: Workforce, running: set[Subscription]) -> None:
        self._workforce = workforce
        self._running = running
        running.add(self)
        self._done = threading.Event()
        self._error: PxrsError | None = None
        workforce.job.fail = self._fail
        workforce.job.stop = self._end
        workforce.job.wake = lambda: None

    def stop(self) -> None:
        """End when the running handlers have ended."""
        self._end()
        for worker in list(self._workforce.workers.values()):
            if worker.thread is not threading.current_thread():
                worker.thread.join()

    def run(self) -> None:
        """Block until stopped, or until an error, which is raised."""
        self._done.wait()
        if self._error is not None:
            raise self._error

    @property
    def positions(self) -> dict[int, int | None]:
        """The next offset of each partition."""
        return {p: worker.position for p, worker in self._workforce.workers.items()}

    @property
    def tally(self) -> Tally:
        return self._workforce.tally()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _fail(self, error: PxrsError) -> None:
        self._error = self._error or error
        self._end()

    def _end(self) -> None:
        for worker in list(self._workforce.workers.values()):
            worker.drain()
        self._running.discard(self)
        self._done.set()


def no_job_yet(*_: Any) -> None:
    """Stands in a new ``Job`` until its consumer has connected itself."""


__all__ = ["Consumer", "Job", "Subscription", "no_job_yet"]
