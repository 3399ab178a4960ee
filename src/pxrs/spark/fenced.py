"""foreachBatch whose commit is fenced: the checkpoints move with the epochs under which the batch was planned.

    stream.writeStream.foreachBatch(fenced(fn)).option("checkpointLocation", ...).start()
    stream.writeStream.foreachBatch(fenced(fn, sink=ParquetSink("./bills"))) ...

Without a sink each partition is judged alone: what a member has lost is not committed, and its new owner does it
again. With a sink all partitions of a batch are committed together, and by that its output is published; a batch that
has lost one of them shows nothing, and what is left of it is planned again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame

from pxrs.errors import BadSetting, Mismatch, Refused
from pxrs.model import Batch
from pxrs.runtime.delivery import taking
from pxrs.runtime.queue import Queue
from pxrs.runtime.sink import Sink, bind, check_sink
from pxrs.spark.fencing import Fencing
from pxrs.spark.options import parse_stream
from pxrs.spark.sidefile import SideFiles
from pxrs.spark.streaming_member import open_for
from pxrs.spark.streaming_offsets import Planned
from pxrs.spark.streaming_query import RunningQuery, Source, running_query
from pxrs.spark.streaming_state import warn


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
        self._fencing = Fencing(sink)
        self._query: RunningQuery | None = None
        self._warned = False

    def run(self, df: DataFrame, number: int) -> None:
        """One micro-batch. Spark calls it in the driver's Python, when the offset log has the plan."""
        query = self._query = running_query(df, self._query)
        source = query.source(number)
        planned = source.planned
        if self._sink is not None and not source.is_alone:
            raise Refused(
                "fenced with a sink takes a query that reads nothing but the group's queue: a batch that has lost a "
                "partition would lose the rows of its other sources too. Write each by a query of its own"
            )
        self._warn_of_state(query, planned)
        queue = self._queue(source)
        registry = queue.group(planned.group).registry
        files = SideFiles(query.jvm, planned)
        self._fencing.carry_out(registry, files, planned, number, lambda batch: self._output(df, batch))

    def _queue(self, source: Source) -> Queue:
        found = self._given or self._open(source.options)
        if found.log.identity.id != source.planned.log:
            raise Mismatch(f"the source reads another log than that of {found!r}, which fenced was given")
        return found

    def _open(self, options: dict[str, str]) -> Queue:
        """The source's queue, opened here once: its options stand in the query's plan, which is in this machine."""
        if self._opened is None or self._opened[0] != options:
            queue = open_for(parse_stream(options))
            weakref.finalize(self, queue.close).atexit = False  # with the query's function, and nobody waits at the end
            bind(self._sink, queue.store)
            self._opened = options, queue
        return self._opened[1]

    def _warn_of_state(self, query: RunningQuery, planned: Planned) -> None:
        if not self._warned:
            state, self._warned = query.state(), True
            if state is not None:
                warn(planned.group, state)

    def _output(self, df: DataFrame, batch: Batch) -> Any:
        output = df if self._process is None else self._process(df, batch)
        if self._sink is None and isinstance(output, DataFrame):
            raise BadSetting("fn returned a DataFrame, and there is no sink= to write it: nothing would be computed")
        return output
