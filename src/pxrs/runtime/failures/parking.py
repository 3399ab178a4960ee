"""Decides whether an error ends the member, or parks its partition, which is tried again (ADR 0026)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pxrs.errors import (
    BadCheckpoint,
    BadSetting,
    Closed,
    Fenced,
    HandlerFailed,
    Mismatch,
    NotFound,
    OutOfRange,
    PxrsError,
    Refused,
    StopConsuming,
    Unavailable,
)
from pxrs.io.clock import Clock
from pxrs.io.signals import Nudge
from pxrs.runtime.failures.error_summary import error_text
from pxrs.settings import Settings

logger = logging.getLogger("pxrs.consumer")

PARKED_SECONDS = 5.0
"""The longest pause between two tries of a parked partition."""
FIRST_SECONDS = 0.1
"""The shortest one: it doubles with each try."""

_ENDING = (Fenced, Closed, BadSetting, HandlerFailed, OutOfRange, StopConsuming)
"""A lost identity, the end of the consumer, a mistake in its set-up, the policy "stop", a log that was lost."""

_OF_THE_PLACE = (BadSetting, BadCheckpoint, NotFound, Mismatch)
"""Errors of the set-up, or of a table or directory that is away or is another one."""


def ends_member(error: BaseException) -> bool:
    """Whether an error ends the member. What depends on a message, a sink, a dead letter or a disk does not."""
    return isinstance(error, _ENDING) or not isinstance(error, Exception)


def refuses_message(error: BaseException) -> bool:
    """Whether an error of a sink is about the output of some message, which may be put aside. Else all would fail."""
    return isinstance(error, Refused | HandlerFailed) and not isinstance(error, _OF_THE_PLACE)


def as_trouble(error: Exception) -> PxrsError:
    """The error as it is shown while the partition waits."""
    return error if isinstance(error, PxrsError) else Unavailable(error_text(error))


def pause_after(tries: int) -> float:
    """Seconds until the next try."""
    return min(PARKED_SECONDS, FIRST_SECONDS * 2.0 ** min(tries - 1, 10))


def back_off_seconds(settings: Settings, tries: int) -> float:
    """Seconds between a handler's failure and the next call, after this many tries."""
    return min(settings.backoff_ms * 2.0 ** (tries - 1), settings.backoff_max_ms) / 1000


class Parking:
    """The trouble of one partition: it waits, each time a little longer, and holds up no other. Used by its thread."""

    def __init__(self, partition: int, clock: Clock, wake_event: Nudge, is_given_up: Callable[[], bool]) -> None:
        self.trouble: PxrsError | None = None
        self._partition = partition
        self._clock = clock
        self._wake_event = wake_event
        self._is_given_up = is_given_up
        self._failures = 0

    def wait(self, error: Exception, until_change: bool = False) -> None:
        """Wait before the next try; what nobody can wait for is raised again.

        ``until_change``: less long if the partition grows meanwhile.
        """
        if ends_member(error):
            raise error
        before, self.trouble = self.trouble, as_trouble(error)
        if type(before) is not type(self.trouble):
            logger.error("partition %d waits: %s", self._partition, error_text(self.trouble))
        self._failures += 1
        self._rest(pause_after(self._failures), until_change)

    def _rest(self, seconds: float, until_change: bool) -> None:
        """Never shorter than a moment: new messages must not make the tries follow each other at once.

        A wake-up that came meanwhile is kept: the thread may wait for one right after this.
        """
        clock = self._clock.monotonic
        deadline, soonest, woken = clock() + seconds, clock() + min(seconds, FIRST_SECONDS), False
        while not self._is_given_up() and (left := (soonest if woken and until_change else deadline) - clock()) > 0:
            woken = self._wake_event.wait(left) or woken
        if woken:
            self._wake_event.set()

    def end(self) -> None:
        """End the wait: what the partition waited for works."""
        if self.trouble is not None:
            logger.info("partition %d goes on", self._partition)
            self.trouble, self._failures = None, 0
