"""How long a crash stays unnoticed, depending on when it happens between beats and looks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pxrs

SETTLED_BEATS = 6
"""So many beats pass before the crash: what was in step at the start is not any more."""
AT_ONCE = 4


def beyond_the_lease(url: Callable[[str], str], lease_ms: int, phases: int) -> dict[str, float]:
    """Milliseconds beyond the lease, counted from the last beat, until all is taken over: low, median, high."""
    figures = {}
    for who in ("member", "leader"):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            parts = [part / phases for part in range(phases)]
            took = list(pool.map(lambda part, who=who: _crash(url(f"{who}-{part:.3f}"), lease_ms, part, who), parts))
        for kind, value in (("low", min(took)), ("p50", statistics.median(took)), ("high", max(took))):
            figures[f"crash of a {who} at any phase: beyond the lease, {kind} ms"] = value * 1000 - lease_ms
    return figures


def _crash(place: str, lease_ms: int, phase: float, who: str) -> float:
    """Seconds from the last beat of the one that crashes until the other works on everything."""
    settings = pxrs.Settings(lease_ms=lease_ms)
    beat = settings.beat_ms / 1000
    with ExitStack() as stack:
        queues = [
            stack.enter_context(
                pxrs.open(log=f"file:{place}", registry=f"sqlite:{place}.db", partitions=8, settings=settings)
            )
            for _ in range(2)
        ]
        leader = queues[0].consumer(group="g", handler=_nothing, member="A").start()
        _until(lambda: len(leader.partitions) == 8)
        time.sleep(phase * beat)
        member = queues[1].consumer(group="g", handler=_nothing, member="B").start()
        _until(lambda: len(leader.partitions) == len(member.partitions) == 4)
        time.sleep(SETTLED_BEATS * beat + phase * beat)
        goes, stays = (leader, member) if who == "leader" else (member, leader)
        last_beat = time.perf_counter() - goes.beat_age
        goes.kill()
        _until(lambda: len(stays.partitions) == 8)
        return time.perf_counter() - last_beat


def _nothing(_: object) -> None:
    """A handler that has nothing to do."""


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("the hand-over did not end within 60 s")
        time.sleep(0.001)
