"""The fenced commit of a streaming query's batches, by the driver's ``fenced`` or by the ``pxrs`` writer.

Both know the plan of a batch from Spark's offset log, and from the source's sheet the epochs under which it runs.
Output is staged, the checkpoints are committed with these epochs, and by that the output is published.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from pxrs.errors import PxrsError, Refused, Unexpected, Unknown
from pxrs.io.clock import SystemClock
from pxrs.model import Batch, Grant
from pxrs.runtime.batches.commit import CommitOutcome, commit_batch
from pxrs.runtime.ports.sink import Overtaken, Sink, nothing_to_publish
from pxrs.runtime.registry.registry import Changed, CommitRequest, Registry
from pxrs.spark.stream.offsets import Planned
from pxrs.spark.stream.side_files import Sheet, SideFiles, SinkReport

logger = logging.getLogger("pxrs.stream")

PATIENCE_SECONDS = 60.0
"""The time for which a registry that does not answer is asked again, before the query fails."""


class Fencing:
    """Carries the batches of one query out. Without a sink each partition is judged alone, with one all together."""

    def __init__(self, sink: Sink | None) -> None:
        self._sink = sink
        self._recovered: set[Grant] = set()

    def carry_out(
        self, registry: Registry, files: SideFiles, planned: Planned, number: int, output: Callable[[Batch], Any]
    ) -> None:
        """Carry out one batch. ``output`` is called when its ranges are known; then the result is committed."""
        files.write_sink_report(SinkReport(self._sink is not None))
        sheet = sheet_of(files, planned)
        batch = Batch(planned.queue, planned.log, planned.group, sheet.owner(planned), number, sheet.ranges)
        if sheet.dropped:
            logger.warning("batch %d: partitions %s are done, or with another member now", number, list(sheet.dropped))
        self._recover(registry, batch)
        self._commit(registry, batch, output(batch), planned)
        files.write_sink_report(SinkReport(self._sink is not None, planned.identity))

    def _recover(self, registry: Registry, batch: Batch) -> None:
        """New partitions: let the sink finish what their last owners left half published."""
        if self._sink is None:
            return
        grants = {Grant(part.partition, batch.owner, part.epoch) for part in batch.ranges} - self._recovered
        rows = registry.read_partitions(sorted(grant.partition for grant in grants)) if grants else {}
        for grant in sorted(grants):
            row = rows[grant.partition].row
            if row.epoch != grant.epoch:  # it is lost already, and no longer ours to finish
                continue
            try:
                self._sink.recover(batch.queue, batch.log, batch.group, grant, row.note)
            except Overtaken as error:  # has it been lost since, or is the sink ahead of the registry?
                if registry.read_partitions([grant.partition])[grant.partition].row.epoch == grant.epoch:
                    raise error.as_went_back() from error
        self._recovered |= grants

    def _commit(self, registry: Registry, batch: Batch, output: Any, planned: Planned) -> None:
        note = self._stage(batch, output)
        if not batch.ranges:
            return
        now = SystemClock().monotonic
        deadline, submit = now() + PATIENCE_SECONDS, partial(_submit, registry)
        outcome = commit_batch(submit, self._sink, batch, note, lambda: now() < deadline, threading.Event())
        self._judge(batch, outcome, planned)

    def _stage(self, batch: Batch, output: Any) -> str | None:
        if self._sink is None:
            return None
        note = self._sink.stage(batch, output)
        if note and not batch.ranges:
            self._sink.discard(batch)
            raise Refused(
                f"batch {batch.number} has output but no messages: the query keeps state, and such a query cannot use "
                "fenced(sink=)"
            )
        return note or nothing_to_publish(batch)

    def _judge(self, batch: Batch, outcome: CommitOutcome, planned: Planned) -> None:
        """Refused parts are their new owners' to do. What nothing is known of must not count as done in Spark."""
        for grant, error in outcome.refused.items():
            logger.warning("batch %d, partition %d is not committed: %s", batch.number, grant.partition, error)
        if len(outcome.refused) + len(outcome.committed) < len(batch.ranges):
            raise Unknown(f"batch {batch.number}: the registry does not answer; restart the query to go on")
        if outcome.refused and self._sink is not None and not planned.fenced:
            # The plan does not say yet that rows alone tell what is done. Spark must not take this batch for done.
            raise next(iter(outcome.refused.values()))


def sheet_of(files: SideFiles, planned: Planned) -> Sheet:
    """Under which epochs the batch runs. A batch without messages has no sheet of its own."""
    sheet = files.sheet()
    if not planned.ranges:
        return Sheet(planned.identity, sheet.life if sheet is not None else "", ())
    if sheet is None or sheet.plan != planned.identity:
        raise Unexpected(
            f"the file of the running batch, which the source of this query, member {planned.member!r}, writes, is "
            "missing or old: source and sink must run under the same JVM, with the same temporary directory"
        )
    return sheet


def _submit(registry: Registry, request: CommitRequest) -> Future[Changed]:
    """Commit in the thread that asks, with the epochs of the batch, never with epochs asked from the registry."""
    answer: Future[Changed] = Future()
    try:
        answer.set_result(registry.store_progress(request))
    except PxrsError as error:
        answer.set_exception(error)
    return answer
