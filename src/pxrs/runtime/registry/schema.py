"""The rows of one group: their keys in a store, their formats, and what the absence of a row means.

Rows that are older than this process has seen are refused here (the rollback guard, at the end): a store can be
restored from a copy, fail over to a replica that lacks the last writes, or be wiped. Epochs that were granted would
then be granted again, to others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, NoReturn, TypeVar

from pxrs.errors import WentBack
from pxrs.model import Group, MemberRow, Partition, check_name
from pxrs.rules import row_format

N = TypeVar("N")
T = TypeVar("T")


class Keys:
    """The keys of one group's rows."""

    def __init__(self, prefix: str, queue: str, group: str) -> None:
        self.name = group
        self.base = f"{prefix}{check_name('queue', queue)}/{check_name('group', group)}/"
        self.group = f"{self.base}group"
        self.members = f"{self.base}member/"
        self.partitions = f"{self.base}partition/"
        self.targets = f"{self.base}target/"
        self.wake_rows = f"{self.base}bell/"


class RowKind(ABC, Generic[N, T]):
    """Rows of one kind: from a name to the key, from bytes to the row, and back.

    ``decode`` refuses a row that is older than this object has seen. Used by the one thread that reads the rows.
    """

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    @abstractmethod
    def key(self, name: N) -> str: ...

    @abstractmethod
    def name(self, key: str) -> N: ...

    @abstractmethod
    def decode(self, name: N, data: bytes) -> T: ...

    @abstractmethod
    def encode(self, row: T) -> bytes | None:
        """The bytes to store; None where the row shall be absent."""

    @abstractmethod
    def absent(self, name: N) -> T:
        """The row that counts as stored where none is; raises where one must be."""

    def ttl_ms(self, _row: T) -> int | None:
        """The time that the row lives without being written again; None: forever."""
        return None


class GroupRow(RowKind[str, Group | None]):
    """The one row that says what the group was made with, who leads it, and which target holds."""

    _last: Group | None = None

    def key(self, _name: str) -> str:
        return self.keys.group

    def name(self, _key: str) -> str:
        return self.keys.name

    def decode(self, name: str, data: bytes) -> Group:
        row = row_format.decode_group(name, data)
        if self._last is not None and row is not self._last:
            refuse_older_group(name, row, self._last)
        self._last = row
        return row

    def encode(self, row: Group | None) -> bytes | None:
        return None if row is None else row_format.encode_group(row)

    def absent(self, _name: str) -> None:
        return None


class MemberRows(RowKind[str, MemberRow | None]):
    """A row for each member: its life, its beat, its state."""

    def key(self, name: str) -> str:
        return f"{self.keys.members}{name}"

    def name(self, key: str) -> str:
        return key.rpartition("/")[2]

    def decode(self, name: str, data: bytes) -> MemberRow:
        return row_format.decode_member(name, data)

    def encode(self, row: MemberRow | None) -> bytes | None:
        return None if row is None else row_format.encode_member(row)

    def absent(self, _name: str) -> None:
        return None

    def ttl_ms(self, row: MemberRow | None) -> int | None:
        """A member that was put out must not be forgotten."""
        return None if row is None or row.is_evicted else row.patience_ms


class PartitionRows(RowKind[int, Partition]):
    """A row for each partition: its owner, its epoch, its checkpoint."""

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self._epochs: dict[int, int] = {}

    def key(self, number: int) -> str:
        return f"{self.keys.partitions}{number:05d}"

    def name(self, key: str) -> int:
        return int(key.rpartition("/")[2])

    def decode(self, number: int, data: bytes) -> Partition:
        row = row_format.decode_partition(number, data)
        seen = self._epochs.get(number, 0)
        if row.epoch != seen:
            refuse_older_partition(self.keys.name, row, seen)
            self._epochs[number] = row.epoch
        return row

    def encode(self, row: Partition) -> bytes:
        return row_format.encode_partition(row)

    def absent(self, number: int) -> NoReturn:
        raise missing(f"partition {number} of group {self.keys.name!r}")


def missing(what: str) -> WentBack:
    return WentBack(f"the registry row of {what} is missing: the store was wiped or damaged")


def last_part(key: str) -> str:
    return key.rpartition("/")[2]


# ---- the rollback guard ----------------------------------------------------------------------------------------------


def refuse_older_partition(group: str, row: Partition, epoch: int) -> None:
    """``epoch`` is the highest one that this process has seen in the row of this partition."""
    if row.epoch < epoch:
        raise WentBack(
            f"partition {row.number} of group {group!r} went back from epoch {epoch} to {row.epoch}: {_CAUSE}"
        )


def refuse_older_group(name: str, row: Group, last: Group) -> None:
    """``last`` is the row of this group as this process has seen it before."""
    if last.born and row.born and last.born != row.born:
        raise WentBack(f"group {name!r} was made anew: the registry store was wiped, or the group deleted")
    for what in ("generation", "leader_epoch"):
        before, found = getattr(last, what), getattr(row, what)
        if found < before:
            words = what.replace("_", " ")
            raise WentBack(f"group {name!r} went back from {words} {before} to {found}: {_CAUSE}")


_CAUSE = "the registry store has lost writes, or was restored from a copy"
