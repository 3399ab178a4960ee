"""Words of the command line that mean something: times, durations, places in the log."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from pxrs.apps.cli.options import WrongUsage
from pxrs.io.clock import SystemClock

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")


def duration(text: str) -> timedelta:
    """``90s``, ``1h30m``, ``7d``."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise WrongUsage(f"{text!r} is no duration: write 90s, 15m, 1h30m or 7d")
    try:
        return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
    except OverflowError:
        raise WrongUsage(f"{text!r} is too long a duration") from None


def moment(text: str) -> datetime:
    """A time with its zone, as in ``2026-01-31T12:00:00Z``."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise WrongUsage(f"{text!r} is no time: write it as 2026-01-31T12:00:00Z") from None
    if found.tzinfo is None:
        raise WrongUsage(f"{text!r} has no time zone: write {found.isoformat()}Z for UTC, or {found.isoformat()}+02:00")
    return found


def start(text: str) -> str | datetime:
    """The start of a new group: ``earliest``, ``latest``, or a time."""
    return text if text in ("earliest", "latest") else moment(text)


def ago(span: timedelta) -> datetime:
    """The time this long before now; the beginning of time, if that is longer ago."""
    try:
        return datetime.fromtimestamp(SystemClock().wall(), tz=UTC) - span
    except OverflowError:
        return datetime.fromtimestamp(0, tz=UTC)


def timestamp(microseconds: int) -> str:
    """A stored time, as people read it."""
    return datetime.fromtimestamp(microseconds / 1_000_000, tz=UTC).isoformat(timespec="milliseconds")
