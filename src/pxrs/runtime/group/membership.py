"""Taking part in a group: one loop that talks to the registry, one watcher that wakes it, and the way out.

It is below every engine: the consumer with its threads, the pipeline with its batches. Loop and watcher know it
only weakly: a membership that is dropped without ``stop`` ends like a crashed one, instead of keeping partitions for
ever that nobody works on.
"""

from __future__ import annotations

import logging
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from pxrs.errors import Closed, PxrsError, Unavailable, Unexpected
from pxrs.io.clock import Clock
from pxrs.io.fork import after_fork
from pxrs.io.process_exit import Stage, at_exit, signals_caught
from pxrs.io.signals import wait_long
from pxrs.model import Owner
from pxrs.runtime.group.member import Member
from pxrs.runtime.group.meter import Measured, Meter
from pxrs.runtime.ports.counters import Counters
from pxrs.runtime.ports.events import Report
from pxrs.runtime.registry.registry import Changed, CommitRequest, Registry
from pxrs.settings import check_seconds

logger = logging.getLogger("pxrs.consumer")


class Loop:
    """Calls ``step`` until it returns None; ``step`` returns how long to sleep. Anybody may ``wake`` it."""

    def __init__(self, name: str, step: Callable[[], float | None]) -> None:
        self._wake_event = threading.Event()
        self._step = weakref.WeakMethod(step)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def wake(self) -> None:
        self._wake_event.set()

    def _run(self) -> None:
        while True:
            self._wake_event.clear()
            step = self._step()
            pause = step() if step is not None else None
            del step
            if pause is None:
                return
            self._wake_event.wait(pause)


class Watcher:
    """Waits for wake-ups, and passes them on. It keeps no member alive while it waits."""

    def __init__(self, name: str, registry: Registry, seconds: float, on_wake: Callable[[], bool]) -> None:
        self._registry = registry
        self._seconds = seconds
        self._on_wake = weakref.WeakMethod(on_wake)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        mark, pause, tell = 0, threading.Event(), True
        while tell:
            try:
                mark = self._registry.wait(mark, self._seconds)  # the first one returns at once
            except Closed:  # the queue was closed, or the process ends: there is nothing more to wait for
                return
            except PxrsError:  # the loop reads the same store, and says what is wrong with it
                pause.wait(1.0)
            tell = self._tell()

    def _tell(self) -> bool:
        on_wake = self._on_wake()
        return on_wake is not None and on_wake()

    def end(self) -> None:
        """At the end of the process: nobody uses the registry any more, and who waits in it ends by this."""
        if self.thread.is_alive():
            self._registry.store.close()


class Membership:
    """One incarnation of a member, from its start to its end. Made by ``queue.join(...)``.

    ``halt`` ends the work as a crash would; ``ended`` is called when all is over.
    """

    is_over = False
    """The end of the work: a group's has none."""
    ends: Mapping[int, int] | None = None

    def __init__(
        self,
        registry: Registry,
        member: Member,
        meter: Meter,
        clock: Clock,
        loop_name: str,
        halt: Callable[[], None],
        report: Report,
        enter: Callable[[], None] | None = None,
    ) -> None:
        self.member = member
        self.report = report
        self.meter = meter
        self.stopping = False
        self.ended: Callable[[], None] = _nobody
        self._clock = clock
        self._halt = halt
        self._enter = enter
        self._killed = False
        self._done = threading.Event()
        self._error: PxrsError | None = None
        self._loop = Loop(f"pxrs-{loop_name}", self._round)
        self._watcher = Watcher(f"pxrs-{loop_name}-watch", registry, member.poll_seconds, self._on_wake)
        self.wake = self._loop.wake
        _all.add(self)

    # ---- what engines call ------------------------------------------------------------------------------------------

    @property
    def owner(self) -> Owner:
        return self.member.me

    def start(self) -> None:
        if self._loop.thread.ident is not None:
            raise Closed("a member starts once; make a new one")
        self.enter()
        self._loop.thread.start()
        self._watcher.thread.start()

    def enter(self) -> None:
        """Make what this member needs, such as its group. The start does it, unless it was done before."""
        if self._enter is not None:
            self._enter()
            self._enter = None  # it knows the queue, which must not live as long as this does

    def submit(self, request: CommitRequest) -> Future[Changed]:
        """Commit in the loop's next round, and learn what became of it. From any thread."""
        outcome = self.member.commits.submit(request)
        self._loop.wake()
        return outcome

    def tell(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Report what has happened in the work."""
        self.report(kind, facts)

    def request_stop(self) -> None:
        """Leave cleanly; returns at once."""
        self.stopping = True
        self._loop.wake()

    def stop(self, timeout: float | None = None, own_threads: Sequence[threading.Thread] = ()) -> None:
        """Leave cleanly and wait for it, unless called by one of the threads that are waited for."""
        self.request_stop()
        if not self._loop.thread.is_alive():  # never started, or left behind by a fork
            self._finish()
        elif threading.current_thread() not in [self._loop.thread, *own_threads] and not self.wait(timeout):
            raise Unavailable(f"{self.member.me.id!r} is still leaving after {timeout} s")

    def kill(self) -> None:
        """End as a crash would, with no flush and no release."""
        self._killed = True
        self._halt()
        self._loop.wake()
        if self._loop.thread.ident is not None and threading.current_thread() is not self._loop.thread:
            self._loop.thread.join(10)
        self._halt()  # again: the loop may have started work meanwhile
        self._finish()

    def end_with_process(self) -> None:
        """End with the process, without waiting. A batch that waits for its commit gets an answer, too."""
        self._killed = True
        self._halt()
        self._loop.wake()
        self.member.commits.close()

    def end_threads(self) -> list[threading.Thread]:
        """Let the loop and the watcher end; returns them."""
        self._watcher.end()
        return [self._loop.thread, self._watcher.thread]

    def fail(self, error: PxrsError) -> None:
        """The work cannot go on: leave, and keep the reason."""
        if self._done.is_set():
            return
        if self._error is None:
            self._error = error
        self.request_stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until this life has ended; False if the time was over first."""
        return wait_long(self._done.wait, timeout)

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    @property
    def error(self) -> PxrsError | None:
        """The error that has ended this member, if any."""
        return self._error or self.member.error

    @property
    def state(self) -> str:
        """fenced, stopped, stopping, troubled (the registry does not answer), registering; "" while it takes part."""
        if self.member.error is not None:
            return "fenced"
        if self._done.is_set():
            return "stopped"
        if self.stopping:
            return "stopping"
        if self.member.troubled_since is not None:
            return "troubled"
        return "" if self.member.joined else "registering"

    @property
    def beat_age(self) -> float:
        """Seconds since the registry last confirmed a beat."""
        return self.member.beat_age(self._clock.monotonic())

    # ---- the loops -------------------------------------------------------------------------------------------------

    def _round(self) -> float | None:
        if self._killed or self._done.is_set():
            return None
        if self.stopping:
            self.member.leave()
        try:
            wake_at = self.member.round()
        except (
            BaseException
        ) as error:  # a driver's bug, or sys.exit in a listener, must end this member loudly, not leave it half alive
            if self._killed:  # in the middle of this round: the registry may be closed already, and nobody asks why
                return None
            name = self.member.me.id
            logger.exception("member %s ends", name)
            named = error if isinstance(error, PxrsError) else Unexpected(f"member {name!r}: {error!r}")
            named.__cause__ = None if named is error else error
            self.fail(named)
            self.kill()
            return None
        if self.member.finished:
            self._finish()
            return None
        return max(0.0, wake_at - self._clock.monotonic())

    def _on_wake(self) -> bool:
        """Look at the rows: another member has changed something, or the time is over. False: the member is gone."""
        if self._killed or self._done.is_set():
            return False
        self.member.poll()
        self._loop.wake()
        return True

    def _finish(self) -> None:
        self._done.set()
        self.member.commits.close()
        self.ended()


# ---- what users have in hand -----------------------------------------------------------------------------------------


class LifeSpan(Protocol):
    """From a start to an end: that of a member, or of work outside any group."""

    meter: Meter

    @property
    def error(self) -> PxrsError | None: ...
    def kill(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Running:
    """The base of consumers and pipelines: what can be asked of them, whatever does their work."""

    def __init__(self, life: LifeSpan, work: Measured) -> None:
        self.__life = life
        self.__work = work

    def kill(self) -> None:
        """End as a crash would, with no commit and no release: for tests and drills."""
        self.__life.kill()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it has ended; False if the time was over first."""
        check_seconds("timeout", timeout)
        return self.__life.wait(timeout)

    def check(self) -> None:
        """Raise the error that has ended it, if one has."""
        if self.error is not None:
            raise self.error

    @property
    def error(self) -> PxrsError | None:
        """The error that has ended it, if any."""
        return self.__life.error

    @property
    def troubles(self) -> Mapping[int, PxrsError]:
        """Partitions that wait for their log, their sink, their dead letters or a disk, with the reason."""
        return self.__work.troubles()

    @property
    def tally(self) -> Counters:
        """The numbers of handled, retried, skipped and dead-lettered messages so far."""
        return self.__work.tally()

    @property
    def meter(self) -> Meter:
        """Its metrics."""
        return self.__life.meter


_all: weakref.WeakSet[Membership] = weakref.WeakSet()
after_fork(_all.clear)  # they are the parent's, and a thread of it may have held their locks


@at_exit(Stage.TAKE)
def _take_no_more() -> list[threading.Thread]:
    for membership in list(_all):
        membership.end_with_process()
    return []


@at_exit(Stage.THREADS)
def _end_threads() -> list[threading.Thread]:
    return [thread for membership in list(_all) for thread in membership.end_threads()]


@contextmanager
def signals(leave: Callable[[], None]) -> Iterator[None]:
    """SIGTERM, SIGINT and SIGHUP mean a clean leave, as long as this lasts; only the main thread can say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    asked: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) == 1:  # a second signal may come in the middle of this, and what it does is not made for that
            leave()
        elif number == signal.SIGINT:
            signal.default_int_handler(number, frame)  # a user who insists need not wait

    with signals_caught(on_signal):
        yield


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """The bound method, without keeping its object alive; None comes back when that is gone."""
    weak: Any = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        alive = weak()
        return alive(*arguments) if alive is not None else None

    return call


def _nobody() -> None:
    """Do nothing, until an engine wants to know of the end."""
