"""One member of a group: it beats, follows the target, commits, and hands partitions over.

``round`` does all that is due at one moment and says when to be called again; one thread calls it, so everything
that one process writes to one row is written in order. The partitions themselves are worked on elsewhere: by
``Work``, which knows nothing of rows.

A handle is born in one way only: from the success of this process's own claim.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from pxrs.errors import (
    BadCheckpoint,
    Conflict,
    Damaged,
    DuplicateMember,
    Fenced,
    PxrsError,
    Unavailable,
    Unknown,
    WentBack,
)
from pxrs.io.clock import Clock
from pxrs.model import Cause, Grant, Group, MemberRow, Owner, Partition
from pxrs.rules import ownership, rebalance
from pxrs.rules.rebalance import Mode, Step
from pxrs.rules.targets import Target
from pxrs.runtime.group.commits import Commits
from pxrs.runtime.group.heartbeat import Heartbeat
from pxrs.runtime.group.leader import Leader
from pxrs.runtime.group.work import Handle, Work
from pxrs.runtime.ports.events import Report
from pxrs.runtime.registry.registry import Registry
from pxrs.runtime.registry.rows import Held, is_bad_row
from pxrs.settings import Settings

FOLLOW_SECONDS = 0.05
"""The interval at which a leader looks at the rows while a rebalance is under way: claims wake nobody."""


class Member:
    """The protocol of one member. Not thread-safe on purpose: one thread calls ``round``."""

    def __init__(
        self,
        registry: Registry,
        work: Work,
        row: MemberRow,
        settings: Settings,
        clock: Clock,
        nonce: Callable[[], str],
        report: Report,
    ) -> None:
        self.me: Owner = row.owner
        self.leader = Leader(registry, self.me, settings, clock, nonce, report)
        self.handles: dict[int, Handle] = {}
        self.error: PxrsError | None = None
        self.damaged = Spoilt(row.id, report)
        self.gone = False
        self.finished = False
        """Whether there are no more rounds: it has left, or an error has ended it."""
        self._registry = registry
        self._work = work
        self._heartbeat = Heartbeat(registry, work, row, settings, report, clock.wall)
        self._settings = settings
        self._clock = clock
        self._report = report
        self.commits = Commits(registry, work, self.handles, settings, report, partial(self._drop, lost=True))
        self._group: Group | None = None
        self._target: Target | None = None
        self._doubtful: set[int] = set()
        self._trouble: PxrsError | None = None
        self.troubled_since: float | None = None
        """Since when the registry has not answered as it should, if that is so."""
        self._leaving_since: float | None = None
        self._polled = True
        self._looked = False
        self._next_poll = 0.0
        self._next_watch = 0.0

    # ---- what others call -----------------------------------------------------------------------------------

    def poll(self) -> None:
        """Look at the rows in the next round: another member has woken this one."""
        self._polled = True

    def leave(self) -> None:
        """Leave cleanly: drain, flush, release, go. The rounds go on until ``gone``."""
        if self._leaving_since is None:
            self._leaving_since = self._clock.monotonic()
            self._polled = True

    @property
    def _drained_by(self) -> float:
        """The time until which a leaving member waits for its handlers."""
        return (self._leaving_since or 0.0) + self._settings.drain_ms / 1000

    @property
    def is_leaving(self) -> bool:
        return self._leaving_since is not None

    @property
    def joined(self) -> bool:
        return self._heartbeat.joined

    @property
    def poll_seconds(self) -> float:
        return self._settings.poll_ms / 1000

    def beat_age(self, now: float) -> float:
        """Seconds since the registry confirmed the last beat."""
        return now - self._heartbeat.confirmed_at if self.joined else 0.0

    def round(self) -> float:
        """Do what is due; returns the monotonic time at which to be called again at the latest."""
        now = self._clock.monotonic()
        self._do_parts(now)
        if self.finished:
            self.commits.close()
        elif self._trouble is not None:
            self.troubled_since = now if self.troubled_since is None else self.troubled_since
            self._report("troubled", {"member": self.me.id, "error": str(self._trouble)})
            self._leave_anyway(now)
            return now + self._settings.beat_ms / 4000
        if self.troubled_since is not None:
            self._report("answered", {"member": self.me.id, "seconds": now - self.troubled_since})
            self.troubled_since = None
        return self._next_round(now)

    def _do_parts(self, now: float) -> None:
        """The six parts of a round. One that fails keeps no other from being done; some errors end this life."""
        parts = (self._keep_alive, self._commit_submitted, self._follow, self.commits.commit_due, self._coordinate,
                 self._finish_leaving)  # fmt: skip
        self._trouble = self.commits.trouble = None
        for part in parts:
            if self.finished:
                return
            try:
                part(now)
            except (Fenced, WentBack, BadCheckpoint) as error:
                self._give_up(error)
            except (Unavailable, Conflict, Unknown, Damaged) as error:
                if isinstance(error, Damaged) and not is_bad_row(error):
                    raise
                self._trouble = error
        self._trouble = self._trouble or self.commits.trouble

    # ---- staying alive ----------------------------------------------------------------------------------------

    def _keep_alive(self, now: float) -> None:
        heartbeat = self._heartbeat
        if now >= heartbeat.next_beat:
            heartbeat.keep(now)
        if heartbeat.lapsed:
            self._polled = True
        if heartbeat.asked_to_leave:
            self.leave()

    def _give_up(self, error: PxrsError) -> None:
        """End this incarnation: stop everything, flush nothing, release nothing, and do not come back by itself."""
        if type(error) is Fenced:
            error = DuplicateMember(str(error))
        for partition in list(self.handles):
            self._drop(partition, lost=True)
        self.error, self.finished = error, True
        if isinstance(error, Fenced):
            with suppress(PxrsError):  # the row has a newer life, or the store does not answer: the leader clears up
                self._registry.clear_eviction(self.me)
        self._report("fenced", {"member": self.me.id, "error": str(error)})

    # ---- following the target -----------------------------------------------------------------------------------

    def _follow(self, now: float) -> None:
        if not self._heartbeat.joined:
            return  # the row may still be an earlier life's: that is no reason to stop, it will be replaced
        if not (self._polled or now >= self._next_poll or self._has_drained()):
            return
        self._polled = False
        try:
            self._read_group()
            self._reconcile(now)
        except PxrsError:
            self._polled = True
            raise
        if self._heartbeat.lapsed:
            self._heartbeat.rows_were_read()
        self._looked = True
        self._next_poll = now + self._settings.poll_ms / 1000

    def _has_drained(self) -> bool:
        draining = [number for number, handle in self.handles.items() if handle.mode is Mode.DRAINING]
        return any(map(self._work.drained, draining))

    def _read_group(self) -> None:
        """The group row, this member's own row, and the target that the group row points to."""
        group, mine = self._registry.look(self.me.id)
        if group is None:
            raise WentBack(f"group {self._registry.group_name!r} has vanished: the registry store was wiped")
        ownership.require_not_put_out(group, self.me)
        if self._heartbeat.look(mine):
            self.leave()
        if group.target and (self._group is None or self._target is None or group.target != self._group.target):
            self._target = self._registry.target(group.target)
        if group.target is not None and self._target is None:
            self._polled = True  # only ever set here: "or" would overwrite a wake-up that comes in between
        self._group = group

    def _wanted(self) -> set[int]:
        if self._leaving_since is not None or self._target is None:
            return set()
        return set(self._target.of(self.me.id))

    def _reconcile(self, now: float) -> None:
        wanted = self._wanted()
        numbers = sorted(wanted | self.handles.keys() | self._doubtful)
        rows = self.damaged.sort_out(self._registry.read_partitions_each(numbers) if numbers else {})
        steps: defaultdict[Step, list[int]] = defaultdict(list)
        for number, (row, _) in rows.items():
            grant, mode, drained = None, None, False
            if handle := self.handles.get(number):
                grant, mode, drained = handle.grant, handle.mode, self._work.drained(number)
            steps[rebalance.next_step(row, self.me, grant, mode, number in wanted, drained)].append(number)
        if self.damaged or steps[Step.DROP]:
            lost = {number: False for number in self.damaged if number in self.handles}
            self._drop_lost(lost | {number: rows[number].row.cause is Cause.SEEK for number in steps[Step.DROP]})
        self._keep(steps[Step.KEEP], rows)
        going = steps[Step.RELEASE]
        if steps[Step.DRAIN]:
            going = [*self._drain(steps[Step.DRAIN]), *going]
        if going:
            self._release(going, rows)
        if steps[Step.GIVE_BACK]:
            self._give_back(steps[Step.GIVE_BACK])
        if steps[Step.CLAIM]:
            self._claim(steps[Step.CLAIM], rows, now)

    def _drop_lost(self, sought: Mapping[int, bool]) -> None:
        """Stop what is not ours any more; for each partition whether a seek has taken it."""
        for number, by_seek in sought.items():
            self._drop(number, lost=True, sought=by_seek)

    def _keep(self, numbers: list[int], rows: Mapping[int, Held[Partition]]) -> None:
        for number in numbers:
            handle, row = self.handles[number], rows[number].row
            handle.held = rows[number]
            if row.paused != handle.paused:
                handle.paused = row.paused
                self._work.pause(number, row.paused)

    def _drain(self, numbers: list[int]) -> list[int]:
        """Stop taking; returns those that had nothing running and can be released at once."""
        for number in numbers:
            handle = self.handles[number]
            if handle.mode is Mode.ACTIVE:
                handle.mode = Mode.DRAINING
                self._work.drain(number)
                self._report("draining", {"member": self.me.id, "partition": number})
        return [number for number in numbers if self._work.drained(number)]

    def _release(self, numbers: list[int], rows: Mapping[int, Held[Partition]]) -> None:
        positions: dict[Grant, int | None] = {}
        for number in numbers:
            self.handles[number].mode = Mode.RELEASING
            positions[self.handles[number].grant] = self._work.position(number)
        for number, result in self._registry.release(positions, {n: rows[n] for n in numbers}).items():
            self._after_release(number, result, positions[self.handles[number].grant])

    def _after_release(self, number: int, result: Held[Partition] | PxrsError, position: int | None) -> None:
        if isinstance(result, WentBack):
            raise result
        if isinstance(result, Fenced):
            self._drop(number, lost=True, sought=result.by_seek)
        elif isinstance(result, Held):
            epoch = self.handles[number].grant.epoch
            self._drop(number, lost=False)
            facts = {"member": self.me.id, "partition": number, "epoch": epoch, "position": position}
            self._report("released", facts)
        else:
            self._trouble, self._polled = result, True

    def _give_back(self, numbers: list[int]) -> None:
        for number, result in self._registry.give_back(numbers, self.me).items():
            if isinstance(result, Held | Conflict):
                self._doubtful.discard(number)

    def _claim(self, numbers: list[int], rows: Mapping[int, Held[Partition]], now: float) -> None:
        if self._clock.monotonic() >= self._heartbeat.alive_until:
            return
        self._doubtful.update(numbers)  # until the answer is here: the call may fail when some are claimed already
        for number, result in self._registry.claim(numbers, self.me, {n: rows[n] for n in numbers}).items():
            in_time = self._clock.monotonic() < self._heartbeat.alive_until
            if isinstance(result, Held) and in_time:
                self._start(number, result, now)
            elif isinstance(result, Held | Unknown):
                # No answer, or one that came after the lease: no handle. The row is looked at and claimed again.
                self._doubtful.add(number)
                self._polled = True
                self._trouble = result if isinstance(result, Unknown) else self._trouble
            else:
                self._doubtful.discard(number)

    def _start(self, number: int, held: Held[Partition], now: float) -> None:
        """The checkpoint comes from the very row that was swapped: nobody can have written since."""
        row = held.row
        assert row is not None
        grant = Grant(number, self.me, row.epoch)
        self._doubtful.discard(number)
        self.handles[number] = Handle(grant, held, row.checkpoint, now, paused=row.paused)
        facts = {"member": self.me.id, "partition": number, "epoch": row.epoch, "checkpoint": row.checkpoint}
        self._report("claimed", facts)
        self._work.start(grant, row.checkpoint, row.paused, row.note)

    def _drop(self, number: int, lost: bool, sought: bool = False) -> None:
        handle = self.handles.pop(number)
        self._work.stop(number, lost)
        if lost:
            self._polled = True  # it may be free for us again at once: a seek does that
            kind = "sought" if sought else "lost"
            self._report(kind, {"member": self.me.id, "partition": number, "epoch": handle.grant.epoch})

    # ---- committing, leading and leaving ------------------------------------------------------------------------

    def _commit_submitted(self, now: float) -> None:
        if self.commits.submitted and self.commits.serve(now):
            self._polled = True

    def _coordinate(self, now: float) -> None:
        """Watch the others at the pace of the beats; if the group changed, look at it at once."""
        if self._group is None or self._leaving_since is not None:
            return
        if not (self._looked or self.leader.is_busy or now >= self._next_watch):
            return
        changed = self.leader.round(self._group, self._looked)
        self._looked = False
        self._next_watch = self.leader.next_watch(now)
        if changed:
            self._polled = True

    def _finish_leaving(self, now: float) -> None:
        if self._leaving_since is None:
            return
        if not self.joined:
            self.gone = self.finished = True
            return
        self._heartbeat.announce_leaving()
        if self.handles and now < self._drained_by:
            return
        self._abandon_rest()
        if self._group is not None and (group := self._registry.find_group()) is not None:
            self.leader.leave(group, now)
        self._registry.deregister(self.me)
        self.gone = self.finished = True
        self._report("left", {"member": self.me.id})

    def _leave_anyway(self, now: float) -> None:
        """Leave without the registry's answer: it must not hold a leaving member forever; its lease runs out."""
        patience = (self._settings.drain_ms + self._settings.lease_ms) / 1000
        if self._leaving_since is not None and now - self._leaving_since > patience:
            for number in list(self.handles):
                self._drop(number, lost=True)
            self.gone = self.finished = True
            self._report("left", {"member": self.me.id})

    def _abandon_rest(self) -> None:
        """Handlers that did not end in time lose their partitions: what they still do does not count."""
        for number, handle in list(self.handles.items()):
            position = self._work.position(number)
            self._drop(number, lost=True)
            self._registry.abandon(handle.grant, position)

    def _next_round(self, now: float) -> float:
        if self._polled or self.finished:
            return now
        times = [self._heartbeat.next_beat, self._next_poll, self.commits.next_due]
        times.append(self._next_watch if self._leaving_since is None else self._drained_by)
        if self.leader.is_busy:
            times.append(now + FOLLOW_SECONDS)
        return max(now, min(times))


# ---- partitions whose rows cannot be read ---------------------------------------------------------------------------


class Spoilt(dict[int, Damaged]):
    """The damaged rows that were found at the last look, with the reason for each."""

    def __init__(self, member: str, report: Report) -> None:
        super().__init__()
        self._member = member
        self._report = report

    def sort_out(self, found: Mapping[int, Held[Partition] | Damaged]) -> dict[int, Held[Partition]]:
        """The rows that can be read. What the others hold can be neither claimed nor committed: they wait."""
        known, rows = set(self), {}
        self.clear()
        for number, held in found.items():
            if isinstance(held, Held):
                rows[number] = held
                continue
            self[number] = held
            if number not in known:
                self._report("damaged", {"member": self._member, "partition": number, "error": str(held)})
        return rows
