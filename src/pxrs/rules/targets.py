"""A target: who should own which partition, as the leader writes it down and the members read it."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pxrs.errors import BadSetting, Damaged, NewerFormat
from pxrs.settings import MAX_PARTITIONS

NOBODY = -1
MAX_MEMBERS = 65_535
FORMAT = 1
_NOBODY = 0xFFFF
"""The stored form of NOBODY: the one 16-bit number that stands for no member."""


@dataclass(frozen=True, slots=True)
class Target:
    """Says who should own what: for each partition the index of its owner among the sorted members, or NOBODY."""

    members: tuple[str, ...]
    owners: tuple[int, ...]

    @classmethod
    def from_owners(cls, partitions: int, owners: Mapping[int, str], members: Iterable[str] = ()) -> Target:
        """Make a target from a table partition → member; ``members`` adds those who own nothing."""
        names = sorted_members({*owners.values(), *members})
        place = {name: number for number, name in enumerate(names)}
        placed = (place[owners[p]] if p in owners else NOBODY for p in range(partitions))
        return cls(names, tuple(placed))

    @property
    def partitions(self) -> int:
        return len(self.owners)

    def owner(self, partition: int) -> str | None:
        """The member that should own a partition."""
        place = self.owners[partition]
        return None if place == NOBODY else self.members[place]

    def names(self) -> list[str | None]:
        """The member that should own each partition."""
        return [None if place == NOBODY else self.members[place] for place in self.owners]

    def of(self, member: str) -> list[int]:
        """The partitions of one member, ascending; none if it is not a member."""
        if member not in self.members:
            return []
        place = self.members.index(member)
        return [partition for partition, owner in enumerate(self.owners) if owner == place]

    def shares(self) -> dict[str, list[int]]:
        """Every member with its partitions, idle ones included."""
        lists = held_by(self, self.members)
        return dict(zip(self.members, lists, strict=True))

    @property
    def idle(self) -> tuple[str, ...]:
        """The members that own nothing: they wait until a member leaves."""
        busy = set(self.owners)
        return tuple(name for place, name in enumerate(self.members) if place not in busy)

    def encode(self) -> bytes:
        """Encode the target for a write-once row: one JSON line, then the owners as zlib-packed 16-bit numbers.

        Equal targets give equal bytes.
        """
        head = {"format": FORMAT, "partitions": self.partitions, "members": self.members}
        places = (_NOBODY if owner == NOBODY else owner for owner in self.owners)
        packed = zlib.compress(struct.pack(f"<{self.partitions}H", *places))
        return json.dumps(head, separators=(",", ":")).encode() + b"\n" + packed

    @staticmethod
    @lru_cache(maxsize=16)  # a target never changes, and is read with every look at the group
    def decode(data: bytes) -> Target:
        """Decode the bytes that ``encode`` made; anything else is refused as damaged."""
        head, newline, packed = data.partition(b"\n")
        if not newline:
            raise _damaged("it has no head line")
        partitions, members = _read_head(head)
        places = struct.unpack(f"<{partitions}H", _unpacked(packed, 2 * partitions))
        owners = tuple(NOBODY if place == _NOBODY else place for place in places)
        if max(owners, default=NOBODY) >= len(members):
            raise _damaged("it names an owner that is no member")
        return Target(members, owners)


def sorted_members(members: Iterable[str]) -> tuple[str, ...]:
    """The ids, each once, in the order of their code points."""
    names = tuple(sorted(set(members)))
    if len(names) > MAX_MEMBERS:
        raise BadSetting(f"{len(names)} members are too many for one group: at most {MAX_MEMBERS}")
    return names


def held_by(target: Target, members: tuple[str, ...]) -> list[list[int]]:
    """The partitions of each of ``members`` in a target, ascending."""
    lists: dict[str, list[int]] = {name: [] for name in members}
    former = [lists.get(name) for name in target.members]
    for partition, owner in enumerate(target.owners):
        parts = None if owner == NOBODY else former[owner]
        if parts is not None:
            parts.append(partition)
    return list(lists.values())


def _read_head(line: bytes) -> tuple[int, tuple[str, ...]]:
    try:
        head: Any = json.loads(line)
        version, partitions, members = head["format"], head.get("partitions"), head.get("members")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _damaged("its head line cannot be read") from None
    if type(version) is not int or version < 1:
        raise _damaged(f"format {version!r}")
    if version > FORMAT:
        raise NewerFormat(f"the target row has format {version}; this version of PXRS reads up to {FORMAT}")
    if type(partitions) is not int or not 0 <= partitions <= MAX_PARTITIONS:
        raise _damaged(f"{partitions!r} partitions")
    return partitions, _read_members(members)


def _read_members(members: object) -> tuple[str, ...]:
    if not isinstance(members, list) or not all(isinstance(name, str) for name in members):
        raise _damaged("its members are no list of names")
    if members != sorted(set(members)):
        raise _damaged("its members are not in order")
    return tuple(members)


def _unpacked(packed: bytes, size: int) -> bytes:
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(packed, size + 1)
    except zlib.error:
        raise _damaged("its owners cannot be unpacked") from None
    if len(data) != size or not reader.eof or reader.unused_data:
        raise _damaged("its owners are not one for each partition")
    return data


def _damaged(why: str) -> Damaged:
    return Damaged(f"the target row is damaged: {why}")
