"""Time, as something that is handed in. Only this module may ask the machine what time it is."""

from __future__ import annotations

import time
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """Two clocks with different uses; never mix them.

    ``monotonic`` measures how long something took or has been silent, on this machine only.
    ``wall`` is for people: it is stored and shown, and no decision depends on it.
    """

    def monotonic(self) -> float: ...

    def wall(self) -> float: ...


# A laptop that sleeps, or a virtual machine that is suspended, stops CLOCK_MONOTONIC but not the leases
# that others hold against it. CLOCK_BOOTTIME goes on counting; where it is missing, monotonic must do.
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """The machine's own clocks. They are asked for every message, so these methods do nothing else."""

    monotonic = staticmethod(time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME))
    wall = staticmethod(time.time)
