"""The operator's handle of a consumer group: look at it, move its checkpoints, pause it, put a member out."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from pxrs.errors import Conflict, Damaged, NotFound, OutOfRange, PxrsError, Refused, Unavailable
from pxrs.io.clock import Clock
from pxrs.logs.base import Log
from pxrs.model import EVICTED, Group, MemberRow, MemberState, Partition, Tenure
from pxrs.rules.assignment import check_assignor
from pxrs.rules.liveness import Onlooker, Sign, Watch, beat_seconds
from pxrs.rules.ownership import check_position
from pxrs.runtime.dead_letters.box import DeadLetters
from pxrs.runtime.delivery import messages_of
from pxrs.runtime.registry.registry import Registry
from pxrs.runtime.registry.rows import Held, raise_first
from pxrs.runtime.views.group import (
    GroupView,
    MemberLine,
    MemberLines,
    PartitionLine,
    damaged_line,
    damaged_member,
    member_lines,
    parked_reasons,
    partition_line,
)
from pxrs.runtime.views.tables import ranges
from pxrs.stores.base import Swap, Verdict

Place = int | str | datetime
"""The target of a seek: an offset, "earliest", "latest", or a time."""
Places = str | datetime | Mapping[int, Place]
"""The target of each partition, or one word or time for all of them."""
_LOOKS_PER_LEASE = 10
"""The interval at which a member that may be dead is looked at while its lease passes."""


class GroupHandle:
    """One group of one queue, for operators. Nothing here joins the group.

    ``record`` writes down that the log has this registry, ``check`` refuses one that is not the log's own.
    """

    def __init__(
        self,
        registry: Registry,
        log: Log,
        clock: Clock,
        record: Callable[[], object] = lambda: None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self._record = record
        self.name = registry.group_name
        self.registry = registry
        self._log = log
        self._clock = clock
        self.vitals = Vitals(registry, clock)
        retried = f"{registry.keys.base}dead-letters"
        self.dead_letters = DeadLetters(log, registry.store, retried, registry.group_name, clock, check)

    def __repr__(self) -> str:
        return f"<Group {self.name!r} of queue {self._log.identity.name!r}>"

    def create(self, at: Places = "earliest", assignor: str | None = None) -> dict[int, int]:
        """Make the group with these checkpoints, before anybody consumes; refused if it is there. Nothing joins it."""
        if self.registry.find_group() is not None:
            raise Refused(f"group {self.name!r} exists already; `pxrs group seek` moves its checkpoints")
        if assignor is not None:
            check_assignor(assignor)
        offsets, log, born = self.resolve(at), self._log.identity, secrets.token_hex(16)
        if missing := sorted(set(range(log.partitions)) - offsets.keys()):
            raise Refused(f"no offset is given for partitions {ranges(missing)}: name all {log.partitions}")
        self._record()
        found = self.registry.initialize(log.partitions, log.hash, log.reduce, assignor, log.id, born, offsets)
        if found.born != born:
            raise Refused(f"group {self.name!r} was made by somebody else in this moment; look at it with `describe`")
        return offsets

    def describe(self, patient: bool = True) -> GroupView:
        """One line for each partition: partition, owner, epoch, checkpoint, end, lag; and the group's summary.

        Before a member is called Dead it is looked at again, a beat later. Who is not ``patient`` does not wait for
        that: on the same handle the next call tells.
        """
        group = self.registry.group()
        vitals = self.vitals.look(patient)
        found = self.registry.partitions_each()
        rows = [held.row for held in found.values() if isinstance(held, Held)]
        parked = parked_reasons([vital.row for vital in vitals if vital.lives], rows)
        lines = [
            self._line(held.row, parked.get(number, "")) if isinstance(held, Held) else self._damaged(number, held)
            for number, held in found.items()
        ]
        members = self._member_lines(group, vitals, rows)
        return GroupView(self._log.identity.name, self.name, group, lines, members, *self._letters())

    def begin_to_watch(self) -> None:
        """Look at the members without waiting. A caller with many groups looks at all, and waits for one beat."""
        self.vitals.look(patient=False)

    def members(self, patient: bool = True) -> list[MemberLine]:
        """One line for each registered member; ``patient`` as in ``describe``."""
        group, vitals = self.registry.group(), self.vitals.look(patient)
        return self._member_lines(group, vitals, self.registry.readable_partitions())

    def _member_lines(self, group: Group, vitals: Sequence[Vital], rows: Sequence[Partition]) -> MemberLines:
        dead = [vital.row.id for vital in vitals if vital.dead]
        lines = member_lines(group, [vital.row for vital in vitals], rows, dead, self._clock.wall())
        return MemberLines([*lines, *map(damaged_member, self.vitals.damaged)])

    def _letters(self) -> tuple[int | None, float | None]:
        """The number of waiting dead letters and the age of the oldest; None where they cannot be looked at."""
        try:
            waiting = self.dead_letters.waiting()
        except PxrsError:
            return None, None
        return waiting.letters, waiting.age_seconds(self._clock.wall())

    def history(self, partition: int) -> tuple[Tenure, ...]:
        """The last owners of a partition: who, under which epoch, from when, why."""
        self._check([partition])
        return self.registry.partition(partition).history

    def seek(self, places: Places) -> dict[int, int]:
        """Set checkpoints, also of a running group: owners get a new epoch and go on at the new offset.

        ``{3: 120}`` names partitions; ``"earliest"``, ``"latest"`` or a time alone means all of them.
        """
        offsets = self.resolve(places)
        self.registry.group()
        ends = {p: self._log.bounds(p)[1] for p in offsets}
        raise_first(self.registry.seek(offsets, ends))
        return offsets

    def resolve(self, places: Places) -> dict[int, int]:
        """The offsets that these places mean now; refuses what is outside the log."""
        if isinstance(places, str | datetime):
            places = dict.fromkeys(range(self._log.identity.partitions), places)
        if not isinstance(places, Mapping):
            raise Refused(
                f"{places!r} does not name partitions: write {{3: 120}}; 'earliest', 'latest', a time mean all"
            )
        self._check(places)
        return {p: self._offset(p, place) for p, place in places.items()}

    def pause(self, partitions: Iterable[int] | None = None) -> None:
        """Let the owners keep these partitions (all, if none are named) but take no messages."""
        raise_first(self.registry.pause(self._check(partitions), True))

    def resume(self, partitions: Iterable[int] | None = None) -> None:
        """Let these partitions (all, if none are named) go on."""
        raise_first(self.registry.pause(self._check(partitions), False))

    def evict(self, member: str) -> None:
        """Put a member out at once: its process is fenced and stops, its partitions go to others.

        Where nobody else stays who could do it, its partitions are freed here, and the mark in its row is removed.
        """
        self.registry.evict(member, f"{EVICTED}{secrets.token_hex(8)}")
        if not any(vital.stays for vital in self.vitals.look()):
            self._clear_up_behind(member)

    def _clear_up_behind(self, member: str) -> None:
        """Free its partitions, and wait for a beat: a running process sees the eviction, and takes it away itself."""
        rows = self.registry.readable_partitions()
        raise_first(self.registry.force_release({r.number: r.owner for r in rows if r.owner and r.owner.id == member}))
        mark = self.registry.member(member).row
        pause = 0.0 if mark is None else beat_seconds(mark) / _LOOKS_PER_LEASE
        for _ in range(_LOOKS_PER_LEASE):
            if self.registry.member(member).row != mark:
                return
            threading.Event().wait(pause)
        if mark is not None and mark.is_evicted:
            with suppress(Conflict):  # somebody has come back, or has cleared up already
                self.registry.remove_member(mark)

    def drain(self, member: str) -> None:
        """Ask a member to leave cleanly."""
        self.registry.drain(member)

    def refuse_lost_log(self) -> None:
        """Raise BeyondEnd if a checkpoint is ahead of the log: a consumer up to the end would find no work."""
        for row in self.registry.partitions():
            if row.position > self._log.bounds(row.number)[1]:
                self._log.read(row.number, row.position, 1)  # raises the error that names the place

    def delete(self, force: bool = False) -> None:
        """Forget the group and its checkpoints. Refused while it has members.

        ``force``: first put out members that are dead. They are watched for that, as long as their lease lasts.
        """
        self.registry.group()
        members = [member.id for member in self._present_members()]
        if members and not force:
            raise Refused(
                f"group {self.name!r} has members: {', '.join(members)}; stop them first. If they are dead, put them "
                "out with `pxrs member evict`, or delete the group with `pxrs group delete --force`"
            )
        if members:
            self._remove_dead()
        self._forget()

    def _present_members(self) -> list[MemberRow]:
        return [member for member in self.registry.members() if not member.is_evicted]

    def _remove_dead(self) -> None:
        """Watch the members until all of them were silent for their lease; refused at the first sign of life."""
        watch = Watch()
        known = {(row.id, row.inc, row.beat) for row in self._present_members()}
        while rows := self._present_members():
            now = self._clock.monotonic()
            watch.see(rows, now)
            for row in rows:
                if (row.id, row.inc, row.beat) not in known:
                    raise Refused(f"group {self.name!r}: member {row.id!r} is alive; stop it first")
                if watch.is_dead(row, now):
                    with suppress(Conflict):  # it has moved after all: the next look tells
                        self.registry.remove_member(row)
            threading.Event().wait(watch.shortest_lease() / _LOOKS_PER_LEASE)

    def _forget(self) -> None:
        store, last = self.registry.store, self.registry.keys.group
        # The group row goes with the last rows: as long as it is there, a deletion that was cut short can be repeated.
        rows = sorted(store.scan(self.registry.keys.base), key=lambda row: row.key == last)
        for start in range(0, len(rows), store.max_atomic):
            part = rows[start : start + store.max_atomic]
            outcome = store.swap_all([Swap(row.key, row.version, None) for row in part])
            if outcome.verdict is not Verdict.DONE:
                raise Refused(f"group {self.name!r} was changed while it was being deleted; try again")

    def _line(self, row: Partition, parked: str) -> PartitionLine:
        start, end = row.position, None
        try:
            start, end = self._log.bounds(row.number)
            return partition_line(row, start, end, self._lag_seconds(row, start, end), parked=parked)
        except (Damaged, OutOfRange, Unavailable) as error:  # the other lines, and what is known, must still be seen
            return partition_line(row, start, end, None, str(error), parked)

    def _damaged(self, number: int, error: Damaged) -> PartitionLine:
        with suppress(PxrsError):
            return damaged_line(number, self._log.bounds(number)[1], str(error))
        return damaged_line(number, None, str(error))

    def _lag_seconds(self, row: Partition, start: int, end: int) -> float | None:
        """The time for which the next message to process has been waiting."""
        position = max(start, row.position)
        # Ahead of the end it raises: the log was cut or created anew.
        batch = self._log.read(row.number, position, 1) if position != end else None
        if batch is None:
            return None
        return max(0.0, self._clock.wall() - next(messages_of(batch, row.number)).timestamp_us / 1_000_000)

    def _offset(self, partition: int, place: Place) -> int:
        start, end = self._log.bounds(partition)
        if isinstance(place, datetime):
            if place.tzinfo is None:
                raise Refused(f"seek to {place}: a time needs its zone, as in datetime(..., tzinfo=UTC)")
            return self._log.offset_at(partition, int(place.timestamp() * 1_000_000))
        if isinstance(place, str):
            if place not in ("earliest", "latest"):
                raise Refused(f"seek to {place!r}: an offset, 'earliest', 'latest' or a datetime")
            return start if place == "earliest" else end
        check_position(partition, place)
        if not start <= place <= end:
            raise Refused(f"partition {partition}: {place} is outside the log, which holds {start} to {end}")
        return place

    def _check(self, partitions: Iterable[int] | None) -> list[int]:
        count = self._log.identity.partitions
        if partitions is not None and not isinstance(partitions, Iterable):
            raise Refused(f"{partitions!r} does not name partitions: write [3], or {{3: 120}} for a seek")
        numbers = list(range(count)) if partitions is None else list(partitions)
        for number in numbers:
            if type(number) is not int or not 0 <= number < count:
                raise NotFound(f"queue {self._log.identity.name!r} has no partition {number!r}: 0 to {count - 1}")
        return numbers


# ---- who of a group is alive ----------------------------------------------------------------------------------------


LOOKS = 10
"""The interval at which members are looked at while a caller waits for their next beat."""


class Vital(NamedTuple):
    """A member's row, and whether its process is dead. One that was put out is neither here nor dead."""

    row: MemberRow
    dead: bool

    @property
    def lives(self) -> bool:
        return not self.dead and not self.row.is_evicted

    @property
    def stays(self) -> bool:
        return self.lives and self.row.state is not MemberState.LEAVING


class Vitals:
    """Looks at the members of one group. Kept between looks, it waits for nobody whom it has watched long enough."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self.damaged: dict[str, Damaged] = {}
        self._registry = registry
        self._clock = clock
        self._onlooker = Onlooker()
        self._rows: list[MemberRow] = []

    def look(self, patient: bool = True) -> list[Vital]:
        """Look at all members. One that seems dead is looked at again, a beat later; a healthy group costs no wait.

        Nobody waits for a member that says it is leaving: its row goes, or a later look shows it. Without ``patient``
        nothing is waited for. Members whose state is not known yet count as alive.
        """
        self._see()
        undecided = self._undecided()
        awaited = {row.owner for row in undecided}
        pause = max(map(beat_seconds, undecided), default=0.0) / LOOKS
        for _ in range(LOOKS if patient and undecided else 0):
            threading.Event().wait(pause)
            self._see()
            undecided = self._undecided()
            if not undecided:
                break
        doubted = {row.id for row in undecided if row.owner in awaited} if patient else set()
        return [Vital(row, row.id in doubted or self._judge(row) is Sign.DEAD) for row in self._rows]

    def _see(self) -> None:
        found = self._registry.members_each()
        self.damaged = {name: error for name, error in found.items() if isinstance(error, Damaged)}
        self._rows = [held.row for held in found.values() if isinstance(held, Held) and held.row is not None]
        self._onlooker.see(self._rows, self._clock.monotonic())

    def _undecided(self) -> list[MemberRow]:
        staying = (row for row in self._rows if row.state is not MemberState.LEAVING and not row.is_evicted)
        return [row for row in staying if self._judge(row) is Sign.OPEN]

    def _judge(self, row: MemberRow) -> Sign:
        return self._onlooker.judge(row, self._clock.wall(), self._clock.monotonic())
