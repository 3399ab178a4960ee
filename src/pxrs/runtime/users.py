"""What works with a queue, as the queue sees it."""

from __future__ import annotations

from typing import Protocol

from pxrs.runtime.meter import Measured, Meter
from pxrs.runtime.work import Work


class Joined(Work, Measured, Protocol):
    """What an engine brings along when it joins a group."""

    def halt(self) -> None:
        """End as a crash would: nothing more is taken, nothing is flushed."""


class User(Protocol):
    """Something that works with a queue, and ends before it."""

    @property
    def meter(self) -> Meter: ...

    def stop(self) -> None: ...
