"""How often a waiting member looks into a database that does not tell of changes."""

from __future__ import annotations

from collections.abc import Callable

LOOK_MS = 100
_SHARE = 0.1
"""Of the time that nothing has happened: who looks again after that much of it is late by no more than that much."""


class Looks:
    """When to look again: soon after a change, because the next is likely, and the rarer the longer nothing happens,
    but at least once a beat. A group at rest then costs its database no more looks than beats.
    """

    def __init__(self, look_ms: int | None, beat_ms: int, clock: Callable[[], float]) -> None:
        """``look_ms``: always after that much, whatever happens."""
        self._least = (look_ms or LOOK_MS) / 1000
        self._most = self._least if look_ms else max(self._least, beat_ms / 1000)
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}

    def pause(self, prefix: str, mark: int) -> float:
        """Seconds until the next look under a prefix, where this mark was seen just now."""
        now = self._clock()
        known, since = self._seen.get(prefix, (None, now))
        if known != mark:
            self._seen[prefix] = mark, now
            return self._least
        return min(max(self._least, _SHARE * (now - since)), self._most)
