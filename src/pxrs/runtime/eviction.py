"""Putting a member out: what is written where, and who takes it away again."""

from __future__ import annotations

from pxrs.errors import Conflict, NotFound
from pxrs.model import Group, MemberRow, Owner
from pxrs.rules import ownership
from pxrs.runtime.bell import Bell
from pxrs.runtime.rows import Rows


class Eviction:
    """The two rows that keep a member out.

    A mark in its own row fences its process at the next beat. The group row remembers its life, so that the mark can
    go once it has done its work: a process that was asleep meanwhile still finds that it was put out.
    """

    def __init__(
        self, name: str, groups: Rows[str, Group | None], members: Rows[str, MemberRow | None], bell: Bell
    ) -> None:
        self._name = name
        self._groups = groups
        self._members = members
        self._bell = bell

    def put_out(self, member: str, tombstone: str) -> None:
        found = self._known(self._members.read([member])[member].row, member)
        if not found.is_evicted:
            self._groups.change_one(self._name, lambda row: row and ownership.put_out(row, found.inc))

        def rule(row: MemberRow | None) -> MemberRow:
            if self._known(row, member).inc != found.inc:
                raise Conflict(f"member {member!r} was started anew at this very moment: look again, and repeat it")
            return ownership.evict(self._known(row, member), tombstone)

        self._members.change_one(member, rule, bell=self._bell)

    def clear_mark(self, me: Owner) -> None:
        """For one that was put out and has noticed: take the mark away, or its own row. A newer life's row stays."""

        def rule(row: MemberRow | None) -> None:
            if row is not None and not row.is_evicted:
                ownership.require_my_life(row, me)

        self._members.change_one(me.id, rule, bell=self._bell)

    def _known(self, row: MemberRow | None, member: str) -> MemberRow:
        if row is None:
            raise NotFound(f"there is no member {member!r} in group {self._name!r}")
        return row
