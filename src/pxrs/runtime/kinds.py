"""The three kinds of rows that a group has: what they are called, where they stand, and what their absence means."""

from __future__ import annotations

from typing import NoReturn

from pxrs.errors import WentBack
from pxrs.model import Group, MemberRow, Partition
from pxrs.rules import rows
from pxrs.runtime.keys import Keys
from pxrs.runtime.rows import Kind
from pxrs.runtime.seen import Seen


class Kinds:
    """The kinds of rows of one group, as one process reads them: what it has seen before counts."""

    def __init__(self, keys: Keys, seen: Seen) -> None:
        self._seen = seen
        self._group = keys.name
        self.group: Kind[str, Group | None] = Kind(
            key=lambda _: keys.group,
            name=lambda _: keys.name,
            decode=lambda name, data: seen.group(rows.decode_group(name, data)),
            encode=lambda row: None if row is None else rows.encode_group(row),
            absent=lambda _: None,
        )
        self.member: Kind[str, MemberRow | None] = Kind(
            key=keys.member,
            name=last_part,
            decode=rows.decode_member,
            encode=lambda row: None if row is None else rows.encode_member(row),
            absent=lambda _: None,
            ttl_ms=_patience,
        )
        self.partition: Kind[int, Partition] = Kind(
            key=keys.partition,
            name=lambda key: int(last_part(key)),
            decode=lambda number, data: seen.partition(rows.decode_partition(number, data)),
            encode=rows.encode_partition,
            absent=self._no_partition,
        )

    def _no_partition(self, number: int) -> NoReturn:
        raise missing(f"partition {number} of group {self._group!r}")


def _patience(row: MemberRow | None) -> int | None:
    """How long the row lives without a beat. That somebody was put out must not be forgotten."""
    return None if row is None or row.is_evicted else row.patience_ms


def missing(what: str) -> WentBack:
    return WentBack(f"the registry row of {what} is missing: the store was wiped or damaged")


def last_part(key: str) -> str:
    return key.rpartition("/")[2]
