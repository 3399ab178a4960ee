"""foreachBatch whose commit is fenced: the checkpoints move with the epochs under which the batch was planned.

    stream.writeStream.foreachBatch(fenced(fn)).option("checkpointLocation", ...).start()
    stream.writeStream.foreachBatch(fenced(fn, sink=ParquetSink("./bills"))) ...

Without a sink each partition is judged alone: what a member has lost is not committed, and its new owner does it
again. With a sink all partitions of a batch are committed together, and by that its output is published; a batch that
has lost one of them shows nothing, and what is left of it is planned again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from pyspark.sql import DataFrame

from pxrs.clock import SystemClock
from pxrs.errors import BadSetting, Mismatch, PxrsError, Refused, Unexpected, Unknown
from pxrs.model import Batch, Grant
from pxrs.runtime.delivery import taking
from pxrs.runtime.publishing import Outcome, commit_batch
from pxrs.runtime.queue import Queue
from pxrs.runtime.registry import Changed, Registry
from pxrs.runtime.sink import Join, Sink, bind, check_sink
from pxrs.spark.options import parse_stream
from pxrs.spark.sidefile import Mark, Sheet, SideFiles
from pxrs.spark.streaming_member import open_for
from pxrs.spark.streaming_offsets import Planned
from pxrs.spark.streaming_query import RunningQuery, Source
from pxrs.spark.streaming_state import warn

logger = logging.getLogger("pxrs.stream")

PATIENCE_SECONDS = 60.0
"""How long a registry that does not answer is asked again before the query fails."""


def fenced(
    fn: Callable[..., Any] | None = None, sink: Sink | None = None, queue: Queue | None = None
) -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch``: runs ``fn(df, batch)`` or ``fn(df)``, then commits.

    ``batch`` is a ``pxrs.model.Batch``: its ranges, with the epochs as fencing tokens, and Spark's batch id as its
    ``number``. With a ``sink`` of ``pxrs.sinks`` the function returns a DataFrame, which is published once. ``queue``
    is the open queue of the source; left out, it is opened here with the options of the source.
    """
    if fn is None and sink is None:
        raise BadSetting("fenced needs something to do: fenced(fn), fenced(sink=...), or both")
    if fn is not None and not callable(fn):
        raise BadSetting(f"fenced({fn!r}): must be a function of (df) or (df, batch)")
    check_sink(sink)
    return FencedBatches(fn, sink, queue).run


class FencedBatches:
    """What stands behind one foreachBatch: it lives as long as its query, in the user's own process."""

    def __init__(self, fn: Callable[..., Any] | None, sink: Sink | None, queue: Queue | None) -> None:
        self._process = taking(fn, 2)
        self._sink = sink
        self._given = queue
        if queue is not None:
            bind(sink, queue.store)
        self._opened: tuple[Mapping[str, str], Queue] | None = None
        self._recovered: set[Grant] = set()
        self._warned = False
        self._clock = SystemClock()

    def run(self, df: DataFrame, number: int) -> None:
        """One micro-batch. Spark calls it in the driver's Python, when the offset log has the plan."""
        query = RunningQuery(df)
        source = query.source(number)
        planned = source.planned
        self._warn_of_state(query, planned)
        queue = self._queue(source)
        files = SideFiles(query.jvm, planned)
        files.write_mark(Mark(self._sink is not None))
        sheet = _sheet(files, planned)
        batch = Batch(planned.queue, planned.log, planned.group, sheet.owner(planned), number, sheet.ranges)
        if sheet.dropped:
            logger.warning("batch %d: partitions %s are with another member now", number, list(sheet.dropped))
        registry = queue.group(planned.group).registry
        self._recover(registry, batch)
        self._commit(registry, batch, self._output(df, batch), planned)
        files.write_mark(Mark(self._sink is not None, planned.identity))

    def _queue(self, source: Source) -> Queue:
        found = self._given or self._open(source.options)
        if found.log.identity.id != source.planned.log:
            raise Mismatch(f"the source reads another log than that of {found!r}, which fenced was given")
        return found

    def _open(self, options: dict[str, str]) -> Queue:
        """The source's queue, opened here once: its options stand in the query's plan, which is in this machine."""
        if self._opened is None or self._opened[0] != options:
            queue = open_for(parse_stream(options))
            bind(self._sink, queue.store)
            self._opened = options, queue
        return self._opened[1]

    def _warn_of_state(self, query: RunningQuery, planned: Planned) -> None:
        if not self._warned:
            state, self._warned = query.state(), True
            if state is not None:
                warn(planned.group, state)

    # ---- one batch --------------------------------------------------------------------------------------------------

    def _recover(self, registry: Registry, batch: Batch) -> None:
        """New partitions: let the sink finish what their last owners left half published."""
        if self._sink is None:
            return
        grants = {Grant(part.partition, batch.owner, part.epoch) for part in batch.ranges} - self._recovered
        rows = registry.read_partitions(sorted(grant.partition for grant in grants)) if grants else {}
        for grant in sorted(grants):
            row = rows[grant.partition].row
            if row is not None and row.epoch == grant.epoch:  # else it is lost already, and no longer ours to finish
                self._sink.recover(batch.queue, batch.log, batch.group, grant, row.note)
        self._recovered |= grants

    def _output(self, df: DataFrame, batch: Batch) -> Any:
        output = df if self._process is None else self._process(df, batch)
        if self._sink is None and isinstance(output, DataFrame):
            raise BadSetting("fn returned a DataFrame, and there is no sink= to write it: nothing would be computed")
        return output

    def _commit(self, registry: Registry, batch: Batch, output: Any, planned: Planned) -> None:
        note = self._stage(batch, output)
        if not batch.ranges:
            return
        deadline = self._clock.monotonic() + PATIENCE_SECONDS
        outcome = commit_batch(
            Submitter(registry), self._sink, batch, note, lambda: self._clock.monotonic() < deadline, threading.Event()
        )
        self._judge(batch, outcome, planned)

    def _stage(self, batch: Batch, output: Any) -> str | None:
        if self._sink is None:
            return None
        note = self._sink.stage(batch, output)
        if note and not batch.ranges:
            self._sink.discard(batch)
            raise Refused(f"batch {batch.number} has output and no messages: what keeps state cannot use a fenced sink")
        return note or f'{{"batch": "{batch.name}"}}'

    def _judge(self, batch: Batch, outcome: Outcome, planned: Planned) -> None:
        """Refused parts are their new owners' to do. What nothing is known of must not count as done in Spark."""
        for grant, error in outcome.refused.items():
            logger.warning("batch %d, partition %d is not committed: %s", batch.number, grant.partition, error)
        if len(outcome.refused) + len(outcome.committed) < len(batch.ranges):
            raise Unknown(f"batch {batch.number}: the registry does not answer; restart the query to go on")
        if outcome.refused and self._sink is not None and not planned.fenced:
            # The plan does not say yet that rows alone tell what is done. Spark must not take this batch for done.
            raise next(iter(outcome.refused.values()))


def _sheet(files: SideFiles, planned: Planned) -> Sheet:
    """Under which epochs the batch runs. A batch without messages has no sheet of its own."""
    sheet = files.sheet()
    if not planned.ranges:
        return Sheet(planned.identity, sheet.life if sheet is not None else "", ())
    if sheet is None or sheet.plan != planned.identity:
        raise Unexpected(
            f"the source of this query, member {planned.member!r}, has left no word about the running batch: is it "
            "another process than this JVM's?"
        )
    return sheet


class Submitter:
    """Commits in the thread that asks, with the epochs of the batch, never with epochs asked from the registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def __call__(
        self, positions: Mapping[Grant, int], note: str | None, together: bool, join: Join | None
    ) -> Future[Changed]:
        answer: Future[Changed] = Future()
        try:
            answer.set_result(self._carry_out(positions, note, together, join))
        except PxrsError as error:
            answer.set_exception(error)
        return answer

    def _carry_out(
        self, positions: Mapping[Grant, int], note: str | None, together: bool, join: Join | None
    ) -> Changed:
        if not together:
            return self._registry.commit(positions, note=note)
        transaction = join() if join is not None else None
        self._registry.commit_together(positions, note=note, transaction=transaction)
        return {}
