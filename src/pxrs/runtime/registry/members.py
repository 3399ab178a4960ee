"""The member rows: who takes part in the group, who leaves it, and who was put out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pxrs.errors import Conflict, Damaged, NotFound
from pxrs.io.clock import Clock
from pxrs.model import MemberRow, MemberState, Owner, check_name
from pxrs.rules import ownership
from pxrs.runtime.registry.group_identity import GroupIdentity
from pxrs.runtime.registry.rows import Held, Rows
from pxrs.runtime.registry.schema import MemberRows
from pxrs.runtime.registry.wake_row import WakeRow
from pxrs.stores.base import Store


class MemberRegistry(GroupIdentity):
    """The second part of a registry: it adds the members.

    Two rows keep a member out. A mark in its own row fences its process at the next heartbeat. The group row remembers
    its life, so that the mark can go once it has done its work: a process that was asleep meanwhile still finds it.
    """

    def __init__(
        self, store: Store, queue: str, group: str, clock: Clock, prefix: str = "/pxrs/", ringer: str = "operator"
    ) -> None:
        super().__init__(store, queue, group, clock, prefix, ringer)
        self._members = Rows(store, MemberRows(self.keys))

    def register(self, row: MemberRow) -> Held[MemberRow | None]:
        """Enter the group with a new life; an earlier life of the same id is thereby replaced."""
        check_name("member", row.id)
        return self._members.change_one(row.id, lambda _: row, wake=self.wake)

    def beat(self, mine: MemberRow, known: Held[MemberRow | None] | None) -> Held[MemberRow | None]:
        return self._members.change_one(mine.id, lambda row: ownership.beat(row, mine), known)

    def set_state(self, me: Owner, state: MemberState) -> Held[MemberRow | None]:
        return self._members.change_one(me.id, lambda row: ownership.set_state(row, me, state), wake=self.wake)

    def deregister(self, me: Owner) -> None:
        """Leave: remove the row, if it still is of this life."""

        def rule(row: MemberRow | None) -> None:
            if row is not None:
                ownership.require_my_life(row, me)

        self._members.change_one(me.id, rule)
        self.wake.remove()

    def remove_member(self, row: MemberRow) -> None:
        """Clear away a row that has not moved since it was judged dead."""

        def rule(now: MemberRow | None) -> None:
            if now != row:
                raise Conflict(f"member {row.id!r} moved")

        self._members.change_one(row.id, rule)
        self.remove_wake_row(row.id)

    def remove_wake_row(self, name: str) -> None:
        """For a member whose own row is gone by itself."""
        WakeRow(self.store, self.keys.bells + name).remove()

    def evict(self, name: str, tombstone: str) -> None:
        """Put a member out: its process is fenced at its next beat, its partitions go to others."""
        found = self._known_member(self.member(name).row, name)
        if not found.is_evicted:
            self._groups.change_one(self.group_name, lambda row: row and ownership.put_out(row, found.inc))

        def rule(row: MemberRow | None) -> MemberRow:
            if self._known_member(row, name).inc != found.inc:
                raise Conflict(f"member {name!r} was started anew at this very moment: look again, and repeat it")
            return ownership.evict(self._known_member(row, name), tombstone)

        self._members.change_one(name, rule, wake=self.wake)

    def clear_eviction(self, me: Owner) -> None:
        """For one that was put out and has noticed: take the mark away, or its own row. A newer life's row stays."""

        def rule(row: MemberRow | None) -> None:
            if row is not None and not row.is_evicted:
                ownership.require_my_life(row, me)

        self._members.change_one(me.id, rule, wake=self.wake)

    def drain(self, name: str) -> None:
        """Ask a member to leave cleanly."""
        self._members.change_one(
            name,
            lambda row: replace(self._known_member(row, name), state=MemberState.LEAVING),
            wake=self.wake,
        )

    def member(self, name: str) -> Held[MemberRow | None]:
        return self._members.read([name])[name]

    def members(self) -> list[MemberRow]:
        """All registered members, sorted by id. One whose row cannot be read counts as gone: it cannot beat either."""
        return [held.row for held in self.members_each().values() if isinstance(held, Held) and held.row is not None]

    def members_each(self) -> Mapping[str, Held[MemberRow | None] | Damaged]:
        """The rows of all members by id; the error where a row cannot be read."""
        return self._members.scan_each(self.keys.members)

    def _known_member(self, row: MemberRow | None, name: str) -> MemberRow:
        if row is None:
            raise NotFound(f"there is no member {name!r} in group {self.group_name!r}")
        return row
