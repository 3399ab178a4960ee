"""Virtual time and chance for the simulation: one seed decides everything."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pxrs.testing.faults.checker import Event


class Timeline:
    """Time, chance and the order of things: a heap of what happens next."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1_000.0
        self.steps = 0
        self.history: list[Event] = []
        self._heap: list[tuple[float, float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do this then. What falls on the same moment happens in a random order."""
        self._count += 1
        heapq.heappush(self._heap, (max(time, self.now), self.random.random(), self._count, action))

    def run_until(self, end: float) -> None:
        while self._heap and self._heap[0][0] <= end:
            self.now, _, _, action = heapq.heappop(self._heap)
            self.steps += 1
            action()
        self.now = end


class SkewedClock:
    """The clocks of one machine: the same passage of time, but a wall clock that is wrong and may jump."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.offset = timeline.random.uniform(-7200, 7200)

    def monotonic(self) -> float:
        return self._timeline.now

    def wall(self) -> float:
        return 1.7e9 + self._timeline.now + self.offset


@dataclass(frozen=True, slots=True)
class Faults:
    """How often the store misbehaves, and what else a batch depends on, as chances per call."""

    unavailable: float = 0.0
    lost_reply: float = 0.0
    late_write: float = 0.0
    lost_write: float = 0.0
    slow: float = 0.0
    dropped_wake: float = 0.0
    failing: float = 0.0
    """The execution of a batch fails, and may succeed the next time."""
    hanging: float = 0.0
    """It takes longer than anybody waits."""
    log_down: float = 0.0
    sink_down: float = 0.0
    torn: float = 0.0
    """The process dies in the middle of what it does to its sink."""


CALM = Faults()


class Weather(Protocol):
    """Where a simulated thing is: in virtual time, and under faults that strike."""

    @property
    def timeline(self) -> Timeline: ...

    @property
    def faults(self) -> Faults: ...

    def strikes(self, fault: str) -> bool: ...
