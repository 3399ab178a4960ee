"""Work of a member to which nothing happens: what the tests' kinds of work share."""

from __future__ import annotations

from pxrs.errors import PxrsError
from pxrs.runtime.ports.counters import Counters


class CalmWork:
    """Never stalled, never blind, without troubles, and with nothing counted."""

    def extend(self, until: float) -> None:
        pass

    def is_stalled(self, now: float) -> bool:
        return False

    def is_blind(self) -> bool:
        return False

    def troubles(self) -> dict[int, PxrsError]:
        return {}

    def tally(self) -> Counters:
        return Counters()
