"""A warning for queries that keep state and share their partitions: the one does not move with the other."""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import threading
from contextlib import suppress
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

logger = logging.getLogger("pxrs.stream")

WARNING = (
    "the query has a group (%s) and keeps state (%s). State stays in this query when a partition moves to another "
    "member: results will be wrong after a rebalance. Run stateful queries without pxrs.group.id, or aggregate each "
    "batch into a fenced sink"
)
_LAST_WORDS_MS = 2_000
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
    listener = _Listener()
    spark.streams.addListener(listener)
    atexit.register(_stop_listening, os.getpid(), spark, listener)


def _stop_listening(process: int, spark: SparkSession, listener: StreamingQueryListener) -> None:
    """Before a program ends that has not stopped its session: the JVM would complain that nobody hears it any more."""
    if os.getpid() != process:  # a forked child: the connection to the JVM is its parent's
        return
    words = threading.Thread(target=_last_words, args=(spark, listener), daemon=True)
    words.start()
    words.join(2 * _LAST_WORDS_MS / 1000)  # a JVM that stands still must not hold the program


def _last_words(spark: SparkSession, listener: StreamingQueryListener) -> None:
    with suppress(Exception):  # it was stopped
        spark.streams.removeListener(listener)
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(_LAST_WORDS_MS)  # what is being told is heard


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
