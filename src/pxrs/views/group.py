"""What ``describe`` shows of a group: one line for each partition, one for each member, and a summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pxrs.model import Group, MemberRow, MemberState, Partition

NOTHING = "-"
"""What a member's line says where the member has said nothing."""


class Line:
    """A line of a table: fields by attribute, by name in brackets, and as a dictionary."""

    def __getitem__(self, name: str) -> Any:
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)

    def keys(self) -> list[str]:
        return [field.name for field in fields(self)]  # type: ignore[arg-type]  # every subclass is a dataclass

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())


@dataclass(frozen=True)
class PartitionLine(Line):
    """``checkpoint`` is the next offset to process, ``end`` the one that the next message will get.

    ``error`` says why the log could not be looked at. Then ``lag`` may be None, which means unknown, and so ``end``.
    """

    partition: int
    owner: str | None
    epoch: int
    checkpoint: int
    end: int | None
    lag: int | None
    lag_seconds: float | None = None
    paused: bool = False
    cause: str = ""
    error: str = ""


@dataclass(frozen=True)
class MemberLine(Line):
    """``idle``: it stands by, because there are more members than partitions.

    ``app``, ``ui`` and ``jvm`` are of a Spark application: its id, the address of its web page, the JVM's process id.
    """

    member: str
    state: str
    partitions: tuple[int, ...]
    leader: bool
    idle: bool
    host: str
    pid: str
    engine: str
    joined: float
    app: str = NOTHING
    ui: str = NOTHING
    jvm: str = NOTHING

    @property
    def is_spark(self) -> bool:
        return any(value != NOTHING for value in (self.app, self.ui, self.jvm))


class GroupView(list[PartitionLine]):
    """The lines of all partitions, and what is true of the group as a whole."""

    def __init__(
        self, queue: str, group: str, row: Group, lines: Iterable[PartitionLine], members: Sequence[MemberLine]
    ) -> None:
        super().__init__(lines)
        self.queue = queue
        self.group = group
        self.generation = row.generation
        self.assignor = row.assignor
        self.reason = row.reason
        self.leader = row.leader.id if row.leader else None
        self.members = list(members)

    @property
    def total_lag(self) -> int:
        """Of all partitions. One whose lag is unknown counts as one message: it must not pass for done."""
        return sum(1 if line.lag is None else line.lag for line in self)

    @property
    def is_lag_known(self) -> bool:
        return all(line.lag is not None for line in self)

    @property
    def idle(self) -> list[str]:
        """Members that own nothing and stand by."""
        return [member.member for member in self.members if member.idle]

    @property
    def state(self) -> str:
        """Empty: no members. Rebalancing: some partition has no owner, or one that is not a member. Else Stable."""
        names = {member.member for member in self.members}
        if not names:
            return "Empty"
        return "Stable" if all(line.owner in names for line in self) else "Rebalancing"


def partition_line(
    row: Partition, start: int, end: int | None, lag_seconds: float | None, error: str = ""
) -> PartitionLine:
    """The line of one partition; ``error`` says why its log could not be looked at."""
    position = max(start, row.position) if row.checkpoint is None else row.position
    owner = row.owner.id if row.owner else None
    lag = None if end is None or (error and position > end) else max(0, end - position)
    return PartitionLine(
        row.number,
        owner,
        row.epoch,
        position,
        end,
        lag,
        0.0 if lag == 0 else lag_seconds,
        row.paused,
        row.cause.value,
        error,
    )


def member_lines(group: Group, members: Iterable[MemberRow], partitions: Iterable[Partition]) -> list[MemberLine]:
    owned: dict[str, list[int]] = {}
    for row in partitions:
        if row.owner is not None:
            owned.setdefault(row.owner.id, []).append(row.number)
    return [_member_line(group, member, tuple(owned.get(member.id, ()))) for member in members]


def _member_line(group: Group, member: MemberRow, owned: tuple[int, ...]) -> MemberLine:
    info: Mapping[str, str] = dict(member.info)
    return MemberLine(
        member=member.id,
        state=member.state.value,
        partitions=owned,
        leader=group.leader == member.owner,
        idle=not owned and member.state is MemberState.ACTIVE and len(group.members) > group.partitions,
        joined=member.joined,
        **{name: info.get(name) or NOTHING for name in ("host", "pid", "engine", "app", "ui", "jvm")},
    )
