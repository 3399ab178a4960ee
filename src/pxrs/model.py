"""The nouns of PXRS: what is stored in the registry, and what a handler is given. No I/O, no clock.

An *offset* counts the messages of one partition, from 0. A *checkpoint* is always the offset of the
**next** message to process. A *version* belongs to the store and changes with every write; an *epoch* is
ours and changes with every change of ownership.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from pxrs.errors import BadName

__all__ = [
    "Batch",
    "Cause",
    "Grant",
    "Group",
    "MemberRow",
    "MemberState",
    "Message",
    "Owner",
    "Partition",
    "Range",
    "Tenure",
    "check_name",
]

EVICTED_LENGTH = 32
"""A group row remembers this many evicted incarnations."""

HISTORY_LENGTH = 8
"""A partition row remembers this many past owners."""

EVICTED = "evicted-"
"""The first letters of the incarnation of an evicted member; no process ever has such an incarnation."""

_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,198}[A-Za-z0-9_-])?")


def check_name(kind: str, name: object) -> str:
    """Return ``name`` if it is safe as a file name, a key in every store and a word on the command line."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    shown = repr(name) if len(repr(name)) <= 60 else repr(name)[:57] + "..."
    raise BadName(
        f"{kind} name {shown} is not usable: 1 to 200 letters, digits, '_', '-' and '.', "
        "not starting or ending with a dot, not starting with '-'"
    )


class Cause(StrEnum):
    """Why a partition row last changed hands; for people and for the checker, no rule depends on it."""

    CREATED = "created"
    CLAIM = "claim"
    RELEASE = "release"
    FORCED = "forced"
    SEEK = "seek"


class Owner(NamedTuple):
    """One start of a member: the id that people see, and the nonce of this start (the incarnation)."""

    id: str
    inc: str


class Grant(NamedTuple):
    """The right to work on a partition: born only from one's own successful claim, carried by every write."""

    partition: int
    owner: Owner
    epoch: int


class Range(NamedTuple):
    """The messages ``[start, end)`` of one partition, taken under this epoch."""

    partition: int
    start: int
    end: int
    epoch: int = 0

    @property
    def rows(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch that is processed, written and committed as a whole: ranges of partitions, and their owner.

    ``number`` counts the batches of one member's life; ``attempt`` the tries of one batch, from 1. ``log`` is the id
    of the queue's log. The epochs in the ranges are fencing tokens for outputs that can refuse older ones.
    """

    queue: str
    log: str
    group: str
    owner: Owner
    number: int
    ranges: tuple[Range, ...]
    attempt: int = 1

    @property
    def name(self) -> str:
        """Unique: no other try of any batch, of any member, ever has this name. Safe as a file name."""
        return f"{self.group}-{self.owner.inc[:12]}-{self.number:06d}.{self.attempt}"

    @property
    def member(self) -> str:
        return self.owner.id

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.ranges)

    @property
    def partitions(self) -> tuple[int, ...]:
        return tuple(part.partition for part in self.ranges)


class Tenure(NamedTuple):
    """One line of a partition's history: its owner, the first offset, the epoch, and the reason."""

    owner: str | None
    epoch: int
    since: float
    cause: str


class Partition(NamedTuple):
    """The registry's row for one partition. ``checkpoint`` is None until the first commit.

    ``note`` is written together with the checkpoint and kept until the next note, also over a change of owner: an
    output that is published by the commit leaves there what its next owner needs to finish or clear away.
    """

    number: int
    owner: Owner | None = None
    epoch: int = 0
    checkpoint: int | None = None
    cause: Cause = Cause.CREATED
    paused: bool = False
    note: str = ""
    history: tuple[Tenure, ...] = ()

    @property
    def position(self) -> int:
        """The offset where the next owner starts unless it asks for another one: the checkpoint, or the beginning."""
        return self.checkpoint or 0


class MemberState(StrEnum):
    """The state that a member reports. A stalled one beats but makes no progress; others get its partitions.

    A word that this version does not know was written by a later one. It is kept as it is, so that it is never
    written back as something else; such a member is alive, and gets no partitions.
    """

    ACTIVE = "active"
    STALLED = "stalled"
    LEAVING = "leaving"

    @classmethod
    def _missing_(cls, value: object) -> MemberState:
        state = str.__new__(cls, value)
        state._name_, state._value_ = "OTHER", str(value)
        return state

    @property
    def is_known(self) -> bool:
        return self.name in MemberState.__members__


@dataclass(frozen=True, slots=True)
class MemberRow:
    """The registry's row for one member. The beat is a counter: observers time it on their own clocks."""

    id: str
    inc: str
    beat: int = 0
    state: MemberState = MemberState.ACTIVE
    lease_ms: int = 10_000
    grace_ms: int = 0
    joined: float = 0.0
    info: tuple[tuple[str, str], ...] = ()
    seen: float = 0.0
    """The wall time of the last beat by the member's own clock, for people only: no rule depends on it. 0: not said."""
    parked: tuple[tuple[int, str], ...] = ()
    """Partitions of this member that wait for something to get better, each with the reason."""
    blind: bool = False
    """Whether the member reaches the registry, and not the log."""
    passed_over: int = 0
    """The number of dead letters for other groups that this member has passed over since it joined."""
    beat_ms: int = 0
    """The interval between its heartbeats, for people who wait for one. 0: not said; a third of the lease then."""

    @property
    def owner(self) -> Owner:
        return Owner(self.id, self.inc)

    @property
    def is_evicted(self) -> bool:
        """Whether an operator has put this member out: the row only keeps its process from coming back."""
        return self.inc.startswith(EVICTED)

    @property
    def patience_ms(self) -> int:
        """The time that an observer waits for a silent member before it plans without it."""
        return max(self.lease_ms, self.grace_ms)


@dataclass(frozen=True, slots=True)
class Group:
    """The registry's row for a whole group. ``target`` is the key of a write-once row: who should own what."""

    partitions: int
    hash: str
    reduce: str
    assignor: str = "sticky"
    generation: int = 0
    members: tuple[str, ...] = ()
    target: str | None = None
    reason: str = ""
    leader: Owner | None = None
    leader_epoch: int = 0
    log: str = ""
    """The id of the log that the checkpoints belong to."""
    born: str = ""
    """A random name, given when the group was made: one made again after a wipe has another."""
    evicted: tuple[str, ...] = ()
    """Lives of members that were put out, the last of them: one that was asleep meanwhile finds itself here."""


class Message(NamedTuple):
    """One message, as a handler receives it. Headers, id and time are made from the raw fields when asked for."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes
    timestamp_us: int
    raw_id: bytes | None = None
    raw_headers: Any = None
    tenant: str | None = None

    @property
    def id(self) -> str:
        """Unique over the whole queue: the producer's nonce and its running number."""
        return self.raw_id.hex() if self.raw_id else f"{self.partition}-{self.offset}"

    @property
    def timestamp(self) -> datetime:
        """The time at which the message was sent, by the sender's clock, in UTC."""
        return datetime.fromtimestamp(self.timestamp_us / 1_000_000, tz=UTC)

    @property
    def headers(self) -> dict[str, bytes]:
        """The headers by name; of two with one name the last."""
        return {pair["key"]: pair["value"] for pair in self.raw_headers or ()}

    @property
    def text(self) -> str:
        """The value as UTF-8 text."""
        return self.value.decode()

    def json(self) -> Any:
        """The value as parsed JSON."""
        return json.loads(self.value)


def with_history(row: Partition, at: float) -> Partition:
    """The row with its present owner, epoch and cause written down as the newest line of its history."""
    line = Tenure(row.owner.id if row.owner else None, row.epoch, at, row.cause.value)
    return row._replace(history=(*row.history, line)[-HISTORY_LENGTH:])
