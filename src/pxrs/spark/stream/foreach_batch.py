"""foreachBatch whose commit is fenced: the checkpoints move with the epochs under which the batch was planned.

    stream.writeStream.foreachBatch(fenced(fn)).option("checkpointLocation", ...).start()
    stream.writeStream.foreachBatch(fenced(fn, sink=ParquetSink("./bills"))) ...

Without a sink each partition is judged alone: what a member has lost is not committed, and its new owner does it
again. With a sink all partitions of a batch are committed together, and by that its output is published; a batch that
has lost one of them shows nothing, and what is left of it is planned again.
"""

from __future__ import annotations

import json
import logging
import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from pxrs.errors import BadSetting, Mismatch, Refused, Unexpected
from pxrs.model import Batch
from pxrs.runtime.delivery import taking
from pxrs.runtime.ports.sink import Sink, bind, check_sink
from pxrs.runtime.queue.queue import Queue
from pxrs.spark.read.options import parse_stream
from pxrs.spark.stream.commit import Fencing
from pxrs.spark.stream.member import open_for
from pxrs.spark.stream.offsets import Planned, decode, is_of_group
from pxrs.spark.stream.side_files import SideFiles


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
    """The function behind one foreachBatch: it lives as long as its query, in the user's own process."""

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
        """Run one micro-batch. Spark calls it in the driver's Python, when the offset log has the plan."""
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
        """Open the source's queue, once: its options are in the query's plan, which is in this machine."""
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


# ---- the running query, as Spark knows it ---------------------------------------------------------------------------
# Every question to the JVM takes a part of a millisecond, and a small batch has not many of them. So what stays the
# same as long as a query runs is asked once.


_QUERY_ID = "sql.streaming.queryId"


class Source(NamedTuple):
    """A pxrs source of the query: its options, and what it has planned for a batch."""

    options: dict[str, str]
    planned: Planned
    is_alone: bool
    """Whether the query has no other source."""


def running_query(df: DataFrame, last: RunningQuery | None) -> RunningQuery:
    """The query in whose foreachBatch function this is called: the last one, if it is the same run of it."""
    session: Any = df.sparkSession
    if not hasattr(session, "_jsparkSession"):
        raise Refused("fenced needs the JVM of a classic Spark session: it does not work over Spark Connect")
    name = session.sparkContext.getLocalProperty(_QUERY_ID)
    if name is None:
        raise Refused("fenced(fn) is for writeStream.foreachBatch: it was called outside of a streaming query")
    return last if last is not None and last.name == name and last.is_active else RunningQuery(session, name)


class RunningQuery:
    """One run of a query. For the calls of a foreachBatch function, in their thread only."""

    def __init__(self, session: Any, name: str) -> None:
        self.name = name
        self._jvm = session._jvm
        queries = session._jsparkSession.sharedState().activeStreamingQueries()
        self._query = queries.get(self._jvm.java.util.UUID.fromString(name))
        if self._query is None:
            raise Refused(f"the streaming query {name} is not active any more")
        self._known: tuple[int, list[Any]] = -1, []

    @property
    def is_active(self) -> bool:
        """A query has one active run at a time."""
        return bool(self._query.isActive())

    @cached_property
    def jvm(self) -> int:
        return int(self._jvm.java.lang.ProcessHandle.current().pid())

    def source(self, batch: int) -> Source:
        """The one pxrs source with a group, and its plan for this batch; without ranges if it has nothing new."""
        before, offsets = self._offsets(batch - 1) if batch else [], self._offsets(batch)
        options = [found for found in self._options if "pxrs.group.id" in found]
        planned = [offset for offset in offsets if is_of_group(offset)]
        if len(options) != 1 or len(planned) != 1:
            raise Refused(
                f"fenced needs a query with one pxrs source that has pxrs.group.id; this one has {len(options)}"
            )
        found = decode(planned[0])
        if planned == [offset for offset in before if is_of_group(offset)]:
            found = Planned(found.queue, found.log, found.group, found.member)
        return Source(options[0], found, len(offsets) == 1)

    @cached_property
    def _options(self) -> list[dict[str, str]]:
        return list(self._read_options())

    def _read_options(self) -> Iterator[dict[str, str]]:
        """The options of each source, with their names in lower case. They never leave the driver."""
        leaves = self._query.logicalPlan().collectLeaves().iterator()
        while leaves.hasNext():
            leaf = leaves.next()
            if leaf.getClass().getSimpleName() == "StreamingDataSourceV2ScanRelation":
                entries = leaf.relation().options().asCaseSensitiveMap()
                yield {name.lower(): str(entries.get(name)) for name in _names(entries.keySet().iterator())}

    def _offsets(self, batch: int) -> list[Any]:
        """Read a batch in Spark's offset log: the offset of each source; None without one, or of another kind."""
        if self._known[0] != batch:
            self._known = batch, list(self._read_offsets(batch))
        return self._known[1]

    def _read_offsets(self, batch: int) -> Iterator[Any]:
        found = self._query.offsetLog().get(batch)
        if found.isEmpty():
            raise Unexpected(f"Spark's offset log has no entry for batch {batch}, which is running")
        offsets = found.get().offsets().iterator()
        while offsets.hasNext():
            offset = offsets.next()
            yield _parsed(offset.get().json()) if offset.isDefined() else None

    def state(self) -> str | None:
        """The operator in this query's plan that keeps state, if there is one."""
        return state_in(self._query.logicalPlan().toString())


def _names(iterator: Any) -> Iterator[str]:
    """Not by a loop over it: that ends with an exception of the JVM, which takes 30 ms to be translated."""
    while iterator.hasNext():
        yield str(iterator.next())


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # of another source, which may write what it likes
        return None


# ---- state does not move when a partition does ----------------------------------------------------------------------


logger = logging.getLogger("pxrs.stream")

WARNING = (
    "the query has a group (%s) and keeps state (%s). State stays in this query when a partition moves to another "
    "member: results will be wrong after a rebalance. Run stateful queries without pxrs.group.id, or aggregate each "
    "batch into a fenced sink"
)
_STATEFUL = re.compile(r"~(Aggregate|Deduplicate\w*|FlatMapGroups\w*WithState|TransformWithState\w*) ")
"""The names of operators that keep state in the plan of a stream; "~" marks what is streaming."""


def state_in(plan: str) -> str | None:
    """The operator in the plan of a stream that keeps state, if there is one."""
    found = _STATEFUL.search(plan)
    return None if found is None else found[1]


def warn(group: str, operator: str) -> None:
    logger.warning(WARNING, group, operator)
