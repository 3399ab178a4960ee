"""The parts of a batch loop, put together by the engine that runs it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pxrs.errors import (
    BadCheckpoint,
    BadSetting,
    Damaged,
    HandlerFailed,
    Mismatch,
    NotFound,
    PxrsError,
    Refused,
    Unavailable,
)
from pxrs.io.clock import Clock
from pxrs.logs.base import Log
from pxrs.model import Batch, Owner, Range
from pxrs.runtime import delivery
from pxrs.runtime.batches.commit import ClaimedPartition, Submit, recover_claimed, would_take
from pxrs.runtime.batches.held_partitions import HeldPartition, HeldPartitions
from pxrs.runtime.batches.planner import BatchPlanner
from pxrs.runtime.delivery import Context, DeadLetterBox
from pxrs.runtime.failures.error_summary import error_stack, error_summary
from pxrs.runtime.failures.parking import as_trouble, refuses_message
from pxrs.runtime.ports.events import Report
from pxrs.runtime.ports.sink import Sink
from pxrs.settings import Settings


@dataclass
class BatchParts:
    """The parts that a batch loop works with."""

    log: Log
    group: str
    owner: Owner
    shares: HeldPartitions
    settings: Settings
    clock: Clock
    execute: Callable[[Batch], Any]
    """The function from a batch to its output, which goes to the sink if there is one."""
    is_fatal: Callable[[BaseException], bool]
    """Whether an error says that nothing can be executed any more, whatever the messages are."""
    probe: Callable[[Batch], Any]
    """The output of the same functions, run where they would be for this batch, for no messages at all."""
    sink: Sink | None
    submit: Submit
    start_at: Callable[[int], int]
    dead_letters: DeadLetterBox
    stop: Callable[[], None]
    fail: Callable[[PxrsError], None]
    report: Report
    max_partitions: int
    """The most partitions that one commit can hold."""
    as_raised: Callable[[BaseException], BaseException] = lambda error: error
    """The original error of a task, if the engine wraps it in another one."""
    ends: Mapping[int, int] | None = None
    """The end of each partition for this loop; None: the end of its log, which may grow."""
    is_over: Callable[[], bool] = lambda: False
    """Asked when there is nothing to do: whether all that was wanted is done."""
    is_stopping: Callable[[], bool] = lambda: False
    idle_seconds: float | None = None
    """The longest sleep of an idle loop before it asks ``is_over`` again."""
    pause: threading.Event = field(default_factory=threading.Event)

    def recover(self, share: HeldPartition) -> int:
        """Let the sink finish what the last owner of a partition left half published; returns where it begins."""

        def start() -> int:
            return self.start_at(share.grant.partition) if share.position is None else share.position

        if self.sink is not None:
            claim = ClaimedPartition(self.log.identity, self.group, share.grant, share.note, start)
            recover_claimed(self.sink, self.submit, claim)
        return start()

    def would_take(self, batch: Batch) -> bool:
        """Whether the sink takes the output of a batch, which is discarded then."""
        self.shares.progressed()  # who tries several is not stuck
        return self.sink is not None and would_take(self.sink, batch, self.execute)

    def planner(self, logger: logging.Logger) -> BatchPlanner:
        """The planner of this loop's batches."""
        return BatchPlanner(
            log=self.log, held=self.shares, settings=self.settings, submit=self.submit, report=self.report,
            start_of=self.recover, end_of=self._end, most=self.max_partitions, logger=logger,
            ask_all_seconds=self.settings.poll_ms / 1000,
        )  # fmt: skip

    def _end(self, partition: int, end: int) -> int:
        return end if self.ends is None else min(end, self.ends[partition])

    def keep_letter(self, part: Range, error: BaseException, tries: int) -> None:
        """Put the one message of this range into the dead letters."""
        found = self.log.read(part.partition, part.start, 1)
        assert found is not None
        message = delivery.message_at(found, part.start, part.partition)
        context = Context(self.owner.id, part.epoch, tries)
        self.dead_letters.keep(message, error_summary(error), error_stack(error), tries, context)


def batch_facts(batch: Batch, outcome: str, began: float, executed: float, now: float) -> dict[str, Any]:
    """The facts that are reported of one try of a batch."""
    return {
        "member": batch.member,
        "batch": batch.number,
        "attempt": batch.attempt,
        "outcome": outcome,
        "rows": batch.rows,
        "partitions": list(batch.partitions),
        "ranges": [tuple(part) for part in batch.ranges],
        "seconds": now - began,
        "execute_seconds": executed - began,
        "commit_seconds": now - executed,
    }


# ---- whose fault it is ----------------------------------------------------------------------------------------------


_OF_SINK = (OSError, Unavailable, Damaged, NotFound, Mismatch)
"""A disk, a database, a table or a directory that is away for a while: no message is to blame."""


class CannotWrite(PxrsError):
    """The output cannot be written, whatever the messages are."""

    def __init__(self, trouble: PxrsError) -> None:
        super().__init__(str(trouble))
        self.trouble = trouble


def stage_output(sink: Sink, batch: Batch, output: Any) -> str:
    """The sink's note of what it wrote aside; CannotWrite if it could not, whatever the output is."""
    try:
        return sink.stage(batch, output)
    except _OF_SINK as error:
        raise CannotWrite(as_trouble(error)) from error


def as_refusal(error: Refused | HandlerFailed) -> PxrsError:
    """The error of a commit whose output was refused at its end, and so rolled back; else it is raised again."""
    if isinstance(error, BadCheckpoint | BadSetting):
        raise error
    return error if refuses_message(error) else CannotWrite(error)


def unreadable(log: Log, ranges: Iterable[Range]) -> dict[int, Exception]:
    """The partitions of these ranges that their log cannot answer for now, with the reason."""
    found: dict[int, Exception] = {}
    for part in ranges:
        try:
            log.bounds(part.partition)
        except (Unavailable, Damaged, OSError) as error:
            found[part.partition] = error
    return found
