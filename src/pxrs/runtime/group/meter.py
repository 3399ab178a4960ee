"""Measures a consumer: counters of its reports, and gauges that are read when somebody asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from pxrs.errors import PxrsError
from pxrs.io.clock import Clock
from pxrs.logs.base import Log
from pxrs.runtime.dead_letters.box import Waiting
from pxrs.runtime.delivery import messages_of
from pxrs.runtime.group.member import Member
from pxrs.runtime.ports.counters import Counters
from pxrs.runtime.telemetry import metric_names as metrics
from pxrs.runtime.telemetry.event_log import EventLog
from pxrs.runtime.telemetry.metric_names import Metric, Sample

_COUNTED: dict[Metric, tuple[str, ...]] = {
    metrics.REBALANCES: ("settled",),
    metrics.CLAIMS: ("claimed",),
    metrics.RELEASES: ("released",),
    metrics.LOSSES: ("lost",),
    metrics.COMMITS: ("committed",),
    metrics.FENCED_WRITES: ("refused", "fenced"),
    metrics.TROUBLES: ("troubled",),
    metrics.BATCHES: ("batch",),
}
"""The metrics that count reports, and of which kinds."""


class Measured(Protocol):
    """The facts that any engine reports of its work."""

    def tally(self) -> Counters: ...

    def where(self, partition: int) -> int | None:
        """The position of a partition, None also if it is not worked on here."""

    def troubles(self) -> Mapping[int, PxrsError]:
        """Partitions that wait for their log, their sink, their dead letters or a disk, with the reason."""


def _none() -> Waiting:
    return Waiting(0, None)


class Meter:
    """The metrics of one consumer. Nothing is computed on the way of a message; lag is read when asked for.

    ``events`` counts what the member has reported. ``letters`` tells of the dead letters of the
    group: a matter of the member that leads.
    """

    def __init__(
        self,
        log: Log,
        group: str,
        clock: Clock,
        events: EventLog | None = None,
        letters: Callable[[], Waiting] = _none,
    ) -> None:
        self._counts = Counter() if events is None else events.counts
        self._letters = letters
        self._log = log
        self._group = group
        self._clock = clock
        self._member: Member | None = None
        self._work: Measured | None = None

    def connect(self, member: Member, work: Measured) -> None:
        self._member, self._work = member, work

    def samples(self) -> Iterator[Sample]:
        """Everything as it is now."""
        if self._member is None or self._work is None:
            return
        of_group = (self._log.identity.name, self._group)
        labels = (*of_group, self._member.me.id)
        for metric, kinds in _COUNTED.items():
            yield Sample(metric, labels, sum(self._counts[kind] for kind in kinds))
        yield from self._of_member(self._member, labels)
        yield from self._of_work(self._work, labels)
        if self._member.leader.leads:
            yield from self._of_letters(of_group)
        for partition in sorted(self._member.handles):
            yield from self._of_partition(partition, (*of_group, str(partition)), self._member.me.id)

    def _of_member(self, member: Member, labels: tuple[str, ...]) -> Iterator[Sample]:
        yield Sample(metrics.OWNED_PARTITIONS, labels, len(member.handles))
        yield Sample(metrics.BEAT_AGE_SECONDS, labels, member.beat_age(self._clock.monotonic()))
        yield Sample(metrics.LEADS, labels, member.leader.leads)

    def _of_work(self, work: Measured, labels: tuple[str, ...]) -> Iterator[Sample]:
        tally = work.tally()
        yield Sample(metrics.PARKED_PARTITIONS, labels, len(work.troubles()))
        yield Sample(metrics.HANDLED, labels, tally.handled)
        yield Sample(metrics.RETRIED, labels, tally.retried)
        yield Sample(metrics.SKIPPED, labels, tally.skipped)
        yield Sample(metrics.DEAD_LETTERED, labels, tally.dead_lettered)
        yield Sample(metrics.PASSED_OVER, labels, tally.passed_over)
        yield Sample(metrics.HANDLER_SECONDS, labels, tally.handler_seconds)
        yield Sample(metrics.EXPIRED, labels, tally.expired)

    def _of_letters(self, labels: tuple[str, ...]) -> Iterator[Sample]:
        try:
            yield from letter_samples(self._letters(), labels, self._clock.wall())
        except PxrsError:
            return

    def _of_partition(self, partition: int, labels: tuple[str, ...], member: str) -> Iterator[Sample]:
        handle = self._member.handles.get(partition) if self._member else None
        position = self._work.where(partition) if self._work else None
        if handle is None or position is None:
            return
        try:
            lag, seconds = self._lag(partition, position)
        except PxrsError:
            return
        yield Sample(metrics.LAG_MESSAGES, labels, lag)
        yield Sample(metrics.LAG_SECONDS, labels, seconds)
        yield Sample(metrics.CHECKPOINT, labels, handle.committed or 0)
        yield Sample(metrics.OWNER_EPOCH, (*labels, member), handle.grant.epoch)

    def _lag(self, partition: int, position: int) -> tuple[int, float]:
        end = self._log.bounds(partition)[1]
        batch = self._log.read(partition, position, 1) if position < end else None
        if batch is None:
            return 0, 0.0
        waiting_since = next(messages_of(batch, partition)).timestamp_us / 1_000_000
        return end - position, max(0.0, self._clock.wall() - waiting_since)


def letter_samples(waiting: Waiting, labels: tuple[str, ...], wall: float) -> Iterator[Sample]:
    """A group's dead letters in numbers."""
    yield Sample(metrics.GROUP_DEAD_LETTERS, labels, waiting.letters)
    yield Sample(metrics.GROUP_OLDEST_DEAD_LETTER, labels, waiting.age_seconds(wall) or 0.0)
