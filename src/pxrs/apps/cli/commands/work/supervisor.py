"""The supervisor of ``pxrs work``: it starts processes, starts those again that fail, and ends all together.

One thread, one loop: read messages, reap, start what is due, look at the sources. Each wait is short, so no signal is
lost for longer than that, whatever state the process was in when the signal came.
"""

from __future__ import annotations

import select
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from math import inf

from pxrs.apps.cli.commands.work.member import NAME_IS_TAKEN, SET_UP_IS_WRONG, Order
from pxrs.apps.cli.commands.work.reloading import Sources
from pxrs.apps.cli.output import INTERRUPTED_EXIT_CODE, note
from pxrs.io.clock import Clock, SystemClock
from pxrs.io.process_exit import signals_caught

SLICE_SECONDS = 0.2
"""The longest wait of the loop."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a failed process starts again: the first time, and at most."""
LOOK_SECONDS = 0.5
"""Seconds between two looks at the source files."""
TELL_AFTER = 5
"""Failures in a row after which it is said that they do not end by themselves."""
STEADY_SECONDS = 60.0
"""A process that has run for so long before it failed starts again after the first pause."""


def pause_after(failures: int) -> float:
    """Seconds to wait after this many failures in a row: doubled each time, up to a minute."""
    return min(FIRST_PAUSE * 2.0 ** min(failures - 1, 16), LONGEST_PAUSE)


@dataclass
class StartedProcess:
    """A process that was started, and the socket that ties it to this one."""

    process: subprocess.Popen[bytes]
    tie: socket.socket
    since: float
    is_heard: bool = False
    """The process has joined, or closed its end: nothing more comes through the socket."""
    kill_at: float | None = None
    """The time at which the process is killed, after it was asked to leave."""


@dataclass
class SupervisedProcess:
    """One of the processes, through all its restarts."""

    order: Order
    start_at: float | None = 0.0
    """The time of its next start; None: it is not started by itself."""
    failures: int = 0
    running: StartedProcess | None = None

    @property
    def title(self) -> str:
        return f"process {self.order.number}"


class Supervisor:
    """Keeps a number of processes at work, until it is asked to end or all have left by themselves.

    The first process goes ahead; the others follow when it has joined the group. What is wrong with the handler or the
    queue is so said once, and not once for each process.
    """

    def __init__(
        self, order: Order, processes: int, patience: float, sources: Sources | None, clock: Clock | None = None
    ) -> None:
        self._places = [SupervisedProcess(replace(order, number=number)) for number in range(1, processes + 1)]
        self._patience = patience
        self._sources = sources
        self._clock = clock or SystemClock()
        self._proved = False
        self._ending = False
        self._code = 0
        self._signals: list[int] = []
        self._heard = 0
        self._next_look = 0.0

    def run(self) -> int:
        """Run until all processes have ended; returns the exit code."""
        with signals_caught(lambda number, _: self._signals.append(number)):
            try:
                while self._is_needed():
                    self._step()
                    self._wait()
            finally:  # also if this process fails: nobody is left behind without a supervisor
                for place in self._places:
                    if place.running:
                        place.running.tie.close()
        return self._code

    def _is_needed(self) -> bool:
        waits_for_change = self._sources is not None and not self._ending
        return waits_for_change or any(place.running or place.start_at is not None for place in self._places)

    def _step(self) -> None:
        self._obey()
        for place in self._places:
            if place.running:
                self._look_at(place, place.running)
        if not self._ending:
            self._follow_sources()
        for place in self._places:
            if self._is_due(place):
                self._start(place)

    def _wait(self) -> None:
        ties = [place.running.tie for place in self._places if place.running and not place.running.is_heard]
        select.select(ties, [], [], SLICE_SECONDS)

    # ---- one process -----------------------------------------------------------------------------------------------

    def _is_due(self, place: SupervisedProcess) -> bool:
        may_start = self._proved or place is self._places[0]
        is_free = place.running is None and place.start_at is not None
        return may_start and is_free and self._clock.monotonic() >= (place.start_at or 0.0)

    def _start(self, place: SupervisedProcess) -> None:
        place.start_at = None
        try:
            running = place.running = StartedProcess(*_started(place.order), self._clock.monotonic())
        except OSError as error:  # no memory, no process numbers: it may be better later
            self._start_later(place, f"cannot be started ({error.strerror or error})")
        else:
            note(f"{place.title} starts: pid {running.process.pid}, member {place.order.member}")

    def _look_at(self, place: SupervisedProcess, running: StartedProcess) -> None:
        self._hear(place, running)
        code = running.process.poll()
        if code is not None:
            running.tie.close()
            place.running = None
            self._ended(place, running, code)
        elif running.kill_at is not None and self._clock.monotonic() >= running.kill_at:
            note(f"{place.title} has not left after {self._patience:g} s: it is killed")
            running.process.kill()
            running.kill_at = inf
            self._code = 1 if self._ending else self._code

    def _hear(self, place: SupervisedProcess, running: StartedProcess) -> None:
        if running.is_heard:
            return
        try:
            word = running.tie.recv(1)
        except BlockingIOError:
            return
        except OSError:  # it has ended without reading its order; its exit code tells more
            word = b""
        running.is_heard = True
        if word:
            self._proved = True
            note(f"{place.title} has joined group {place.order.group}")

    def _ended(self, place: SupervisedProcess, running: StartedProcess, code: int) -> None:
        how = _in_words(code)
        if self._ending:
            self._code = self._code or int(code > 0)
            note(f"{place.title} {how}")
        elif running.kill_at is not None:
            place.start_at, place.failures = self._clock.monotonic(), 0
        elif code == 0:
            self._proved = True
            note(f"{place.title} {how}; it is not started again")
        elif code == NAME_IS_TAKEN:
            self._fail(f"{place.order.member} runs elsewhere: give each `pxrs work` of a group another --name")
        elif code == SET_UP_IS_WRONG and not self._proved:
            self._refuse(place)
        else:
            place.failures = 0 if self._clock.monotonic() - running.since >= STEADY_SECONDS else place.failures
            self._start_later(place, how)

    def _start_later(self, place: SupervisedProcess, how: str) -> None:
        place.failures += 1
        pause = pause_after(place.failures)
        place.start_at = self._clock.monotonic() + pause
        note(f"{place.title} {how}; it starts again in {pause:g} s")
        if place.failures == TELL_AFTER:
            note(
                f"{place.title} keeps failing: {TELL_AFTER} times in a row, each time within {STEADY_SECONDS:g} s, it "
                f"{how}. Its last lines above say why. What ends a whole process, as sys.exit in a handler, is no "
                "failure of a message: the same message is taken again at each start"
            )

    def _refuse(self, place: SupervisedProcess) -> None:
        """Give up: the process said itself what is wrong, and another try would say the same."""
        if self._sources is None:
            self._fail(f"{place.title} cannot start, so none is started")
        else:
            note(f"{place.title} cannot start; it waits for a change of the source")

    # ---- all together ------------------------------------------------------------------------------------------------

    def _fail(self, text: str) -> None:
        self._code = 1
        note(f"error: {text}")
        self._end()

    def _end(self) -> None:
        self._ending = True
        self._ask_all()

    def _ask_all(self) -> None:
        """Everybody who runs is asked to leave, once; nobody else starts by itself."""
        for place in self._places:
            place.start_at = None
            if place.running and place.running.kill_at is None:
                place.running.kill_at = self._clock.monotonic() + self._patience
                place.running.process.terminate()

    def _follow_sources(self) -> None:
        now = self._clock.monotonic()
        if self._sources is None or now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        changed = self._sources.changed()
        if changed is None:
            return
        note(f"{changed} has changed: all processes start again")
        self._ask_all()
        self._proved = False
        for place in self._places:
            if place.running is None:
                place.start_at, place.failures = now, 0

    # ---- signals -----------------------------------------------------------------------------------------------------

    def _obey(self) -> None:
        """The first signal asks all to leave; another SIGINT means that somebody does not want to wait."""
        new, self._heard = self._signals[self._heard :], len(self._signals)
        if new and not self._ending:
            running = sum(place.running is not None for place in self._places)
            counted = "1 process is" if running == 1 else f"{running} processes are"
            note(f"{signal.Signals(new[0]).name}: {counted} asked to leave")
            self._end()
            new = new[1:]
        if signal.SIGINT in new:
            self._kill_all()

    def _kill_all(self) -> None:
        self._code = INTERRUPTED_EXIT_CODE
        for place in self._places:
            if place.running:
                place.running.process.kill()


def _started(order: Order) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A new process with its order, and this end of the tie."""
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(order.as_line())  # not an argument: a URL may hold a password, and arguments are public
        ours.setblocking(False)
        command = [sys.executable, "-P", "-m", "pxrs.apps.cli.commands.work.member", str(theirs.fileno()), order.member]
        try:  # in a process group of its own: Ctrl-C reaches the supervisor alone, which then asks the others
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0
            )  # fmt: skip
        except OSError:
            ours.close()
            raise
    return process, ours


def _in_words(code: int) -> str:
    if code == 0:
        return "has left"
    if code > 0:
        return f"has failed with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal, which has no name
        return f"was ended by signal {-code}"
