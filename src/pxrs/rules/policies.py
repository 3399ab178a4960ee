"""Policies: when to commit, how large a batch is, how a failing one is narrowed down, and what proves a sink. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pxrs.errors import Refused
from pxrs.model import Grant, Range

GROWTH = 4.0
"""A batch is at most this many times larger than the last one, or smaller: one odd measurement must not decide."""

PROOF_ROWS = 16
"""A sink counts as one that takes nothing after this many messages were tried."""

ENOUGH = 10_000
PATIENCE = 4.0


def share_out(waiting: Mapping[int, int], limit: int) -> dict[int, int]:
    """Divide the next batch among the waiting partitions: messages for each, at most ``limit`` together.

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
    """Sets the size of the next batch, so that it takes about the time that is asked for.

    A batch costs something however small it is. Where that alone takes longer than wished, smaller batches would only
    make things worse: below ``ENOUGH`` rows they shrink only for functions that are slow beyond patience.
    """

    rows: int
    target_seconds: float
    most: int

    def after(self, rows: int, seconds: float) -> Pace:
        """The pace after a batch of this many rows took this long. One that was not full proves nothing about more."""
        if rows < self.rows and seconds <= self.target_seconds:
            return self
        factor = min(GROWTH, self.target_seconds / max(seconds, 1e-6))
        least = self.rows / GROWTH
        if self.rows >= ENOUGH and seconds <= PATIENCE * self.target_seconds:
            least = max(least, ENOUGH)
        return replace(self, rows=int(min(self.most, max(1, least, rows * factor))))


def take_turns(grants: Sequence[Grant], most: int, turn: int) -> tuple[list[Grant], int]:
    """Choose the next partitions where one commit cannot hold all, and the one whose turn comes after them."""
    ordered = sorted(grants)
    if len(ordered) <= most:
        return ordered, turn
    first = turn % len(ordered)
    return sorted([*ordered[first:], *ordered[:first]][:most]), first + most


# ---- whom a refusal blames ------------------------------------------------------------------------------------------


def needs_proof(error: BaseException) -> bool:
    """Whether an error of a sink blames a message only if the sink takes others. Another error blames it by itself.

    A sink that has taken nothing yet may refuse all, because of what it is: then no message is to blame.
    """
    return isinstance(error, Refused)


def is_proved(took: bool, trials: Iterable[bool]) -> bool:
    """Whether the sink takes output: it has taken some, or one of these trials shows that it would."""
    return took or any(trials)


def singles_after(part: Range, end: int) -> list[Range]:
    """The messages that are tried when this part was refused: the next ones of its partition, each alone."""
    last = min(end, part.end + PROOF_ROWS)
    return [part._replace(start=offset, end=offset + 1) for offset in range(part.end, last)]


# ---- when to commit -------------------------------------------------------------------------------------------------


class CommitPolicy(NamedTuple):
    """Commit after this many messages, or this many seconds, whichever comes first; always at a hand-over."""

    every: int = 1_000
    seconds: float = 1.0

    def due(self, pending: int, waited: float) -> bool:
        """``pending`` messages are processed and not committed; the oldest of them has ``waited`` so long."""
        return pending > 0 and (pending >= self.every or waited >= self.seconds)
