"""The checker: reads the recorded history of a run and names the promise that broke.

A history is a list of events in the order in which they happened. It may come from the simulation, which records
every stored row, or from real processes, which record what their handlers did; each promise is checked as far as the
history tells.

    Sent(partition, offset)                      a message was acknowledged
    Stored(partition, by, row)                   a partition row was written, by this life of a member
    Planned(by, group)                           the group row was written, by this life of a member
    Processed(partition, offset, by, epoch)      a handler finished a message
    Withdrawn(ranges, failed)                    a batch was given up: what it processed is never shown
    Shown(partition, offset, epoch)              the output of a message, made under this epoch, became visible
    Waived(partition, offset)                    a message has no output: it is in the dead letters, or needs none
    Rested(live, ends, moves, shows)             the quiet end: who is alive, and the log's ends
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pxrs.model import Cause, Group, Owner, Partition, Range


class Sent(NamedTuple):
    partition: int
    offset: int


class Stored(NamedTuple):
    partition: int
    by: Owner
    row: Partition


class Planned(NamedTuple):
    by: Owner
    group: Group


class Processed(NamedTuple):
    partition: int
    offset: int
    by: Owner
    epoch: int


class Withdrawn(NamedTuple):
    """``failed``: the batch could not be executed or written, so there was no commit that could be refused."""

    ranges: tuple[Range, ...]
    failed: bool


class Shown(NamedTuple):
    partition: int
    offset: int
    epoch: int


class Waived(NamedTuple):
    partition: int
    offset: int


class Rested(NamedTuple):
    """``live``: the lives that can work; ``ends``: partition → end of its log; ``moves``: claims since all is quiet;
    ``shows``: output was recorded, so all that is committed must be visible."""

    live: tuple[Owner, ...]
    ends: dict[int, int]
    moves: int
    shows: bool = False


Event = Sent | Stored | Planned | Processed | Withdrawn | Shown | Waived | Rested


class Violation(NamedTuple):
    """A broken promise, by its name in the design, and what shows it."""

    promise: str
    evidence: str


@dataclass(slots=True)
class _Span:
    """The part of a partition between two seeks: each message committed in it must be visible once.

    A seek back asks for messages again, and a seek forward asks for none of those between.
    """

    since: int
    """The epoch of the seek that began it."""
    start: int
    stop: int
    """The end of what is committed."""
    shown: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Trace:
    """The history of one partition so far."""

    row: Partition
    sent: int = 0
    granted: dict[int, Owner] = field(default_factory=dict)
    ended: dict[int, Cause] = field(default_factory=dict)
    done: dict[int, list[tuple[int, bool]]] = field(default_factory=dict)
    """offset → (epoch, whether that owner was current) of each time it was processed since the last seek."""
    next_offset: dict[int, int] = field(default_factory=dict)
    sought_at: int = 0
    """The epoch of the last seek: what owners of earlier epochs process does not count after it."""
    spans: list[_Span] = field(default_factory=lambda: [_Span(-1, 0, 0)])
    waived: set[int] = field(default_factory=set)


def check(history: Iterable[Event]) -> list[Violation]:
    """All broken promises, in the order in which they were found."""
    return _Checker().run(history)


class _Checker:
    def __init__(self) -> None:
        self._found: list[Violation] = []
        self._traces: dict[int, _Trace] = {}
        self._group: Group | None = None

    def run(self, history: Iterable[Event]) -> list[Violation]:
        for event in history:
            match event:
                case Sent():
                    trace = self._trace(event.partition)
                    trace.sent = max(trace.sent, event.offset + 1)
                case Stored():
                    self._stored(event)
                case Planned():
                    self._planned(event)
                case Processed():
                    self._processed(event)
                case Withdrawn():
                    self._withdrawn(event)
                case Shown():
                    self._shown(event)
                case Waived():
                    self._trace(event.partition).waived.add(event.offset)
                case Rested():
                    self._rested(event)
        return self._found

    def _trace(self, partition: int) -> _Trace:
        return self._traces.setdefault(partition, _Trace(Partition(partition)))

    def _broken(self, promise: str, evidence: str) -> None:
        self._found.append(Violation(promise, evidence))

    # ---- rows -----------------------------------------------------------------------------------------------

    def _stored(self, event: Stored) -> None:
        trace, new = self._trace(event.partition), event.row
        old = trace.row
        self._check_epoch(old, new)
        self._check_checkpoint(old, new)
        self._check_author(trace, old, event)
        self._check_loss(trace, new)
        if new.epoch != old.epoch or new.owner != old.owner:
            self._note_change_of_hands(trace, old, event)
        if new.cause is Cause.SEEK and new.epoch > old.epoch:
            trace.spans.append(_Span(new.epoch, new.position, new.position))
        trace.spans[-1].stop = new.position
        trace.row = new

    def _check_epoch(self, old: Partition, new: Partition) -> None:
        if new.epoch < old.epoch:
            self._broken("monotone", f"partition {new.number}: epoch went back {old.epoch} -> {new.epoch}")
        elif new.owner != old.owner and new.epoch == old.epoch:
            self._broken("single owner", f"partition {new.number}: owner changed within epoch {new.epoch}")

    def _check_checkpoint(self, old: Partition, new: Partition) -> None:
        if new.position < old.position and not (new.cause is Cause.SEEK and new.epoch > old.epoch):
            what = f"checkpoint went back {old.position} -> {new.position}"
            self._broken("monotone", f"partition {new.number}: {what}")

    def _check_author(self, trace: _Trace, old: Partition, event: Stored) -> None:
        new = event.row
        advanced = new.checkpoint != old.checkpoint and new.cause is not Cause.SEEK
        released = new.cause is Cause.RELEASE and new.epoch > old.epoch
        if (advanced or released) and trace.granted.get(old.epoch) != event.by:
            what = "a checkpoint" if advanced else "a release"
            text = f"partition {new.number}: {what} of {event.by.id}/{event.by.inc} accepted under epoch {old.epoch}"
            self._broken("fenced", f"{text}, which it was not granted")

    def _check_loss(self, trace: _Trace, new: Partition) -> None:
        if new.cause is Cause.SEEK or new.checkpoint is None:
            return
        start = trace.row.position
        missing = [o for o in range(start, new.checkpoint) if not self._counts(trace, o)]
        if missing:
            text = f"partition {new.number}: checkpoint {new.checkpoint} passes message {missing[0]}"
            self._broken("no loss", f"{text}, which nobody has processed")

    @staticmethod
    def _counts(trace: _Trace, offset: int) -> bool:
        return any(epoch > trace.sought_at for epoch, _ in trace.done.get(offset, ()))

    def _note_change_of_hands(self, trace: _Trace, old: Partition, event: Stored) -> None:
        new = event.row
        if (
            new.cause is Cause.CLAIM
            and old.owner is not None
            and new.owner is not None
            and old.owner.id != new.owner.id
        ):
            self._broken("single owner", f"partition {new.number}: {new.owner.id} claimed it from {old.owner.id}")
        if old.owner is not None:
            # A claim over an owner is a take-over from an earlier life: as unclean as a forced release.
            trace.ended[old.epoch] = Cause.FORCED if new.cause is Cause.CLAIM else new.cause
        if new.owner is not None:
            trace.granted[new.epoch] = new.owner
            trace.next_offset[new.epoch] = new.position
        if new.cause is Cause.SEEK:
            trace.sought_at = new.epoch
            trace.done = {}

    def _planned(self, event: Planned) -> None:
        old, new = self._group, event.group
        if old is not None and new.generation != old.generation:
            if old.leader != event.by:
                leader = old.leader.id if old.leader else "nobody"
                who = f"{event.by.id}/{event.by.inc}"
                self._broken("single owner", f"plan {new.generation} of {who} accepted while {leader} led: stale plan")
            if new.generation < old.generation:
                self._broken("monotone", f"generation went back {old.generation} -> {new.generation}")
        if old is not None and new.leader_epoch < old.leader_epoch:
            self._broken("monotone", f"leader epoch went back {old.leader_epoch} -> {new.leader_epoch}")
        self._group = new

    # ---- processing -----------------------------------------------------------------------------------------------

    def _processed(self, event: Processed) -> None:
        trace = self._trace(event.partition)
        where = f"partition {event.partition} message {event.offset} by {event.by.id}/{event.by.inc}"
        if trace.granted and trace.granted.get(event.epoch) != event.by:
            self._broken("single owner", f"{where}: processed under epoch {event.epoch}, which it was not granted")
            return
        if trace.ended.get(event.epoch) is Cause.RELEASE:
            self._broken("bounded repeats", f"{where}: processed after its own release")
        current = trace.row.epoch == event.epoch or not trace.granted
        self._check_order(trace, event, where)
        if current:
            self._check_repeat(trace, event, where)
        trace.done.setdefault(event.offset, []).append((event.epoch, current))

    def _check_order(self, trace: _Trace, event: Processed, where: str) -> None:
        expected = trace.next_offset.get(event.epoch, event.offset)
        if event.offset != expected:
            self._broken("order", f"{where}: expected message {expected} next in epoch {event.epoch}")
        trace.next_offset[event.epoch] = event.offset + 1

    def _check_repeat(self, trace: _Trace, event: Processed, where: str) -> None:
        if event.offset < trace.row.position:
            self._broken("bounded repeats", f"{where}: below the stored checkpoint {trace.row.position}")
        for epoch, was_current in trace.done.get(event.offset, ()):
            clean = trace.ended.get(epoch) in (None, Cause.RELEASE)
            if was_current and clean and epoch != event.epoch:
                self._broken("bounded repeats", f"{where}: repeated although epoch {epoch} was handed over cleanly")

    # ---- output ---------------------------------------------------------------------------------------------------

    def _withdrawn(self, event: Withdrawn) -> None:
        """Take out what a refused batch has processed: to process its messages again is no repeat."""
        traces = [self._trace(part.partition) for part in event.ranges]
        owned = all(trace.row.epoch == part.epoch for trace, part in zip(traces, event.ranges, strict=True))
        if owned and not event.failed:
            ranges = [tuple(part) for part in event.ranges]
            self._broken("bounded repeats", f"a batch was given up although it had lost nothing: {ranges}")
        for trace, part in zip(traces, event.ranges, strict=True):
            trace.next_offset[part.epoch] = part.start
            for offset in range(part.start, part.end):
                done = trace.done.get(offset, [])
                trace.done[offset] = [(epoch, current) for epoch, current in done if epoch != part.epoch]

    def _shown(self, event: Shown) -> None:
        trace = self._trace(event.partition)
        where = f"partition {event.partition} message {event.offset} of epoch {event.epoch}"
        span = next(span for span in reversed(trace.spans) if span.since < event.epoch)
        if event.offset in span.shown:
            self._broken("visible once", f"{where} is shown a second time")
        if not span.start <= event.offset < span.stop:
            self._broken("visible once", f"{where} is shown, but committed is [{span.start}, {span.stop})")
        if span.shown and event.offset < max(span.shown):
            self._broken("order", f"{where} is shown after message {max(span.shown)}")
        span.shown.add(event.offset)

    def _check_all_shown(self, partition: int) -> None:
        trace = self._trace(partition)
        for span in trace.spans:
            missing = set(range(span.start, span.stop)) - span.shown - trace.waived
            if missing:
                since = f" since the seek of epoch {span.since}" if span.since >= 0 else ""
                text = f"partition {partition} message {min(missing)} is committed{since}"
                self._broken("visible once", f"{text}, but nobody ever sees its output")

    # ---- the quiet end --------------------------------------------------------------------------------------------

    def _rested(self, event: Rested) -> None:
        if event.shows:
            for partition in event.ends:
                self._check_all_shown(partition)
        shares = dict.fromkeys(event.live, 0)
        for partition, end in sorted(event.ends.items()):
            row = self._trace(partition).row
            if row.owner not in shares:
                owner = f"{row.owner.id}, which is not alive" if row.owner else "nobody"
                self._broken("convergence", f"partition {partition} rests with {owner}")
                continue
            shares[row.owner] += 1
            if row.position != end:
                self._broken("no loss", f"partition {partition} rests at {row.position} of {end} messages")
        if shares and max(shares.values()) - min(shares.values()) > 1:
            self._broken("convergence", f"unfair shares {[(o.id, n) for o, n in sorted(shares.items())]}")
        if event.moves:
            self._broken("convergence", f"{event.moves} partitions changed hands while membership rested")
