"""The view of a group that ``describe`` shows: a line for each partition and each member, and a summary."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from pxrs.model import Group, MemberRow, MemberState, Partition
from pxrs.runtime.views.tables import Table, as_html

NOTHING = "-"
"""The text of a member's line for a fact that the member has not reported."""


DEAD, EVICTED, DAMAGED = "Dead", "evicted", "damaged"
"""States of members that do not live, as their lines say it."""

L = TypeVar("L", bound="Line")


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
    Where the registry's row is damaged, nothing else is known: ``epoch`` and ``checkpoint`` are -1 then. ``parked``
    says what the partition's owner waits for, while it tries again and again.
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
    parked: str = ""

    @property
    def is_damaged(self) -> bool:
        """Whether the registry's row of this partition cannot be read: nobody claims it until it is mended."""
        return self.epoch < 0

    @property
    def state(self) -> str:
        """damaged, parked, paused, free (nobody owns it) or owned."""
        if self.is_damaged:
            return "damaged"
        if self.parked:
            return "parked"
        return "paused" if self.paused else "owned" if self.owner else "free"


@dataclass(frozen=True)
class MemberLine(Line):
    """One member. ``idle``: it waits, because there are more members than partitions.

    ``state``: what the member says of itself; or Dead, if its process shows no life; evicted, if it was put out and
    has not noticed yet; damaged, if its row cannot be read. ``seen`` is the time of its last beat by its own clock,
    ``silent_seconds`` how long ago that is by ours; None if it has not said so, or if the clocks disagree.
    ``passed_over``: how many dead letters that were sent again for other groups it has passed over since it joined.
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
    seen: float | None = None
    silent_seconds: float | None = None
    passed_over: int = 0

    @property
    def lives(self) -> bool:
        return self.state not in (DEAD, EVICTED, DAMAGED)

    @property
    def stays(self) -> bool:
        """Whether it lives, and will go on working."""
        return self.lives and self.state != MemberState.LEAVING.value

    @property
    def is_spark(self) -> bool:
        return any(value != NOTHING for value in (self.app, self.ui, self.jvm))


class Lines(list[L]):
    """Lines that a notebook shows as a table."""

    kind: ClassVar[type[Line]]
    """The class of a line: the table has its headings without any line, too."""

    def _repr_html_(self) -> str:
        names = [field.name for field in fields(self.kind)]  # type: ignore[arg-type]  # as above
        return as_html(
            Table([name.replace("_", " ") for name in names], [[line[name] for name in names] for line in self])
        )


class MemberLines(Lines[MemberLine]):
    """The lines of all members of a group."""

    kind = MemberLine


class GroupView(Lines[PartitionLine]):
    """The lines of all partitions, and what is true of the group as a whole.

    ``dead_letters`` were put aside and not sent again since; None if they cannot be looked at now.
    """

    kind = PartitionLine

    def __init__(
        self,
        queue: str,
        group: str,
        row: Group,
        lines: Iterable[PartitionLine],
        members: Sequence[MemberLine],
        dead_letters: int | None = 0,
        oldest_letter_seconds: float | None = None,
    ) -> None:
        super().__init__(lines)
        self.queue = queue
        self.group = group
        self.generation = row.generation
        self.assignor = row.assignor
        self.reason = row.reason
        self.leader = row.leader.id if row.leader else None
        self.members = MemberLines(members)
        self.dead_letters = dead_letters
        self.oldest_letter_seconds = oldest_letter_seconds

    @property
    def living(self) -> list[MemberLine]:
        """The members whose processes show life."""
        return [member for member in self.members if member.lives]

    @property
    def is_left_alone(self) -> bool:
        """Whether messages wait, or may wait, and no member lives that will go on working."""
        return self.total_lag > 0 and not any(member.stays for member in self.members)

    @property
    def seen(self) -> float | None:
        """The time of the youngest beat, by its member's own clock."""
        return max((m.seen for m in self.members if m.seen is not None), default=None)

    @property
    def dead(self) -> list[MemberLine]:
        """The members whose processes have shown no life for a lease, and while they were looked at."""
        return [member for member in self.members if member.state == DEAD]

    @property
    def silent_seconds(self) -> float | None:
        """Seconds since the youngest beat, by the clocks; None if no member has said so, or if the clocks disagree."""
        return min((m.silent_seconds for m in self.members if m.silent_seconds is not None), default=None)

    @property
    def parked(self) -> list[PartitionLine]:
        """Partitions whose owners wait for something, and try again and again."""
        return [line for line in self if line.parked]

    @property
    def is_all_parked(self) -> bool:
        """Whether messages wait, and no partition that has some goes on."""
        behind = [line for line in self if line.lag != 0]
        return bool(behind) and all(line.parked for line in behind)

    @property
    def total_lag(self) -> int:
        """The lag of all partitions. One whose lag is unknown counts as one message: it must not pass for done."""
        return sum(1 if line.lag is None else line.lag for line in self)

    @property
    def is_lag_known(self) -> bool:
        return all(line.lag is not None for line in self)

    @property
    def idle(self) -> list[str]:
        """The members that own nothing and wait."""
        return [member.member for member in self.members if member.idle]

    @property
    def passed_over(self) -> int:
        """The number of dead letters for other groups that the present members have passed over."""
        return sum(member.passed_over for member in self.members)

    @property
    def state(self) -> str:
        """Empty: no members. Dead: none of them lives. Rebalancing: a living one does not own some partition yet."""
        names = {member.member for member in self.living}
        if not names:
            return "Dead" if self.dead else "Empty"
        return "Stable" if all(line.owner in names for line in self if not line.is_damaged) else "Rebalancing"

    def _repr_html_(self) -> str:
        facts = {
            "group": self.group, "queue": self.queue, "state": self.state, "members": len(self.living),
            "lag": self.total_lag if self.is_lag_known else "?", "dead letters": self.dead_letters,
        }  # fmt: skip
        return as_html(Table(list(facts), [list(facts.values())])) + super()._repr_html_()


def partition_line(
    row: Partition, start: int, end: int | None, lag_seconds: float | None, error: str = "", parked: str = ""
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
        parked,
    )


def damaged_line(partition: int, end: int | None, error: str) -> PartitionLine:
    """The line of a partition whose row in the registry cannot be read."""
    return PartitionLine(partition, None, -1, -1, end, None, error=error)


def parked_reasons(members: Iterable[MemberRow], partitions: Iterable[Partition]) -> dict[int, str]:
    """The reasons of parked partitions; a reason from a member that has lost the partition is old."""
    said = {(member.owner, partition): reason for member in members for partition, reason in member.parked}
    found = {row.number: said.get((row.owner, row.number)) for row in partitions if row.owner is not None}
    return {number: reason or "it does not say why" for number, reason in found.items() if reason is not None}


def member_lines(
    group: Group,
    members: Iterable[MemberRow],
    partitions: Iterable[Partition],
    dead: Collection[str] = (),
    wall: float = 0.0,
) -> MemberLines:
    """A line for each member; ``dead`` names those whose processes show no life, ``wall`` is the time now."""
    owned: dict[str, list[int]] = {}
    for row in partitions:
        if row.owner is not None:
            owned.setdefault(row.owner.id, []).append(row.number)
    return MemberLines(
        _member_line(group, member, tuple(owned.get(member.id, ())), member.id in dead, wall) for member in members
    )


def damaged_member(name: str) -> MemberLine:
    """The line of a member whose row cannot be read."""
    return MemberLine(name, DAMAGED, (), False, False, NOTHING, NOTHING, NOTHING, 0.0)


def _member_line(group: Group, member: MemberRow, owned: tuple[int, ...], dead: bool, wall: float) -> MemberLine:
    info: Mapping[str, str] = dict(member.info)
    silent = wall - member.seen if member.seen else None
    return MemberLine(
        member=member.id,
        state=EVICTED if member.is_evicted else DEAD if dead else member.state.value,
        partitions=owned,
        leader=group.leader == member.owner,
        idle=not (owned or dead) and member.state is MemberState.ACTIVE and len(group.members) > group.partitions,
        joined=member.joined,
        seen=member.seen or None,
        silent_seconds=silent if silent is not None and silent >= 0 else None,
        passed_over=member.passed_over,
        **{name: info.get(name) or NOTHING for name in ("host", "pid", "engine", "app", "ui", "jvm")},
    )
