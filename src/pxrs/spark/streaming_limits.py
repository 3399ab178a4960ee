"""How much the next batch of a stream takes: Kafka's limits, asked for by options and by Spark."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

from pxrs.clock import Clock
from pxrs.spark.options import StreamRequest

IDLE_SECONDS = 0.05
"""Spark asks an idle stream all the time. It is answered when messages come, but not later than this: a query that is
stopped waits for the answer."""


class Limits:
    """Admission control of one stream."""

    def __init__(self, request: StreamRequest, clock: Clock) -> None:
        self._request = request
        self._clock = clock
        self._planned_at = clock.monotonic()
        self.ends: dict[int, int] | None = None
        """Where a query that reads what is available now ends."""

    def default(self) -> ReadLimit:
        if self._request.max_rows is not None:
            return ReadMaxRows(self._request.max_rows)
        return ReadAllAvailable() if self._request.min_rows is None else ReadMinRows(self._request.min_rows)

    def rows(self, limit: ReadLimit, waiting: int) -> int:
        """How many of the waiting messages the next batch may have; 0 if it shall wait for more of them."""
        if isinstance(limit, ReadAllAvailable):
            return waiting
        if self.ends is None and self._is_too_early(waiting):
            return 0
        return min(waiting, limit.max_rows) if isinstance(limit, ReadMaxRows) else waiting

    def _is_too_early(self, waiting: int) -> bool:
        least = self._request.min_rows
        waited = self._clock.monotonic() - self._planned_at
        return least is not None and waiting < least and waited < self._request.max_delay_ms / 1000

    def planned(self) -> None:
        """A batch was made: the delay counts anew."""
        self._planned_at = self._clock.monotonic()

    def end(self, partition: int, end: int) -> int:
        """Where a partition ends for this stream."""
        return end if self.ends is None else min(end, self.ends.get(partition, end))
