"""The registry of one group: every operation on it, once, over any store.

Who calls it owns the decision *when*; ``pxrs.rules`` owns *whether*; the store only compares and sets. Members,
the leader and the command line all go through here; nobody writes rows by hand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pxrs.errors import Conflict, Damaged, Fenced, NewerFormat, NotFound, PxrsError, Unknown
from pxrs.model import Grant, Group, MemberRow, MemberState, Owner, Partition, check_name
from pxrs.rules import ownership
from pxrs.rules.targets import Target
from pxrs.runtime.ports.sink import Join
from pxrs.runtime.registry.group_identity import GroupIdentity
from pxrs.runtime.registry.rows import WAY_OUT, Held, Rule
from pxrs.runtime.registry.schema import last_part, missing
from pxrs.runtime.registry.wake_row import WakeRow
from pxrs.stores.base import ABSENT, Swap, Verdict

Changed = dict[int, "Held[Partition] | PxrsError"]


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Checkpoints to store. With a note: all of them or none, in the sink's transaction if there is one.

    The note must be unique: by it an earlier try is recognised whose answer was lost, also when a partition has gone
    to another owner meanwhile. If the note has landed, the commit is done for all of its partitions.
    """

    positions: Mapping[Grant, int]
    note: str | None = None
    join: Join | None = None
    ends: Mapping[int, int] | None = None
    """The end of the log, if the caller knows it: no checkpoint may be beyond."""

    @property
    def all_or_none(self) -> bool:
        return self.note is not None


class Registry(GroupIdentity):
    """The rows of one group, and all that can be done with them.

    Two rows keep a member out. A mark in its own row fences its process at the next heartbeat. The group row remembers
    its life, so that the mark can go once it has done its work: a process that was asleep meanwhile still finds it.
    """

    # ---- members -------------------------------------------------------------------------------------------

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
        """Remove the wake-up row of a member whose own row is gone by itself."""
        WakeRow(self.store, self.keys.wake_rows + name).remove()

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
        """Remove the eviction, or the row, once the evicted member has seen it. A newer one's row stays."""

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
        return self._members.read_one(name)

    def look(self, name: str) -> tuple[Group | None, MemberRow | None]:
        """The group row and the row of one member, in one read."""
        return self._groups.read_with(self.group_name, self._members, name)

    def members(self) -> list[MemberRow]:
        """All registered members, sorted by id. One whose row cannot be read counts as gone: it cannot beat either."""
        found = self._members.scan_each(self.keys.members)
        return [held.row for held in found.values() if isinstance(held, Held) and held.row is not None]

    def members_each(self) -> Mapping[str, Held[MemberRow | None] | Damaged]:
        """The rows of all members by id; the error where a row cannot be read."""
        return self._members.scan_each(self.keys.members)

    def _known_member(self, row: MemberRow | None, name: str) -> MemberRow:
        if row is None:
            raise NotFound(f"there is no member {name!r} in group {self.group_name!r}")
        return row

    # ---- the leader -----------------------------------------------------------------------------------

    def elect(self, me: Owner, expected: Group) -> Grant:
        """Become the leader, if the group row still is the one that the decision was made on."""

        def rule(row: Group | None) -> Group:
            if row != expected:
                raise Conflict("the group changed while standing for leadership")
            return ownership.elect(expected, me)

        group = self._groups.change_one(self.group_name, rule).row
        assert group is not None
        return Grant(-1, me, group.leader_epoch)

    def publish(self, lead: Grant, target: Target, nonce: str, reason: str, stay: bool = True) -> Group:
        """Write the target under a name of its own, then point the group at it: that swap is the commit point."""
        key = f"{self.keys.targets}{lead.epoch:010d}-{nonce}"
        outcome = self.store.swap_each([Swap(key, ABSENT, target.encode())])[0]
        if outcome.verdict is not Verdict.DONE:
            raise Unknown(f"no answer to the write of {key}: {outcome.reason}")

        def rule(row: Group | None) -> Group:
            planned = ownership.publish(_present(row), lead, target.members, key, reason)
            return planned if stay else ownership.resign(planned, lead)

        group = self._groups.change_one(self.group_name, rule, wake=self.wake).row
        assert group is not None
        self._forget_targets(lead, key)
        return group

    def resign(self, lead: Grant) -> None:
        self._groups.change_one(self.group_name, lambda row: ownership.resign(_present(row), lead), wake=self.wake)

    def target(self, key: str) -> Target | None:
        """A target by its key. None means that it was replaced meanwhile: read the group again."""
        row = self.store.read([key])[0]
        try:
            return None if row is None else Target.decode(row.value)
        except NewerFormat:
            raise
        except Damaged as error:
            raise Damaged(f"{key}: {error}; {WAY_OUT}") from error

    def _forget_targets(self, lead: Grant, keep: str) -> None:
        """Targets of earlier leaders and earlier plans of this one: nobody will be pointed at them again."""
        old = [
            r
            for r in self.store.scan(self.keys.targets)
            if r.key != keep and last_part(r.key)[:10] <= f"{lead.epoch:010d}"
        ]
        self.store.swap_each([Swap(r.key, r.version, None) for r in old])

    # ---- partitions -----------------------------------------------------------------------------------

    def read_partitions(self, numbers: Sequence[int]) -> dict[int, Held[Partition]]:
        return self._partitions.read(numbers)

    def partitions(self) -> list[Partition]:
        """All partition rows, in order."""
        return [held.row for held in self._partitions.scan(self.keys.partitions).values()]

    def partitions_each(self) -> dict[int, Held[Partition] | Damaged]:
        """All partition rows by number; the error where a row cannot be read."""
        return self._partitions.scan_each(self.keys.partitions)

    def read_partitions_each(self, numbers: Sequence[int]) -> dict[int, Held[Partition] | Damaged]:
        return self._partitions.read_each(numbers)

    def readable_partitions(self) -> list[Partition]:
        """The partition rows that can be read, in order."""
        found = self._partitions.scan_each(self.keys.partitions)
        return [held.row for held in found.values() if isinstance(held, Held)]

    def partition(self, number: int) -> Partition:
        return self._partitions.read_one(number).row

    def change(
        self,
        rules: Mapping[int, Rule[Partition]],
        known: Mapping[int, Held[Partition]] | None = None,
        wake: bool = False,
    ) -> Changed:
        """Apply a rule to each of these partitions: an outcome for each, one spoiled row never spoils another."""
        return self._partitions.change(rules, known, self.wake if wake else None)

    def claim(self, numbers: Iterable[int], me: Owner, known: Mapping[int, Held[Partition]] | None = None) -> Changed:
        at = self._clock.wall()
        return self.change({n: lambda row: ownership.claim(row, me, at) for n in numbers}, known)

    def store_progress(self, request: CommitRequest, known: Mapping[int, Held[Partition]] | None = None) -> Changed:
        """Store checkpoints, each under the epoch of the grant it comes with; nothing else decides how.

        The answer has a row or an error for each partition. All or none: the error is raised, and the answer is empty.
        """
        rules = self._advances(request)
        if not request.all_or_none:
            return self._partitions.change(rules, known)
        try:
            self._store_together(request, rules)
        except Fenced:
            if not self._has_landed(request.note, rules):
                raise
        return {}

    def commit(
        self,
        positions: Mapping[Grant, int],
        known: Mapping[int, Held[Partition]] | None = None,
        ends: Mapping[int, int] | None = None,
    ) -> Changed:
        """Store the progress of several partitions, each judged alone."""
        return self.store_progress(CommitRequest(positions, ends=ends), known)

    def _store_together(self, request: CommitRequest, rules: Mapping[int, Rule[Partition]]) -> None:
        transaction = request.join() if request.join else None
        if transaction is None:
            self._partitions.change_all(rules)
        else:
            self._partitions.change_within(transaction, rules, lambda row: bool(row.note) and row.note == request.note)

    def _has_landed(self, note: str | None, numbers: Collection[int]) -> bool:
        """Whether one of the rows has the note of this very commit."""
        return bool(note) and any(held.row.note == note for held in self._partitions.read(numbers).values())

    def _advances(self, request: CommitRequest) -> dict[int, Rule[Partition]]:
        ends, note = request.ends or {}, request.note
        return {
            grant.partition: partial(
                ownership.advance, grant=grant, position=position, end=ends.get(grant.partition), note=note
            )
            for grant, position in request.positions.items()
        }

    def release(
        self, positions: Mapping[Grant, int | None], known: Mapping[int, Held[Partition]] | None = None
    ) -> Changed:
        """Give partitions up together with their final checkpoints."""
        release = partial(ownership.release, at=self._clock.wall())
        rules = {g.partition: partial(release, grant=g, position=position) for g, position in positions.items()}
        return self.change(rules, known, wake=True)

    def abandon(self, grant: Grant, position: int | None) -> Changed:
        at = self._clock.wall()
        return self.change({grant.partition: lambda row: ownership.abandon(row, grant, position, at)}, wake=True)

    def give_back(self, numbers: Iterable[int], me: Owner) -> Changed:
        at = self._clock.wall()
        return self.change({n: lambda row: ownership.give_back(row, me, at) for n in numbers}, wake=True)

    def force_release(self, owners: Mapping[int, Owner], known: Mapping[int, Held[Partition]] | None = None) -> Changed:
        """Take partitions from owners that are dead or late; a writer under the old epoch is fenced."""
        take = partial(ownership.force_release, at=self._clock.wall())
        return self.change({n: partial(take, owner=owner) for n, owner in owners.items()}, known, wake=True)

    def seek(self, positions: Mapping[int, int], ends: Mapping[int, int]) -> Changed:
        seek = partial(ownership.seek, at=self._clock.wall())
        rules = {n: partial(seek, position=position, end=ends.get(n)) for n, position in positions.items()}
        return self.change(rules, wake=True)

    def pause(self, numbers: Iterable[int], paused: bool) -> Changed:
        return self.change({n: lambda row: ownership.pause(row, paused) for n in numbers}, wake=True)

    # ---- waking each other ------------------------------------------------------------------------------

    def wait(self, mark: int, timeout: float) -> int:
        """Block until a member wakes the others, or the time is over. A wake-up is a hint: read the rows."""
        return self.store.wait(self.keys.wake_rows, mark, timeout)


def _present(group: Group | None) -> Group:
    if group is None:
        raise missing("group")
    return group
