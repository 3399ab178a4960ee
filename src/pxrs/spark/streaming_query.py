"""The running streaming query behind a call of foreachBatch, as the JVM knows it: its sources and its offset log."""

from __future__ import annotations

import json
from collections.abc import Iterator
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


class RunningQuery:
    """Only in the call of a foreachBatch function, and only in its thread."""

    def __init__(self, df: DataFrame) -> None:
        session: Any = df.sparkSession
        if not hasattr(session, "_jsparkSession"):
            raise Refused("fenced needs the JVM of a classic Spark session: it does not work over Spark Connect")
        name = session.sparkContext.getLocalProperty(_QUERY_ID)
        if name is None:
            raise Refused("fenced(fn) is for writeStream.foreachBatch: it was called outside of a streaming query")
        self._jvm = session._jvm
        queries = session._jsparkSession.sharedState().activeStreamingQueries()
        self._query = queries.get(self._jvm.java.util.UUID.fromString(name))
        if self._query is None:
            raise Refused(f"the streaming query {name} is not active any more")

    @property
    def jvm(self) -> int:
        return int(self._jvm.java.lang.ProcessHandle.current().pid())

    def source(self, batch: int) -> Source:
        """The one pxrs source with a group, and its plan for this batch; without ranges if it has nothing new."""
        options = [found for found in self._options() if "pxrs.group.id" in found]
        planned = [offset for offset in self._offsets(batch) if is_of_group(offset)]
        if len(options) != 1 or len(planned) != 1:
            raise Refused(
                f"fenced needs a query with one pxrs source that has pxrs.group.id; this one has {len(options)}"
            )
        before = [offset for offset in self._offsets(batch - 1) if is_of_group(offset)] if batch else []
        found = decode(planned[0])
        if planned == before:
            found = Planned(found.queue, found.log, found.group, found.member)
        return Source(options[0], found, self._entry(batch).size() == 1)

    def _options(self) -> Iterator[dict[str, str]]:
        """The options of each source, with their names in lower case. They never leave the driver."""
        leaves = self._query.logicalPlan().collectLeaves().iterator()
        while leaves.hasNext():
            leaf = leaves.next()
            if leaf.getClass().getSimpleName() == "StreamingDataSourceV2ScanRelation":
                entries = leaf.relation().options().asCaseSensitiveMap()
                yield {str(name).lower(): str(entries[name]) for name in entries}

    def _entry(self, batch: int) -> Any:
        """What stands in Spark's offset log about a batch: an offset, or nothing yet, for each source."""
        found = self._query.offsetLog().get(batch)
        if found.isEmpty():
            raise Unexpected(f"Spark's offset log has no entry for batch {batch}, which is running")
        return found.get().offsets()

    def _offsets(self, batch: int) -> Iterator[Any]:
        offsets = self._entry(batch).iterator()
        while offsets.hasNext():
            offset = offsets.next()
            if offset.isDefined():
                yield _parsed(offset.get().json())

    def state(self) -> str | None:
        """The operator in this query's plan that keeps state, if there is one."""
        return state_in(self._query.logicalPlan().toString())


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # of another source, which may write what it likes
        return None
