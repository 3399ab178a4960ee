"""The group row: a group is made once, and refused when it is opened with other values, or over another log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial

from pxrs.errors import Mismatch, NotFound
from pxrs.io.clock import Clock
from pxrs.model import Group, Partition, check_name
from pxrs.rules import ownership
from pxrs.runtime.registry.rows import Rows, raise_first
from pxrs.runtime.registry.schema import GroupRow, Keys, MemberRows, PartitionRows
from pxrs.runtime.registry.wake_row import WakeRow
from pxrs.stores.base import Store


class GroupIdentity:
    """The base of a registry: it makes the group, and checks what the group was made with."""

    def __init__(
        self,
        store: Store,
        queue: str,
        group: str,
        clock: Clock,
        prefix: str = "/pxrs/",
        waker: str = "operator",
    ) -> None:
        self.store = store
        self.queue = queue
        self.group_name = group
        self.keys = Keys(prefix, queue, group)
        self._waker = check_name("member", waker)
        self._clock = clock
        self._groups = Rows(store, GroupRow(self.keys))
        self._partitions = Rows(store, PartitionRows(self.keys))
        self._members = Rows(store, MemberRows(self.keys))

    @cached_property
    def wake(self) -> WakeRow:
        """The row that this registry's user wakes the members with."""
        return WakeRow(self.store, self.keys.wake_rows + self._waker)

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
                self._begin_at(begin)
        assert found is not None
        self._check_like(found, Group(partitions, hash, reduce, assignor or "", log=log))
        return found

    def _begin_at(self, positions: Mapping[int, int]) -> None:
        seek = partial(ownership.seek, end=None, at=self._clock.wall())
        rules = {number: partial(seek, position=position) for number, position in positions.items()}
        raise_first(self._partitions.change(rules, wake=self.wake))

    def check(self, opened: Group) -> None:
        """Refuse a group that is there, and was made with other values or over another log. Writes nothing."""
        found = self.find_group()
        if found is not None:
            self._check_like(found, opened)

    def _check_like(self, found: Group, opened: Group) -> None:
        opened = replace(opened, assignor=opened.assignor or found.assignor)
        check_recorded(found, opened, self.queue, self.group_name)

    def find_group(self) -> Group | None:
        return self._groups.read_one(self.group_name).row

    def group(self) -> Group:
        found = self.find_group()
        if found is None:
            raise NotFound(f"there is no group {self.group_name!r} on queue {self.queue!r}")
        return found


def check_recorded(found: Group, opened: Group, queue: str, name: str) -> None:
    """Refuse to open a group with another partition count, hash or assignor, or over another log, than recorded."""
    for what in ("partitions", "hash", "reduce", "assignor"):
        recorded, wanted = getattr(found, what), getattr(opened, what)
        if wanted != recorded:
            raise Mismatch(f"group {name!r} was created with {what} = {recorded!r}, and is opened with {wanted!r}")
    if opened.log and found.log and found.log != opened.log:
        raise Mismatch(
            f"group {name!r} has consumed another log named {queue!r} (id {found.log!r}, this one has {opened.log!r}): "
            "its checkpoints mean nothing here. Give each queue a registry or prefix of its own, or delete the group"
        )
