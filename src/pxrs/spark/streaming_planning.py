"""What a member's next batch takes: of each partition in its hands, from its position on, as much as is allowed."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyspark.sql.streaming.datasource import ReadLimit

from pxrs.errors import Damaged, Fenced, PxrsError, Unavailable
from pxrs.model import Grant, Range
from pxrs.rules.batches import share_out
from pxrs.runtime.gaps import place_in_log, tell_of_gap
from pxrs.runtime.publishing import store_start
from pxrs.runtime.shares import Share
from pxrs.spark.offsets import offset_of
from pxrs.spark.options import StreamRequest
from pxrs.spark.streaming_limits import Limits
from pxrs.spark.streaming_member import StreamMember

logger = logging.getLogger("pxrs.stream")


class Planner:
    """Looks at the log and at the shares of one member. Writes nothing but where a partition begins."""

    def __init__(self, member: StreamMember, request: StreamRequest, limits: Limits) -> None:
        self._member = member
        self._shares = member.shares
        self._log = member.queue.log
        self._request = request
        self._limits = limits
        self._watched: dict[Grant, Callable[[], None]] = {}
        self._shown: set[Grant] = set()
        self._turn = 0
        self.ends: dict[int, int] = {}
        """Where the logs of the partitions in hand ended when last looked at."""
        self.lag = 0

    def plan(self, limit: ReadLimit, with_notes: bool) -> list[Range]:
        """The ranges of the next batch. ``with_notes``: also what a last owner may have left half published."""
        self.begin_newcomers()
        self._watch()
        waiting = {grant: found for grant, position in self._takeable() if (found := self._waiting(grant, position))}
        counts = {grant: end - position for grant, (position, end) in waiting.items()}
        self.lag = sum(counts.values())
        chosen = self._choose([grant for grant, count in counts.items() if count])
        rows = self._limits.rows(limit, sum(counts[grant] for grant in chosen))
        shares = share_out({g.partition: counts[g] for g in chosen}, rows) if rows else {}
        parts = [_range(g, waiting[g][0], shares[g.partition]) for g in chosen if g.partition in shares]
        if with_notes:
            room = self._member.queue.store.max_atomic - len(parts)  # the others come with later batches
            parts += self._unpublished({part.partition for part in parts})[:room]
        return sorted(parts)

    def planned(self, ranges: tuple[Range, ...]) -> None:
        """This is the next batch."""
        self._limits.planned()
        self._shown |= {g for part in ranges if (g := self._shares.grant(part.partition)) is not None}

    def _takeable(self) -> list[tuple[Grant, int]]:
        return sorted(self._shares.takeable().items())

    def _choose(self, grants: list[Grant]) -> list[Grant]:
        """More partitions than one commit can hold take turns."""
        most = self._member.queue.store.max_atomic
        if len(grants) <= most:
            return grants
        self._turn %= len(grants)
        chosen = [*grants[self._turn :], *grants[: self._turn]][:most]
        self._turn += most
        return sorted(chosen)

    def _unpublished(self, planned: set[int]) -> list[Range]:
        """Empty ranges: they bring the sink to look after partitions in which nothing is new."""
        positions = self._shares.takeable()
        left = (g for g in self._shares.with_notes() if g not in self._shown and g.partition not in planned)
        return [_range(grant, positions[grant], 0) for grant in left if grant in positions]

    # ---- one partition ----------------------------------------------------------------------------------------------

    def begin_newcomers(self) -> None:
        for share in self._shares.newcomers():
            self._begin(share)

    def _begin(self, share: Share) -> None:
        number = share.grant.partition
        try:
            chosen = self._start_of(number) if share.position is None else share.position
            position, _ = place_in_log(self._log, self._member.settings, number, chosen)
        except (Unavailable, Damaged) as error:
            self._park(number, error)
            return
        if position == share.position or self._move(share.grant, chosen, position):
            self._shares.begin(share.grant, position)

    def _start_of(self, partition: int) -> int:
        read = self._request.read
        return offset_of(read.start, read, self._log, partition, self._log.bounds(partition))

    def _move(self, grant: Grant, position: int, start: int) -> bool:
        """Store where a partition goes on, before anything of it is taken; what lies between is gone."""
        trouble = store_start(self._member.submit, grant, start)
        if trouble is None and start > position:
            tell_of_gap(self._member.report, grant, position, start)
        elif trouble is not None and not isinstance(trouble, Fenced):
            self._park(grant.partition, trouble)
        return trouble is None

    def _park(self, partition: int, error: PxrsError) -> None:
        logger.error("partition %d waits: %s", partition, error)
        self._shares.park(partition, error)

    def _waiting(self, grant: Grant, position: int) -> tuple[int, int] | None:
        """What a partition has to offer, behind what was deleted meanwhile; None if it cannot be told now."""
        try:
            start, end = place_in_log(self._log, self._member.settings, grant.partition, position)
        except (Unavailable, Damaged) as error:
            self._park(grant.partition, error)
            return None
        if start > position:
            if not self._move(grant, position, start):
                return None
            self._shares.advance({grant: start})
        self.ends[grant.partition] = end
        return start, max(start, self._limits.end(grant.partition, end))

    def _watch(self) -> None:
        """Be woken by new messages of the partitions in hand, and of no others."""
        held = {grant for grant, _ in self._takeable()}
        for grant in [grant for grant in self._watched if grant not in held]:
            self._watched.pop(grant)()
            self.ends.pop(grant.partition, None)
        for grant in held - self._watched.keys():
            self._watched[grant] = self._log.subscribe(grant.partition, self._shares.bell.set)


def _range(grant: Grant, start: int, rows: int) -> Range:
    return Range(grant.partition, start, start + rows, grant.epoch)
