"""What a batch loop works with, put together by the engine that runs it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pxrs.clock import Clock
from pxrs.errors import PxrsError
from pxrs.logs.base import Log
from pxrs.model import Batch, Owner, Range
from pxrs.runtime import delivery
from pxrs.runtime.delivery import Context
from pxrs.runtime.gist import error_stack, gist
from pxrs.runtime.job import DeadLetterBox
from pxrs.runtime.publishing import Claim, Submit, recover_claimed
from pxrs.runtime.report import Report
from pxrs.runtime.shares import Share, Shares
from pxrs.runtime.sink import Sink
from pxrs.settings import Settings


@dataclass
class Assembly:
    """What a batch loop works with."""

    log: Log
    group: str
    owner: Owner
    shares: Shares
    settings: Settings
    clock: Clock
    execute: Callable[[Batch], Any]
    """From a batch to its output, which goes to the sink if there is one."""
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
    """How many partitions one commit can hold."""
    as_raised: Callable[[BaseException], BaseException] = lambda error: error
    """What an error of the engine comes down to, if the error of a task arrives as another one."""
    ends: Mapping[int, int] | None = None
    """Where each partition ends for this loop; None: where its log ends, and that may grow."""
    is_over: Callable[[], bool] = lambda: False
    """Asked when there is nothing to do: whether all that was wanted is done."""
    is_stopping: Callable[[], bool] = lambda: False
    idle_seconds: float | None = None
    """How long an idle loop sleeps at most before it asks ``is_over`` again."""
    pause: threading.Event = field(default_factory=threading.Event)

    def recover(self, share: Share) -> int:
        """Let the sink finish what the last owner of a partition left half published; returns where it begins."""

        def start() -> int:
            return self.start_at(share.grant.partition) if share.position is None else share.position

        if self.sink is not None:
            claim = Claim(self.log.identity, self.group, share.grant, share.note, start)
            recover_claimed(self.sink, self.submit, claim)
        return start()

    def keep_letter(self, part: Range, error: BaseException, tries: int) -> None:
        """Put the one message of this range into the dead letters."""
        found = self.log.read(part.partition, part.start, 1)
        assert found is not None
        message = delivery.message_at(found, part.start, part.partition)
        context = Context(self.owner.id, part.epoch, tries)
        self.dead_letters.keep(message, gist(error), error_stack(error), tries, context)


def batch_facts(batch: Batch, outcome: str, began: float, executed: float, now: float) -> dict[str, Any]:
    """What is reported of one try of a batch."""
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
