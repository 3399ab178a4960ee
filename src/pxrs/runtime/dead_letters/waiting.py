"""How many dead letters wait for somebody, and for how long: cheap enough to be asked all the time."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from pxrs.logs.base import Log
from pxrs.runtime.delivery import messages_of


class Waiting(NamedTuple):
    """The letters of a box that were not sent again: how many, and when the oldest was put there, in microseconds."""

    letters: int
    oldest_us: int | None

    def age_seconds(self, wall: float) -> float | None:
        """How long the oldest has been waiting at this time; None if there is none."""
        return None if self.oldest_us is None else max(0.0, wall - self.oldest_us / 1_000_000)


def waiting_in(box: Log, retried: Collection[int]) -> Waiting:
    """Counted by the bounds of the box: only the oldest letter is read."""
    start, end = box.bounds(0)
    count = end - start - sum(start <= number < end for number in retried)
    first = next((number for number in range(start, end) if number not in retried), None)
    batch = None if first is None else box.read(0, first, 1)
    return Waiting(count, None if batch is None else next(messages_of(batch, 0)).timestamp_us)
