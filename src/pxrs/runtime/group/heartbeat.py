"""Sends a member's heartbeats: it joins, beats, and reports when it makes no progress or leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from pxrs.errors import PxrsError, masked
from pxrs.model import MemberRow, MemberState
from pxrs.rules import ownership
from pxrs.runtime.failures.error_summary import error_text
from pxrs.runtime.group.work import Work
from pxrs.runtime.ports.events import Report
from pxrs.runtime.registry.registry import Registry
from pxrs.runtime.registry.rows import Held
from pxrs.settings import Settings

PARKED_SHOWN = 64
PARKED_CHARACTERS = 200
"""The parked partitions, and the letters of each reason, that a row names: it is written with every beat."""


class Heartbeat:
    """The row of one member, kept alive. Fenced as soon as the row has a newer incarnation, or an eviction."""

    def __init__(
        self,
        registry: Registry,
        work: Work,
        row: MemberRow,
        settings: Settings,
        report: Report,
        wall: Callable[[], float],
    ) -> None:
        self.joined = False
        self.asked_to_leave = False
        self.confirmed_at = 0.0
        self.next_beat = 0.0
        self.alive_until = 0.0
        self.lapsed = False
        self._registry = registry
        self._work = work
        self._row = row
        self._me = row.owner
        self._settings = settings
        self._report = report
        self._wall = wall
        self._held: Held[MemberRow | None] | None = None
        self._leaving = False

    def keep(self, now: float) -> None:
        """Join, or beat: it is time (``next_beat``)."""
        if not self.joined:
            self._held = self._registry.register(self._as_of_now())
            self.joined = True
            self._confirmed(now)
            self._report("joined", {"member": self._row.id, "inc": self._row.inc})
        else:
            known, self._held = self._held, None
            self._held = self._registry.beat(self._as_of_now(), known)
            self._confirmed(now)
            self.look(self._held.row)
            self._show_progress(now)

    def _as_of_now(self) -> MemberRow:
        """This member's row as it is now, with facts for people, and whether it can read its log."""
        work, seen = self._work, self._wall()
        parked, passed_over = _parked(work.troubles()), work.tally().passed_over
        return replace(self._row, seen=seen, parked=parked, blind=work.is_blind(), passed_over=passed_over)

    def look(self, row: MemberRow | None) -> bool:
        """Read what others have written into this member's row. True: an operator asks it to leave."""
        if row is not None:
            ownership.require_my_life(row, self._me)
            self.asked_to_leave = row.state is MemberState.LEAVING
        return self.asked_to_leave

    def announce_leaving(self) -> None:
        if not self._leaving and not self.asked_to_leave:
            self._registry.set_state(self._me, MemberState.LEAVING)
        self._leaving = True

    def _confirmed(self, sent: float) -> None:
        """Counted from when the beat was sent: others can only have seen it later."""
        self.lapsed = self.lapsed or sent >= self.alive_until
        self.confirmed_at = sent
        self.next_beat = sent + self._settings.beat_ms / 1000
        self.alive_until = sent + self._settings.stop_taking_ms / 1000
        if not self.lapsed:
            self._work.extend(self.alive_until)

    def rows_were_read(self) -> None:
        """Go on after a silence that was too long: others may have taken partitions meanwhile."""
        if self.lapsed:
            self.lapsed = False
            self._work.extend(self.alive_until)

    def _show_progress(self, now: float) -> None:
        """Alive is not working: a member without progress says so, and the leader plans without it."""
        state = MemberState.STALLED if self._work.is_stalled(now) else MemberState.ACTIVE
        row = self._held.row if self._held else None
        if row is None or row.state in (state, MemberState.LEAVING) or not row.state.is_known:
            return
        self._row = replace(self._row, state=state)
        self._held = self._registry.set_state(self._me, state)
        self._report(state.value, {"member": self._row.id})


def _parked(troubles: Mapping[int, PxrsError]) -> tuple[tuple[int, str], ...]:
    """The parked partitions that the row names: not all of them, and not every word."""
    some = sorted(troubles.items())[:PARKED_SHOWN]
    return tuple((partition, masked(error_text(error))[:PARKED_CHARACTERS]) for partition, error in some)
