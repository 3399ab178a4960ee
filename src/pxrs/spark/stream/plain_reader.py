"""Structured Streaming: what every stream of a queue has in common, and the one that reads alone.

Spark makes a reader in two processes: one that plans what the tasks run, and a long-lived one, the source process, that
it asks for offsets. Nothing happens before the first question.
"""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import cached_property
from importlib import import_module

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pxrs.io.clock import Clock, SystemClock
from pxrs.logs.base import Log
from pxrs.logs.batches import refuse_offset
from pxrs.model import Range
from pxrs.rules.addressing import Reader
from pxrs.rules.policies import share_out
from pxrs.spark.read.options import StreamRequest, check_selection, parse_stream
from pxrs.spark.read.plan import Slice, slices_of
from pxrs.spark.read.ranges import offset_of, open_log, partitions_of, split
from pxrs.spark.read.task import Arrival, ReadSpec, TaskReader
from pxrs.spark.spark_internals import RowsWithPlan
from pxrs.spark.stream.offsets import Offset, decode_positions, encode_positions

logger = logging.getLogger("pxrs.stream")

FAST_BYTES = 16 << 20
"""A batch of few rows may still be a large one."""


def stream_reader(options: Mapping[str, str], schema: pa.Schema) -> StreamReader:
    """The reader that these options ask for: a member of a group, or one that reads alone."""
    request = parse_stream(options)
    with closing(open_log(request.read.log)) as log:
        partitions_of(request.read, log)
        reader = None if request.group is None else Reader(log.identity.id, request.group)
        reading = ReadSpec(log.identity.name, check_selection(schema), schema, reader)
    if request.group is None:
        return PlainReader(request, reading)
    found: StreamReader = import_module("pxrs.spark.stream.group_reader").GroupReader(request, reading)
    return found


class StreamReader(RowsWithPlan, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Answers Spark's questions in its source process. Only the task side is pickled: no address, no credential."""

    def __init__(self, request: StreamRequest, reading: ReadSpec) -> None:
        self.request = request
        self.task_side = TaskReader(reading)
        self.clock = SystemClock()
        self.limits = Limits(request, self.clock)

    @property
    @abstractmethod
    def log(self) -> Log:
        """The log, opened when it is first needed."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.task_side.read(partition)

    def __reduce__(self) -> Arrival:
        return self.task_side.__reduce__()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return self.limits.default()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        partitions = range(self.log.identity.partitions)
        self.limits.ends = {partition: self.log.bounds(partition)[1] for partition in partitions}

    def commit(self, end: Offset) -> None:
        """Comes one batch late, and for the last one never: what counts is done by ``latestOffset``."""

    # ---- who reads what ---------------------------------------------------------------------------------------------

    def tasks(self, ranges: Iterable[Range]) -> list[InputPartition]:
        """Make one task for each partition, more for long ranges if asked for, and a single one for a small batch."""
        read = self.request.read
        wanted = [part for part in ranges if part.rows]
        whole = slices_of(self.log, wanted)
        if self._is_small(whole):
            self.handed = list(self.task_side.batches(whole))
            return [InputPartition(whole)]
        if read.min_tasks is None and read.max_rows is None:
            return [InputPartition((part,)) for part in whole]
        return [InputPartition(slices_of(self.log, [part])) for part in split(wanted, read.min_tasks, read.max_rows)]

    def _is_small(self, slices: tuple[Slice, ...]) -> bool:
        """Whether it is quicker to read a batch here than to have tasks do it."""
        read, most = self.request.read, self._fast_rows
        rows = sum(part.end - part.start for part in slices)
        if not self.can_hand_over or read.min_tasks is not None or not 0 < rows <= min(most, read.max_rows or most):
            return False
        pieces = [piece for part in slices for piece in part.pieces]
        return all(piece.kind == "arrow" for piece in pieces) and sum(piece.length for piece in pieces) <= FAST_BYTES

    @cached_property
    def _fast_rows(self) -> int:
        from pxrs.runtime.queue.settings_file import (
            load_settings,  # here: the process that only plans does without the runtime
        )

        return load_settings().fast_rows


class PlainReader(StreamReader):
    """Reads all partitions of a queue, or those that are assigned. Its position is in Spark's checkpoint only."""

    def __init__(self, request: StreamRequest, reading: ReadSpec) -> None:
        super().__init__(request, reading)
        self._log: Log | None = None
        self._wake_event = threading.Event()
        self._initial: Offset | None = None
        self._ends: dict[int, int] = {}
        self._told: set[int] = set()

    @property
    def log(self) -> Log:
        if self._log is None:
            self._log = open_log(self.request.read.log)
            for partition in partitions_of(self.request.read, self._log):
                self._log.subscribe(partition, self._wake_event.set)
        return self._log

    @property
    def _chosen(self) -> tuple[int, ...]:
        return partitions_of(self.request.read, self.log)

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        if self._initial is None:  # asked twice, and "latest" must be the same place
            read = self.request.read
            starts = {p: offset_of(read.start, read, self.log, p, self.log.bounds(p)) for p in self._chosen}
            self._initial = encode_positions(self.log.identity, starts)
        return self._initial

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        self._wake_event.clear()
        positions = decode_positions(start, self.log.identity, self._chosen)
        found = self._next(positions, limit)
        if found is None and self.limits.ends is None and self._wake_event.wait(IDLE_SECONDS):
            found = self._next(positions, limit)
        return start if found is None else encode_positions(self.log.identity, found)

    def _next(self, positions: Mapping[int, int], limit: ReadLimit) -> dict[int, int] | None:
        """The position of each partition after the next batch; None if there is none."""
        begins = {p: self._begin(p, position) for p, position in positions.items()}
        waiting = {p: max(0, self.limits.end(p, self._ends[p]) - begin) for p, begin in begins.items()}
        rows = self.limits.rows(limit, sum(waiting.values()))
        if not rows:
            return None
        shares = share_out(waiting, rows)
        self.limits.planned()
        return {p: begins[p] + shares[p] if p in shares else position for p, position in positions.items()}

    def _begin(self, partition: int, position: int) -> int:
        """The start of a partition; behind deleted messages, if those may be passed over."""
        start, end = bounds = self.log.bounds(partition)
        self._ends[partition] = end
        if start <= position <= end:
            return position
        if self.request.read.fail_on_loss:
            refuse_offset(self.log.identity.name, partition, position, bounds)
        going_on = max(position, start)  # ahead of a log that was cut: an offset never goes back
        if partition not in self._told:
            self._told.add(partition)
            logger.error(
                "partition %d: offset %d is not stored any more; going on at %d", partition, position, going_on
            )
        return going_on

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        if start == end:
            return []
        begins, ends = (decode_positions(offset, self.log.identity, self._chosen) for offset in (start, end))
        ranges = (Range(p, self._begin(p, begins[p]), ends[p]) for p in self._chosen if ends[p] > begins[p])
        return self.tasks(part for part in ranges if part.rows > 0)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        return encode_positions(self.log.identity, self._ends) if self._ends else None

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()


# ---- how much a batch takes -----------------------------------------------------------------------------------------


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
        """The end of a query that reads what is available now."""

    def default(self) -> ReadLimit:
        if self._request.max_rows is not None:
            return ReadMaxRows(self._request.max_rows)
        return ReadAllAvailable() if self._request.min_rows is None else ReadMinRows(self._request.min_rows)

    def rows(self, limit: ReadLimit, waiting: int) -> int:
        """The number of waiting messages in the next batch; 0 if it waits for more of them."""
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
        """The end of a partition for this stream."""
        return end if self.ends is None else min(end, self.ends.get(partition, end))
