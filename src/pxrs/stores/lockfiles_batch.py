"""Swaps that are judged together, and which process a member's row depends on."""

from __future__ import annotations

from pxrs.errors import PxrsError
from pxrs.model import MemberRow
from pxrs.rules.rows import decode_member
from pxrs.stores.base import ABSENT, CONFLICT, Outcome, Swap, done
from pxrs.stores.lockfiles_journal import Change
from pxrs.stores.lockfiles_life import Life, my_life
from pxrs.stores.lockfiles_place import Place
from pxrs.stores.lockfiles_rows import Stored
from pxrs.stores.marks import new_version


class Batch:
    """Swaps that are judged against the rows, one after the other, and become one record."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._now: dict[str, Stored | None] = {}
        self.before: dict[str, bytes | None] = {}
        self._changed: dict[str, None] = {}

    def swap(self, swap: Swap) -> Outcome:
        stored = self._stored(swap.key)
        if (stored.version if stored else ABSENT) != swap.expect:
            return CONFLICT
        if swap.value is None and stored is None:
            return done(ABSENT)
        version = ABSENT
        if swap.value is None:
            self._now[swap.key] = None
        else:
            version = new_version()
            self._now[swap.key] = Stored(version, bytes(swap.value), _life_for(swap, stored))
        self._changed[swap.key] = None
        return done(version)

    def changes(self) -> list[Change]:
        """What is to be written, if all that were judged done shall happen."""
        me = my_life()
        return [Change(key, self._now[key], me) for key in self._changed]

    def _stored(self, key: str) -> Stored | None:
        if key not in self._now:
            self._now[key] = stored = self._place.read(key)
            self.before[key] = stored.value if stored else None
        return self._now[key]


def _life_for(swap: Swap, before: Stored | None) -> Life | None:
    """The process that a row depends on: that of the member which registers. Operators write into its row, too."""
    member = _member_of(swap) if swap.ttl_ms is not None else None
    # One that has asked for time to come back gets it; a mark of eviction outlives the operator that made it.
    if member is None or member.is_evicted or member.grace_ms:
        return None
    earlier = _member_of(swap._replace(value=before.value)) if before else None
    return before.life if before and earlier and earlier.inc == member.inc else my_life()


def _member_of(swap: Swap) -> MemberRow | None:
    try:
        return decode_member(swap.key.rpartition("/")[2], bytes(swap.value or b""))
    except PxrsError:
        return None
