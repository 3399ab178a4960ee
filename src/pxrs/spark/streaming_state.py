"""A warning for queries that keep state and share their partitions: the one does not move with the other."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

logger = logging.getLogger("pxrs.stream")

WARNING = (
    "the query has a group (%s) and keeps state (%s). State stays in this query when a partition moves to another "
    "member: results will be wrong after a rebalance. Run stateful queries without pxrs.group.id, or aggregate each "
    "batch into a fenced sink"
)
_STATEFUL = re.compile(r"~(Aggregate|Deduplicate\w*|FlatMapGroups\w*WithState|TransformWithState\w*) ")
"""How operators that keep state stand in the plan of a stream; "~" marks what is streaming."""


def state_in(plan: str) -> str | None:
    """The operator in the plan of a stream that keeps state, if there is one."""
    found = _STATEFUL.search(plan)
    return None if found is None else found[1]


def warn(group: str, operator: str) -> None:
    logger.warning(WARNING, group, operator)


def watch_for_state(spark: SparkSession) -> None:
    """Warn of each query of this session that keeps state and takes part in a group, whatever its sink is."""
    spark.streams.addListener(_Listener())


class _Listener(StreamingQueryListener):
    """Hears of every batch of every query; says a thing once for each query."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing is known of its state yet."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        self._told.discard(str(event.runId))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        run = str(progress.runId)
        if run in self._told or not progress.stateOperators:
            return
        self._told.add(run)
        for source in progress.sources:
            group = _group_of(source.endOffset)
            if group is not None:
                warn(group, progress.stateOperators[0].operatorName)


def _group_of(offset: str) -> str | None:
    """The group in the offset of one of our sources; None for all others."""
    try:
        found = json.loads(offset)
    except ValueError:
        return None
    group = found.get("@group") if isinstance(found, dict) else None
    return group if isinstance(group, str) else None
