"""A streaming query as a member of a group: it plans what it owns, and gives partitions up between two batches.

The meaning of Spark's questions: ``latestOffset`` comes when the batch before it is over, and is in Spark's commit log.
``partitions`` comes for a batch that is in the offset log; if this process has not planned it, it is the replay of
a batch that an earlier life of the query has begun.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from pxrs.errors import Unavailable
from pxrs.logs.base import Log
from pxrs.model import Grant, Range, check_name
from pxrs.runtime.batches.held_partitions import HeldPartition
from pxrs.runtime.batches.planner import BatchPlanner, range_of
from pxrs.runtime.queue.queue import Queue
from pxrs.spark.read.options import StreamRequest
from pxrs.spark.read.ranges import offset_of
from pxrs.spark.read.task import ReadSpec
from pxrs.spark.stream.member import StreamMember, exit_on_sigterm, open_for
from pxrs.spark.stream.offsets import Offset, Planned, check_origin, continues, decode
from pxrs.spark.stream.plain_reader import IDLE_SECONDS, Limits, StreamReader
from pxrs.spark.stream.side_files import Identity, Sheet, SideFiles, SourceConfig

FIRST_CLAIMS_SECONDS = 2.0
"""The time that a new query waits for its first partitions before it answers; without them its first batch is empty."""


@dataclass
class StreamLife:
    """The parts that exist from the first question on: the member, its planner, and the side files."""

    member: StreamMember
    planner: StreamPlanner
    files: SideFiles
    plans: int = 0
    fenced: bool = False
    running: Sheet | None = None
    """The batch that Spark has been given, and has not come back from."""
    last: Identity | None = None
    """The batch that was over last."""
    unsaved: dict[Grant, int] = field(default_factory=dict)
    """The offsets that are done, and not in the registry yet."""


class GroupReader(StreamReader):
    """Answers Spark's questions for a query with ``pxrs.group.id``."""

    def __init__(self, request: StreamRequest, reading: ReadSpec) -> None:
        super().__init__(request, reading)
        self._queue: Queue | None = None
        self._initial: Planned | None = None
        self._life: StreamLife | None = None
        self._undo: Callable[[], None] = lambda: None
        self._pause = threading.Event()

    @property
    def queue(self) -> Queue:
        if self._queue is None:
            self._queue = open_for(self.request)
        return self._queue

    @property
    def log(self) -> Log:
        return self.queue.log

    # ---- Spark's questions ------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Plan nothing yet; but give the member a name, which it keeps as long as Spark's checkpoint lasts."""
        if self._initial is None:
            log, group = self.log.identity, self.request.group
            assert group is not None
            member = check_name("member", self.request.member or f"spark-{secrets.token_hex(5)}")
            self._initial = Planned(log.name, log.id, group, member)
        return self._initial.encode()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        before = self._decoded(start)
        life = self._alive(before)
        try:
            return self._next(life, before, limit) or start
        except Unavailable:
            if self.limits.ends is not None:
                raise  # to answer that nothing is new would end the query
            self._pause.wait(IDLE_SECONDS)  # the member says itself what troubles it; it will be asked again
            return start

    def _next(self, life: StreamLife, before: Planned, limit: ReadLimit) -> Offset | None:
        if life.running is not None:
            report = life.files.sink_report()
            self._finish(life, before, report is not None)
        elif before.ranges and life.last != before.identity:
            # Spark says that the last batch of an earlier life is over. What was not stored of it, is stored now.
            life.running = self._claimed_again(life, before)
            self._finish(life, before, before.fenced)
        self._save(life)
        ranges = self._plan(life, limit)
        if not ranges:
            return None
        life.plans += 1
        life.planner.planned(ranges)
        planned = replace(before, member=life.member.me.id, life=life.member.me.inc, number=life.plans)
        planned = replace(planned, fenced=life.fenced, ranges=ranges)
        life.running = Sheet(planned.identity, planned.life, ranges)
        return planned.encode()

    @cached_property
    def _fast_rows(self) -> int:
        return self.queue.settings.fast_rows

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        if start == end:
            return []
        planned = self._decoded(end)
        life = self._alive(planned)
        if life.running is None or life.running.plan != planned.identity:
            life.fenced = planned.fenced
            life.running = self._claimed_again(life, planned)
        life.files.write_sheet(life.running)
        tasks = self.tasks(life.running.ranges)
        if self.handed is not None:  # they were read here: what tasks pass over is not counted
            rows = sum(part.rows for part in life.running.ranges)
            life.member.shares.count(passed_over=rows - sum(batch.num_rows for batch in self.handed))
        return tasks

    def commit(self, end: Offset) -> None:  # noqa: ARG002 - comes one batch late: what is over is known already
        if self._life is not None:
            self._life.member.shares.heard()

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """The metrics of this source in StreamingQueryProgress."""
        if self._life is None:
            return None
        member, planner = self._life.member, self._life.planner
        ends = {str(partition): end for partition, end in sorted(planner.ends.items())}
        owned = member.shares.partitions
        return {self.log.identity.name: ends, "@member": member.me.id, "@owned": owned, "@lag": planner.lag}

    def stop(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            life.member.leave()
            life.files.remove()
        elif self._queue is not None:
            self._queue.close()
        self._undo()

    # ---- this life --------------------------------------------------------------------------------------------------

    def _decoded(self, offset: Offset) -> Planned:
        check_origin(offset, self.log.identity, self.request.group)
        return decode(offset)

    def _alive(self, planned: Planned) -> StreamLife:
        """The member; on the first question it joins, under the name in the offset."""
        if self._life is None:
            self._life = self._join(replace(planned, member=self.request.member or planned.member))
        self._life.member.shares.heard()
        self._life.member.check()
        return self._life

    def _join(self, planned: Planned) -> StreamLife:
        self._undo = exit_on_sigterm()
        files = SideFiles(os.getppid(), planned)
        files.remove()  # of a life before this one, in the same JVM
        files = SideFiles(os.getppid(), planned)
        files.write_places(SourceConfig(self.request.read.log, self.request.registry, self.request.settings))
        member = StreamMember(self.queue, self.request, planned.member, self.clock)
        life = StreamLife(member, StreamPlanner(member, self.request, self.limits), files, fenced=planned.fenced)
        member.shares.is_committed = lambda: _is_committed(life)
        settings = member.settings
        is_restart, is_short = bool(planned.ranges), self.limits.ends is not None
        patient = (settings.lease_ms + settings.revoke_timeout_ms) / 1000
        member.await_claims(patient if is_restart or is_short else FIRST_CLAIMS_SECONDS)
        return life

    # ---- one batch --------------------------------------------------------------------------------------------------

    def _plan(self, life: StreamLife, limit: ReadLimit) -> tuple[Range, ...]:
        """The next batch; waits a moment for messages, so that an idle query asks less often."""
        shares = life.member.shares
        shares.wake_event.clear()
        found = self._try(life, limit)
        if not found and self.limits.ends is None and shares.wake_event.wait(IDLE_SECONDS):
            found = self._try(life, limit)
        return found

    def _try(self, life: StreamLife, limit: ReadLimit) -> tuple[Range, ...]:
        report = life.files.sink_report()
        return life.member.shares.take(life.planner.plan(limit, report is not None and report.has_output))

    def _finish(self, life: StreamLife, before: Planned, fenced: bool) -> None:
        """The batch is over. What is done of it: all, for a sink that is not ours; else what the rows say."""
        done, shares = life.running, life.member.shares
        assert done is not None
        ends = {Grant(part.partition, life.member.me, part.epoch): part.end for part in done.ranges}
        if done.plan == before.identity:
            shares.advance(self._stored(life, ends) if fenced else ends)
            life.unsaved = {} if fenced else ends
        life.fenced = shares.stores_nothing = fenced
        life.running, life.last = None, before.identity
        shares.finish()

    def _save(self, life: StreamLife) -> None:
        """Store what is done before more is planned: a plan begins at the checkpoint, or no restart can judge it."""
        if life.unsaved:
            life.unsaved = life.member.store(life.unsaved)
        if life.unsaved:
            raise Unavailable(f"the registry does not take the progress of {sorted(g.partition for g in life.unsaved)}")

    def _stored(self, life: StreamLife, grants: dict[Grant, int]) -> dict[Grant, int]:
        """The offsets to which the sink's commits have brought these partitions."""
        rows = life.member.rows([grant.partition for grant in grants])
        current = {grant: rows[grant.partition] for grant in grants if rows[grant.partition].epoch == grant.epoch}
        return {grant: row.checkpoint for grant, row in current.items() if row.checkpoint is not None}

    # ---- after a restart --------------------------------------------------------------------------------------------

    def _claimed_again(self, life: StreamLife, planned: Planned) -> Sheet:
        """A batch of an earlier life, under the epochs of now; without what another member has had since."""
        shares = life.member.shares
        life.planner.begin_newcomers()
        rows = life.member.rows([part.partition for part in planned.ranges])
        again = []
        for part in planned.ranges:
            grant = shares.grant(part.partition)
            if grant is not None and continues(rows[part.partition], grant, part):
                again.append(part._replace(epoch=grant.epoch))
        taken = shares.take(again)
        dropped = {part.partition for part in planned.ranges} - {part.partition for part in taken}
        return Sheet(planned.identity, life.member.me.inc, taken, tuple(sorted(dropped)))


def _is_committed(life: StreamLife) -> bool:
    """Whether the sink has committed the running batch already: then a hand-over need not wait for Spark."""
    running, report = life.running, life.files.sink_report()
    return running is not None and report is not None and report.done == running.plan


# ---- what the next batch takes --------------------------------------------------------------------------------------


logger = logging.getLogger("pxrs.stream")


class StreamPlanner(BatchPlanner):
    """Plans for a member whose batches Spark asks for."""

    def __init__(self, member: StreamMember, request: StreamRequest, limits: Limits) -> None:
        super().__init__(
            log=member.queue.log, held=member.shares, settings=member.settings, submit=member.submit,
            report=member.report, start_of=self._start, end_of=limits.end, most=member.queue.store.max_atomic,
            logger=logger, ask_all_seconds=0,
        )  # fmt: skip
        self._shares = member.shares
        self._request = request
        self._limits = limits
        self._shown: set[Grant] = set()

    def plan(self, limit: ReadLimit, with_notes: bool) -> list[Range]:
        """The ranges of the next batch. ``with_notes``: also what a last owner may have left half published."""
        parts = self.choose(self.look(), lambda waiting: self._limits.rows(limit, waiting))
        if with_notes:
            room = self.most - len(parts)  # the others come with later batches
            parts += self._unpublished({part.partition for part in parts})[:room]
        return sorted(parts)

    def planned(self, ranges: tuple[Range, ...]) -> None:
        """Note the next batch."""
        self._limits.planned()
        self._shown |= {g for part in ranges if (g := self._shares.grant(part.partition)) is not None}

    def _unpublished(self, planned: set[int]) -> list[Range]:
        """Empty ranges: they make the sink look after partitions without new messages."""
        positions = self.held.takeable()
        left = (g for g in self._shares.with_notes() if g not in self._shown and g.partition not in planned)
        return [range_of(grant, positions[grant], 0) for grant in left if grant in positions]

    def _start(self, new: HeldPartition) -> int:
        if new.position is not None:
            return new.position
        read, number = self._request.read, new.grant.partition
        return offset_of(read.start, read, self.log, number, self.log.bounds(number))
