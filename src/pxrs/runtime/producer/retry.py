"""Appending to a log that may be away for a while: the same batches with the same stamps, again and again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

import pyarrow as pa

from pxrs.errors import FORBIDDEN, Unavailable
from pxrs.io.clock import Clock
from pxrs.logs.base import Log, Stamp
from pxrs.settings import Settings

logger = logging.getLogger(__name__)

T = TypeVar("T")


def append_patiently(
    log: Log, batches: Mapping[int, pa.RecordBatch], stamps: Mapping[int, Stamp], settings: Settings, clock: Clock
) -> Mapping[int, int]:
    """Append, again while the log is unavailable, for ``send_timeout_ms``. Stamps make it safe: stored once at most."""
    return patiently(lambda: log.append(batches, stamps), settings, clock)


def patiently(
    work: Callable[[], T],
    settings: Settings,
    clock: Clock,
    seconds: float | None = None,
    given_up: threading.Event | None = None,
) -> T:
    """Repeat any work with a log that may be repeated, for this many seconds, if they are given.

    Where this user may not write it is not repeated, nor once it is ``given_up``.
    """
    given_up = given_up or threading.Event()
    deadline = clock.monotonic() + (settings.send_timeout_ms / 1000 if seconds is None else seconds)
    pause_ms = settings.backoff_ms
    while True:
        try:
            return work()
        except Unavailable as error:
            is_forbidden = getattr(error.__cause__, "errno", None) in FORBIDDEN
            if is_forbidden or given_up.is_set() or clock.monotonic() >= deadline:
                raise
            logger.warning("the log failed and is asked again in %d ms: %s", pause_ms, error)
        given_up.wait(pause_ms / 1000)
        pause_ms = min(2 * pause_ms, settings.backoff_max_ms)
