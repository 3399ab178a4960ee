"""How long it takes until a member that waits has noticed what another one did."""

from __future__ import annotations

import statistics
import threading
import time
from contextlib import closing

from benchmarks.parts.registry_stores import Place
from benchmarks.parts.registry_work import CLOCK, ME, open_store
from pxrs.model import MemberRow
from pxrs.runtime.registry.registry import Registry

LONG_SECONDS = 20.0
REST_SECONDS = 0.02
"""The waiter has gone to sleep by then."""


def wake_ms(place: Place, rounds: int) -> float:
    """From the call in which a member leaves to the end of the other's wait, through connections of their own."""
    with closing(open_store(place.url("waking"))) as theirs, closing(open_store(place.url("waking"))) as ours:
        leaving, waiting = (
            Registry(store, "q", "g", CLOCK, waker=name) for store, name in ((theirs, "A"), (ours, "B"))
        )
        return statistics.median(_wake(leaving, waiting) for _ in range(rounds)) * 1000


def _wake(leaving: Registry, waiting: Registry) -> float:
    leaving.register(MemberRow("A", ME.inc))
    leaving.wake.wake_all()
    mark = _settled(waiting)
    woke: list[float] = []

    def wait() -> None:
        waiting.wait(mark, LONG_SECONDS)
        woke.append(time.perf_counter())

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(REST_SECONDS)
    began = time.perf_counter()
    leaving.deregister(ME)
    waiter.join()
    if woke[0] < began or woke[0] - began > LONG_SECONDS / 2:
        raise RuntimeError("the waiter was not woken by the member that left")
    return woke[0] - began


def _settled(waiting: Registry) -> int:
    """A mark behind everything that has happened."""
    mark = waiting.wait(0, 0)
    while (now := waiting.wait(mark, 0.3)) != mark:
        mark = now
    return mark
