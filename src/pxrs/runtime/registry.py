"""The registry of one group: every operation on it, once, over any store.

Who calls it owns the decision *when*; ``pxrs.rules`` owns *whether*; the store only compares and sets. Members,
the coordinator and the command line all go through here; nobody writes rows by hand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pxrs.clock import Clock
from pxrs.errors import Conflict, Damaged, Fenced, NewerFormat, NotFound, PxrsError, Unknown
from pxrs.model import (
    Grant,
    Group,
    MemberRow,
    MemberState,
    Owner,
    Partition,
    Tenure,
    check_name,
)
from pxrs.rules import ownership, rebalance
from pxrs.rules.targets import Target
from pxrs.runtime.bell import Bell
from pxrs.runtime.eviction import Eviction
from pxrs.runtime.joined import change_within
from pxrs.runtime.keys import Keys
from pxrs.runtime.kinds import Kinds, last_part, missing
from pxrs.runtime.recorded import check_recorded
from pxrs.runtime.rows import WAY_OUT, Held, Rows, Rule
from pxrs.runtime.seen import Seen
from pxrs.runtime.sink import Transaction
from pxrs.stores.base import ABSENT, Store, Swap, Verdict

Changed = dict[int, "Held[Partition] | PxrsError"]


class Registry:
    """The rows of one group, and all that can be done with them."""

    def __init__(
        self,
        store: Store,
        queue: str,
        group: str,
        clock: Clock,
        prefix: str = "/pxrs/",
        ringer: str = "operator",
    ) -> None:
        self.store = store
        self.queue = queue
        self.group_name = group
        self.keys = Keys(prefix, queue, group)
        self._clock = clock
        self.bell = Bell(store, self.keys.bells + check_name("member", ringer))
        kinds = Kinds(self.keys, Seen(group))
        self._groups = Rows(store, kinds.group)
        self._members = Rows(store, kinds.member)
        self._partitions = Rows(store, kinds.partition)
        self.eviction = Eviction(group, self._groups, self._members, self.bell)

    # ---- the group ------------------------------------------------------------------------------------

    def initialize(
        self,
        partitions: int,
        hash: str,
        reduce: str,
        assignor: str | None = None,
        log: str = "",
        born: str = "",
        begin: Mapping[int, int] | None = None,
    ) -> Group:
        """Create the group's rows if they are not there. Partition rows first: the group row says they all exist.

        ``born`` is a random name: if the answer has it, this call has made the group. ``begin`` are its checkpoints.
        """
        found = self.find_group()
        if found is None:
            created = Group(partitions, hash, reduce, assignor or "sticky", log=log, born=born)
            self._partitions.create({number: Partition(number) for number in range(partitions)})
            found = self._groups.change_one(self.group_name, lambda row: row or created).row
            if begin and found is not None and found.born == born:  # else somebody else has made it, and consumes
                raise_first(self.seek(begin, {}))
        assert found is not None
        self._check_like(found, Group(partitions, hash, reduce, assignor or "", log=log))
        return found

    def check(self, opened: Group) -> None:
        """Refuse a group that is there, and was made with other values or over another log. Writes nothing."""
        found = self.find_group()
        if found is not None:
            self._check_like(found, opened)

    def _check_like(self, found: Group, opened: Group) -> None:
        opened = replace(opened, assignor=opened.assignor or found.assignor)
        check_recorded(found, opened, self.queue, self.group_name)

    def find_group(self) -> Group | None:
        return self._groups.read([self.group_name])[self.group_name].row

    def group(self) -> Group:
        found = self.find_group()
        if found is None:
            raise NotFound(f"there is no group {self.group_name!r} on queue {self.queue!r}")
        return found

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

        group = self._groups.change_one(self.group_name, rule, bell=self.bell).row
        assert group is not None
        self._forget_targets(lead, key)
        return group

    def resign(self, lead: Grant) -> None:
        self._groups.change_one(self.group_name, lambda row: ownership.resign(_present(row), lead), bell=self.bell)

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

    # ---- members --------------------------------------------------------------------------------------

    def register(self, row: MemberRow) -> Held[MemberRow | None]:
        """Enter the group with a new life; an earlier life of the same id is thereby replaced."""
        check_name("member", row.id)
        return self._members.change_one(row.id, lambda _: row, bell=self.bell)

    def beat(self, mine: MemberRow, known: Held[MemberRow | None] | None) -> Held[MemberRow | None]:
        return self._members.change_one(mine.id, lambda row: ownership.beat(row, mine), known)

    def set_state(self, me: Owner, state: MemberState) -> Held[MemberRow | None]:
        return self._members.change_one(me.id, lambda row: ownership.set_state(row, me, state), bell=self.bell)

    def deregister(self, me: Owner) -> None:
        """Leave: remove the row, if it still is of this life."""

        def rule(row: MemberRow | None) -> None:
            if row is not None:
                ownership.require_my_life(row, me)

        self._members.change_one(me.id, rule)
        self.bell.remove()

    def remove_member(self, row: MemberRow) -> None:
        """Clear away a row that has not moved since it was judged dead."""

        def rule(now: MemberRow | None) -> None:
            if now != row:
                raise Conflict(f"member {row.id!r} moved")

        self._members.change_one(row.id, rule)
        self.silence(row.id)

    def silence(self, name: str) -> None:
        """Take away the bell of a member whose row is gone by itself."""
        Bell(self.store, self.keys.bells + name).remove()

    def evict(self, name: str, tombstone: str) -> None:
        """Put a member out: its process is fenced at its next beat, its partitions go to others."""
        self.eviction.put_out(name, tombstone)

    def drain(self, name: str) -> None:
        """Ask a member to leave cleanly."""
        self._members.change_one(
            name,
            lambda row: replace(self._known_member(row, name), state=MemberState.LEAVING),
            bell=self.bell,
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
        return [held.row for held in self.partitions_each().values() if isinstance(held, Held)]

    def partition(self, number: int) -> Partition:
        return self._partitions.read([number])[number].row

    def unowned(self) -> list[Partition]:
        return [row for row in self.partitions() if row.owner is None]

    def owned_by(self, name: str) -> list[Partition]:
        return [row for row in self.partitions() if row.owner is not None and row.owner.id == name]

    def expired(self, dead: Iterable[str] = ()) -> list[Partition]:
        """Partitions whose owner can no longer give them up: not registered, an earlier life, or judged dead."""
        members = {m.id: m for m in self.members()}
        gone = frozenset(dead)
        return [row for row in self.partitions() if rebalance.is_orphan(row, members, gone, None)]

    def checkpoint(self, number: int) -> int | None:
        return self.partition(number).checkpoint

    def history(self, number: int) -> tuple[Tenure, ...]:
        """The last owners of a partition: who, under which epoch, from when, why."""
        return self.partition(number).history

    def change(
        self,
        rules: Mapping[int, Rule[Partition]],
        known: Mapping[int, Held[Partition]] | None = None,
        ring: bool = False,
    ) -> Changed:
        """Apply a rule to each of these partitions: an outcome for each, one spoiled row never spoils another."""
        return self._partitions.change(rules, known, self.bell if ring else None)

    def claim(self, numbers: Iterable[int], me: Owner, known: Mapping[int, Held[Partition]] | None = None) -> Changed:
        at = self._clock.wall()
        return self.change({n: lambda row: ownership.claim(row, me, at) for n in numbers}, known)

    def commit(
        self,
        positions: Mapping[Grant, int],
        known: Mapping[int, Held[Partition]] | None = None,
        ends: Mapping[int, int] | None = None,
        note: str | None = None,
    ) -> Changed:
        """Store the progress of several partitions, each judged alone, under the epoch of the grant it comes with."""
        return self._partitions.change(self._advances(positions, ends, note), known)

    def commit_together(
        self,
        positions: Mapping[Grant, int],
        ends: Mapping[int, int] | None = None,
        note: str | None = None,
        transaction: Transaction | None = None,
    ) -> None:
        """Store the progress of several partitions all or none: for output that mixes them.

        ``note`` must be unique: by it an earlier try is recognised whose answer was lost, also when a partition has
        gone to another owner meanwhile. What had landed then is done, for all of them. A ``transaction`` of the same
        database holds output that must land with it.
        """
        rules = self._advances(positions, ends, note)
        try:
            if transaction is None:
                self._partitions.change_all(rules)
            else:
                change_within(transaction, self._partitions, rules, note)
        except Fenced:
            if not self._has_landed(note, rules):
                raise

    def _has_landed(self, note: str | None, numbers: Collection[int]) -> bool:
        """Whether one of the rows bears the note of this very commit."""
        return bool(note) and any(held.row.note == note for held in self._partitions.read(numbers).values())

    def _advances(
        self, positions: Mapping[Grant, int], ends: Mapping[int, int] | None, note: str | None
    ) -> dict[int, Rule[Partition]]:
        known = ends or {}
        return {
            grant.partition: partial(
                ownership.advance, grant=grant, position=position, end=known.get(grant.partition), note=note
            )
            for grant, position in positions.items()
        }

    def release(
        self, positions: Mapping[Grant, int | None], known: Mapping[int, Held[Partition]] | None = None
    ) -> Changed:
        """Give partitions up together with their final checkpoints."""
        at = self._clock.wall()

        def rule(grant: Grant, position: int | None, row: Partition) -> Partition:
            return ownership.release(row, grant, position, at)

        return self.change({g.partition: partial(rule, g, p) for g, p in positions.items()}, known, ring=True)

    def abandon(self, grant: Grant, position: int | None) -> Changed:
        at = self._clock.wall()
        return self.change({grant.partition: lambda row: ownership.abandon(row, grant, position, at)}, ring=True)

    def release_all(self, me: Owner) -> Changed:
        """Free everything that this life of a member still holds in the rows, checkpoints as they stand."""
        held = [row.number for row in self.readable_partitions() if row.owner == me]
        return self.give_back(held, me)

    def give_back(self, numbers: Iterable[int], me: Owner) -> Changed:
        at = self._clock.wall()
        return self.change({n: lambda row: ownership.give_back(row, me, at) for n in numbers}, ring=True)

    def force_release(self, owners: Mapping[int, Owner], known: Mapping[int, Held[Partition]] | None = None) -> Changed:
        """Take partitions from owners that are dead or late; whoever still writes under the old epoch is fenced."""
        at = self._clock.wall()

        def rule(owner: Owner, row: Partition) -> Partition:
            return ownership.force_release(row, owner, at)

        return self.change({n: partial(rule, owner) for n, owner in owners.items()}, known, ring=True)

    def seek(self, positions: Mapping[int, int], ends: Mapping[int, int]) -> Changed:
        at = self._clock.wall()

        def rule(position: int, row: Partition) -> Partition:
            return ownership.seek(row, position, ends.get(row.number), at)

        return self.change({n: partial(rule, position) for n, position in positions.items()}, ring=True)

    def pause(self, numbers: Iterable[int], paused: bool) -> Changed:
        return self.change({n: lambda row: ownership.pause(row, paused) for n in numbers}, ring=True)

    # ---- waking each other ------------------------------------------------------------------------------

    def wait(self, mark: int, timeout: float) -> int:
        """Block until somebody rings, or the time is over. A hint: whoever wakes reads the rows."""
        return self.store.wait(self.keys.bells, mark, timeout)


def raise_first(results: Changed) -> None:
    """Raise the first error among the results of single partitions."""
    for result in results.values():
        if isinstance(result, PxrsError):
            raise result


def _present(group: Group | None) -> Group:
    if group is None:
        raise missing("group")
    return group
