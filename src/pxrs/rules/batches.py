"""Which messages the next batch takes, how large it is, and how a failing one is narrowed down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pxrs.model import Range

GROWTH = 4.0
"""A batch is at most this many times larger than the last one, or smaller: one odd measurement must not decide."""

ENOUGH = 10_000
PATIENCE = 4.0


def share_out(waiting: Mapping[int, int], limit: int) -> dict[int, int]:
    """How many of the waiting messages each partition gives, at most ``limit`` together.

    Fair: partitions with little to give are emptied, the others give equal parts, so a huge one starves nobody.
    """
    given: dict[int, int] = {}
    left = limit
    order = sorted((count, partition) for partition, count in waiting.items() if count > 0)
    for place, (count, partition) in enumerate(order):
        # Rounded up: of fewer messages than partitions, the first ones get one each.
        given[partition] = min(count, -(-left // (len(order) - place)))
        left -= given[partition]
    return {partition: count for partition, count in given.items() if count}


def halves(ranges: Sequence[Range]) -> tuple[tuple[Range, ...], tuple[Range, ...]]:
    """Cut the messages of these ranges in two, in the order of partitions and offsets."""
    first: list[Range] = []
    second: list[Range] = []
    left = sum(part.rows for part in ranges) // 2
    for part in ranges:
        cut = part.start + min(left, part.rows)
        left -= cut - part.start
        first += [part._replace(end=cut)] if cut > part.start else []
        second += [part._replace(start=cut)] if cut < part.end else []
    return tuple(first), tuple(second)


@dataclass(frozen=True, slots=True)
class Pace:
    """How many rows the next batch may have, so that it takes about as long as wished for.

    A batch costs something however small it is. Where that alone takes longer than wished, smaller batches would only
    make things worse: below ``ENOUGH`` rows they shrink only for functions that are slow beyond patience.
    """

    rows: int
    target_seconds: float
    most: int

    def after(self, rows: int, seconds: float) -> Pace:
        """The pace after a batch of so many rows took so long. One that was not full proves nothing about more."""
        if rows < self.rows and seconds <= self.target_seconds:
            return self
        factor = min(GROWTH, self.target_seconds / max(seconds, 1e-6))
        least = self.rows / GROWTH
        if self.rows >= ENOUGH and seconds <= PATIENCE * self.target_seconds:
            least = max(least, ENOUGH)
        return replace(self, rows=int(min(self.most, max(1, least, rows * factor))))
