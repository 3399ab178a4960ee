"""Plans which messages the next batch takes. Used by pipelines and by streaming queries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from pxrs.errors import Fenced, Unavailable
from pxrs.logs.base import Log
from pxrs.model import Grant, Range
from pxrs.rules.policies import share_out, take_turns
from pxrs.runtime.batches.commit import Submit, store_start
from pxrs.runtime.batches.held_partitions import HeldPartition, HeldPartitions
from pxrs.runtime.expired import place_in_log, tell_of_gap
from pxrs.runtime.failures.error_summary import error_text
from pxrs.runtime.failures.parking import as_trouble, ends_member
from pxrs.runtime.ports.events import Report
from pxrs.settings import Settings

Waiting = Mapping[Grant, tuple[int, int]]
"""The waiting messages of each partition: from which offset to which."""


@dataclass
class BatchPlanner:
    """Looks at the log and at the owned partitions. It writes nothing but the start of a partition."""

    log: Log
    held: HeldPartitions
    settings: Settings
    submit: Submit
    report: Report
    start_of: Callable[[HeldPartition], int]
    """The start of a partition that was just claimed."""
    end_of: Callable[[int, int], int]
    """The end up to which a partition is read, where that is not the log's end."""
    most: int
    """The most partitions that one commit can hold."""
    logger: logging.Logger
    ask_all_seconds: float
    """The interval at which every log is asked for its end, whatever it has reported: a wake-up may get lost."""
    lag: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    """The ends of the logs of owned partitions, when they were last looked at."""
    _watched: dict[Grant, Callable[[], None]] = field(default_factory=dict)
    _grown: set[int] = field(default_factory=set)
    """Partitions whose log must be asked for its end: it has reported growth, or was not asked yet."""
    _ask_all_at: float = 0.0
    _turn: int = 0

    def look(self) -> Waiting:
        """Begin what is new, and see what waits. A partition that cannot be read is parked."""
        self.begin_newcomers()
        self._watch()
        if (now := self.held.clock.monotonic()) >= self._ask_all_at:
            self._grown |= {grant.partition for grant in self._watched}
            self._ask_all_at = now + self.ask_all_seconds
        takeable = self.held.takeable()
        if not takeable:  # it must know too whether it could read one: else it would be given some, or none
            self.held.blindness.saw(can_answer(self.log))
        found = {grant: offer for grant, position in takeable.items() if (offer := self._offer(grant, position))}
        self.lag = sum(end - start for start, end in found.values())
        return found

    def choose(self, waiting: Waiting, limit: Callable[[int], int]) -> list[Range]:
        """Choose the ranges of the next batch, in fair parts; ``limit`` is the function for the number of messages."""
        counts = {grant: end - start for grant, (start, end) in waiting.items() if end > start}
        chosen, self._turn = take_turns(list(counts), self.most, self._turn)
        rows = limit(sum(counts[grant] for grant in chosen))
        parts = share_out({grant.partition: counts[grant] for grant in chosen}, rows) if rows else {}
        return [range_of(g, waiting[g][0], parts[g.partition]) for g in chosen if g.partition in parts]

    def begin_newcomers(self) -> None:
        for partition in self.held.newcomers():
            self.held.progressed()  # who hangs in here makes no progress either
            self.begin(partition)

    def begin(self, new: HeldPartition) -> None:
        """A new partition: find where it starts, and store that before anything of it is taken."""
        number = new.grant.partition
        try:
            chosen = self.start_of(new)
            position, _ = place_in_log(self.log, self.settings, number, chosen)
        except Fenced:  # it has gone to another member, while others of this one were begun
            return
        except Exception as error:
            self.park(number, error)
            return
        if position == new.position or self._move(new.grant, chosen, position):
            self.held.begin(new.grant, position)

    def park(self, partition: int, error: Exception) -> None:
        """The partition waits; what nobody can wait for is raised again."""
        if ends_member(error):
            raise error
        trouble = as_trouble(error)
        if self.held.park(partition, trouble):
            self.logger.error("partition %d waits: %s", partition, error_text(trouble))

    def close(self) -> None:
        """Be woken by nothing any more."""
        for forget in self._watched.values():
            forget()

    def _move(self, grant: Grant, position: int, start: int) -> bool:
        """Store where a partition goes on, before anything of it is taken; what lies between is gone."""
        trouble = store_start(self.submit, grant, start)
        if trouble is None and start > position:
            self.held.count(expired=tell_of_gap(self.report, grant, position, start))
        elif trouble is not None and not isinstance(trouble, Fenced):
            self.park(grant.partition, trouble)
        return trouble is None

    def _offer(self, grant: Grant, position: int) -> tuple[int, int] | None:
        """The waiting messages of a partition, behind deleted ones; None: nothing, or it is not known now."""
        number = grant.partition
        if number not in self._grown and self.ends.get(number) == position:
            return None
        self._grown.discard(number)  # before it is asked: what comes meanwhile tells so again
        try:
            start, end = place_in_log(self.log, self.settings, number, position)
            self.held.blindness.saw(True)
            if start > position:
                if not self._move(grant, position, start):
                    return None
                self.held.advance({grant: start})
        except Exception as error:
            self._grown.add(number)
            if isinstance(error, Unavailable):
                self.held.blindness.saw(False)
            self.park(number, error)
            return None
        self.ends[number] = end
        return start, max(start, self.end_of(number, end))

    def _watch(self) -> None:
        """Be woken by new messages of the partitions in hand, and of no others."""
        held = self.held.takeable()
        for grant in [grant for grant in self._watched if grant not in held]:
            self._watched.pop(grant)()
            self.ends.pop(grant.partition, None)
        for grant in held:
            if grant not in self._watched:
                self._grown.add(grant.partition)
                self._watched[grant] = self.log.subscribe(grant.partition, partial(self._heard, grant.partition))

    def _heard(self, partition: int) -> None:
        self._grown.add(partition)
        self.held.wake_event.set()


def range_of(grant: Grant, start: int, rows: int) -> Range:
    return Range(grant.partition, start, start + rows, grant.epoch)


def can_answer(log: Log) -> bool:
    """Whether the log can be asked at all; its partitions are looked at later."""
    try:
        log.bounds(0)
    except Exception:
        return False
    return True
