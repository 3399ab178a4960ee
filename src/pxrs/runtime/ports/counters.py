"""The counters of a worker: what it has done, in numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(slots=True)
class Counters:
    """The numbers since the start. Each worker counts for itself: threads must not share a counter."""

    handled: int = 0
    retried: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    handler_seconds: float = 0.0
    expired: int = 0
    passed_over: int = 0
    """Dead letters that were sent again for another group."""

    def add(self, other: Counters) -> None:
        for counter in fields(Counters):
            setattr(self, counter.name, getattr(self, counter.name) + getattr(other, counter.name))


def total(tallies: Iterable[Counters]) -> Counters:
    """The sum of several workers' counters."""
    found = Counters()
    for tally in tallies:
        found.add(tally)
    return found
