"""When to commit: a frozen policy, and the little state beside it that is told the time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """Commit after so many messages, or so many seconds, whichever comes first; always at a hand-over."""

    every: int = 1_000
    seconds: float = 1.0

    def due(self, pending: int, waited: float) -> bool:
        """``pending`` messages are processed and not committed; the oldest of them has ``waited`` so long."""
        return pending > 0 and (pending >= self.every or waited >= self.seconds)
