"""Ends the process in order: what is still open ends in fixed stages, while its threads still run.

Python stops daemon threads wherever they happen to be, and then frees what they use. So everything that has a thread
or a connection ends here first, in one hook:

1. members take no more work, as if they had crashed: no handler starts any more;
2. producers store what they hold;
3. threads end: those that wait in a registry or for work are woken, and waited for;
4. event loops and the watcher of files end.

A connection is closed by the last thread that uses it, never under another one.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - Arrow imports it at its first use, which may be too late
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from types import FrameType

from pxrs.io.clock import SystemClock
from pxrs.io.fork import after_fork

logger = logging.getLogger(__name__)

JOIN_SECONDS = 2.0
"""The time that the threads of a stage may take, all together. A handler that takes longer is left behind."""

Act = Callable[[], Iterable[threading.Thread]]
"""Tells something to end, and returns the threads that end by this."""


class Stage(IntEnum):
    """The stages of the end, in their order."""

    TAKE = 1
    SEND = 2
    THREADS = 3
    LOOPS = 4


_acts: list[tuple[Stage, Act]] = []


def at_exit(stage: Stage) -> Callable[[Act], Act]:
    """Register a function of a module for this stage. It must also work in a forked child."""

    def register(act: Act) -> Act:
        _acts.append((stage, act))
        return act

    return register


def end_all() -> None:
    """Go through all stages; what fails stops nothing else."""
    for stage in Stage:
        with suppress(KeyboardInterrupt):  # Ctrl-C skips the rest of this stage
            join_all(_tell(stage), JOIN_SECONDS)


def _tell(stage: Stage) -> list[threading.Thread]:
    told: list[threading.Thread] = []
    for _, act in [entry for entry in _acts if entry[0] is stage]:
        try:
            told += act()
        except Exception:
            logger.exception("something did not end as it should, at the end of the process")
    return told


def join_all(threads: Iterable[threading.Thread], seconds: float) -> None:
    """Wait until all threads have ended, at most this many seconds in all."""
    clock = SystemClock()
    ends = clock.monotonic() + seconds
    for thread in threads:
        if thread.ident is not None and thread is not threading.current_thread():
            thread.join(max(0.0, ends - clock.monotonic()))


@contextmanager
def signals_caught(on_signal: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Give the signals that ask the process to end to a function, as long as this lasts. For the main thread."""
    caught = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup: the terminal may go, the process stays
        caught.append(signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- when it is called ----------------------------------------------------------------------------------------------
# A process of multiprocessing that was forked ends by os._exit: no hook of the interpreter is called, but one of that
# module, which a child forgets right after its fork.


@after_fork
def _register_with_multiprocessing() -> None:
    """End in order in processes that multiprocessing forks, if it is used at all."""
    util, process = sys.modules.get("multiprocessing.util"), sys.modules.get("multiprocessing.process")
    if util is None or process is None:
        return
    if process.parent_process() is None:  # not begun yet: what is registered now is forgotten, but not this
        util.register_after_fork(_anchor, _end_with_child)
    else:
        _end_with_child(_anchor)


class _Anchor:
    """Keeps a registration: multiprocessing holds it weakly."""


_anchor = _Anchor()


def _end_with_child(_: _Anchor) -> None:
    sys.modules["multiprocessing.util"].Finalize(None, end_all, exitpriority=0)


atexit.register(end_all)
_register_with_multiprocessing()
