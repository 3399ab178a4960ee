"""Decides which messages are deleted: too old, too many, or consumed by all groups. What a group still needs stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

KEPT_CHUNKS = 2
"""The last chunks of a partition always stay: retries are looked for there, and the last one still grows."""


class RetainedPart(NamedTuple):
    """A part of a partition that is deleted as a whole; ``last_us`` is its newest time, None if that is not known."""

    start: int
    end: int
    bytes: int
    last_us: int | None


class Policy(NamedTuple):
    """Limits of age and size (0 = no limit), and whether messages stay that all groups have consumed."""

    age_ms: int = 0
    bytes: int = 0
    until_consumed: bool = False

    @property
    def is_any(self) -> bool:
        return bool(self.age_ms or self.bytes or self.until_consumed)


class RetentionDecision(NamedTuple):
    """The new start of a partition; ``wanted`` is the start if no group needed more."""

    start: int
    wanted: int


def judge(chunks: Sequence[RetainedPart], policy: Policy, checkpoint: int | None, now_us: int) -> RetentionDecision:
    """Apply the policy to one partition; ``checkpoint`` is the smallest of all groups, None if there is no group.

    No rule deletes what a group has still to consume. What a running batch was planned for is not committed yet: it
    is above a checkpoint, so it stays too.
    """
    if not chunks:
        return RetentionDecision(0, 0)
    first, old = chunks[0].start, chunks[:-KEPT_CHUNKS]
    by_size = sum(chunk.bytes for chunk in chunks) - policy.bytes
    wanted = first
    for chunk in old:
        too_many = policy.bytes > 0 and by_size > 0
        if not (too_many or _is_too_old(chunk, policy, now_us) or _is_consumed(chunk, policy, checkpoint)):
            break
        wanted = chunk.end
        by_size -= chunk.bytes
    needed = wanted if checkpoint is None else checkpoint
    return RetentionDecision(max([first, *(chunk.end for chunk in old if chunk.end <= min(wanted, needed))]), wanted)


def _is_too_old(chunk: RetainedPart, policy: Policy, now_us: int) -> bool:
    return policy.age_ms > 0 and chunk.last_us is not None and chunk.last_us < now_us - policy.age_ms * 1_000


def _is_consumed(chunk: RetainedPart, policy: Policy, checkpoint: int | None) -> bool:
    return policy.until_consumed and checkpoint is not None and chunk.end <= checkpoint
