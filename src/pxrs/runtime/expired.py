"""Messages that were still to be processed, and that retention has deleted: stop there, or go on behind the gap."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pxrs.errors import Damaged, Unavailable
from pxrs.logs.base import Log
from pxrs.model import Grant, Range
from pxrs.runtime.ports.events import Report
from pxrs.settings import Settings

logger = logging.getLogger("pxrs.consumer")


def place_in_log(log: Log, settings: Settings, partition: int, position: int) -> tuple[int, int]:
    """The position and the log's end; if the log starts later, where to go on, or the error that names the gap."""
    start, end = log.bounds(partition)
    if position < start and settings.on_expired == "skip":
        return start, end
    if not start <= position <= end:
        log.read(partition, position)  # raises the error that names the gap
    return position, end


def has_expired(log: Log, ranges: Iterable[Range]) -> bool:
    """Whether one of these begins with messages that are no longer stored."""
    try:
        return any(part.start < log.bounds(part.partition)[0] for part in ranges)
    except (Unavailable, Damaged):  # another trouble, which is seen elsewhere
        return False


def tell_of_gap(report: Report, grant: Grant, position: int, start: int) -> int:
    """Say aloud that these messages will never be processed; returns how many they are."""
    missing = start - position
    logger.error(
        "partition %d: offsets %d to %d (%d messages) are no longer stored and were never processed; going on at %d",
        grant.partition, position, start - 1, missing, start,
    )  # fmt: skip
    place = {"partition": grant.partition, "epoch": grant.epoch, "start": position, "end": start}
    report("expired", {"member": grant.owner.id, **place, "messages": missing})
    return missing
