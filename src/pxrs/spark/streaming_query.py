"""The running streaming query behind a call of foreachBatch, as the JVM knows it: its sources and its offset log.

Every question to the JVM takes a part of a millisecond, and a small batch has not many of them. So what stays the same
as long as a query runs is asked once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from pxrs.errors import Refused, Unexpected
from pxrs.spark.streaming_offsets import Planned, decode, is_of_group
from pxrs.spark.streaming_state import state_in

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
    """One run of a query. Only in the calls of a foreachBatch function, and only in their thread."""

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
        """What stands in Spark's offset log about a batch: the offset of each source; None if it has none yet, or one
        of another kind."""
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
