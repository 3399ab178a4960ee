"""Who of a group is alive, for people: told from the rows, and by a second look where they do not show it."""

from __future__ import annotations

import threading
from typing import NamedTuple

from pxrs.clock import Clock
from pxrs.errors import Damaged
from pxrs.model import MemberRow, MemberState
from pxrs.rules.liveness import Onlooker, Sign, beat_seconds
from pxrs.runtime.registry import Registry
from pxrs.runtime.rows import Held

LOOKS = 10
"""How often members are looked at while one waits for their next beat: who has moved is not waited for."""


class Vital(NamedTuple):
    """A member's row, and whether its process is dead. One that was put out is neither here nor dead."""

    row: MemberRow
    dead: bool

    @property
    def lives(self) -> bool:
        return not self.dead and not self.row.is_evicted

    @property
    def stays(self) -> bool:
        return self.lives and self.row.state is not MemberState.LEAVING


class Vitals:
    """Looks at the members of one group. Kept between looks, it waits for nobody whom it has watched long enough."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self.damaged: dict[str, Damaged] = {}
        self._registry = registry
        self._clock = clock
        self._onlooker = Onlooker()
        self._rows: list[MemberRow] = []

    def look(self, patient: bool = True) -> list[Vital]:
        """All members. Before one is called dead it is looked at again, a beat later; a healthy group costs no wait.

        Nobody waits for a member that says it is leaving: its row goes, or a later look tells. Who is not ``patient``
        waits for nothing. Those of whom it cannot be told yet count as alive.
        """
        self._see()
        undecided = self._undecided()
        awaited = {row.owner for row in undecided}
        pause = max(map(beat_seconds, undecided), default=0.0) / LOOKS
        for _ in range(LOOKS if patient and undecided else 0):
            threading.Event().wait(pause)
            self._see()
            undecided = self._undecided()
            if not undecided:
                break
        doubted = {row.id for row in undecided if row.owner in awaited} if patient else set()
        return [Vital(row, row.id in doubted or self._judge(row) is Sign.DEAD) for row in self._rows]

    def _see(self) -> None:
        found = self._registry.members_each()
        self.damaged = {name: error for name, error in found.items() if isinstance(error, Damaged)}
        self._rows = [held.row for held in found.values() if isinstance(held, Held) and held.row is not None]
        self._onlooker.see(self._rows, self._clock.monotonic())

    def _undecided(self) -> list[MemberRow]:
        staying = (row for row in self._rows if row.state is not MemberState.LEAVING and not row.is_evicted)
        return [row for row in staying if self._judge(row) is Sign.OPEN]

    def _judge(self, row: MemberRow) -> Sign:
        return self._onlooker.judge(row, self._clock.wall(), self._clock.monotonic())
