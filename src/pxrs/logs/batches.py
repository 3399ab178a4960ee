"""Helpers of all logs for record batches: check input, give offsets, find a time."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import pyarrow as pa

from pxrs.errors import BeyondEnd, Conflict, Expired, NotFound, Refused
from pxrs.logs.base import ENTRY_SCHEMA, SCHEMA, Stamp

_NEEDED = [number for number, field in enumerate(ENTRY_SCHEMA) if not field.nullable]
_OFFSET = SCHEMA.field("offset")


def check_entries(batch: pa.RecordBatch) -> None:
    """Refuse what is not ``ENTRY_SCHEMA``, and nulls where it has none."""
    if not batch.schema.equals(ENTRY_SCHEMA):
        raise Refused(f"a batch to append must have the columns {_listed(ENTRY_SCHEMA)}, not {_listed(batch.schema)}")
    for number in _NEEDED:
        if batch.column(number).null_count:
            raise Refused(f"column {ENTRY_SCHEMA.names[number]!r} of a batch to append holds a null")


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def check_partition(queue: str, partition: int, count: int) -> None:
    if not 0 <= partition < count:
        raise NotFound(f"queue {queue!r} has no partition {partition}: they are 0 to {count - 1}")


def with_offsets(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """The batch as readers will see it: its rows numbered from ``first`` on."""
    numbers = pa.py_buffer(np.arange(first, first + batch.num_rows, dtype=np.int64))
    return batch.add_column(0, _OFFSET, pa.Array.from_buffers(_OFFSET.type, batch.num_rows, [None, numbers]))


def numbers(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A column of 64-bit numbers or times, none of them null, without a copy. Each batch comes here."""
    if not len(column):
        return np.empty(0, np.int64)
    return np.frombuffer(column.buffers()[1], np.int64, len(column), 8 * column.offset)


def times(batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The timestamps in microseconds, without a copy."""
    return numbers(batch.column("timestamp"))


def first_at(batch: pa.RecordBatch, timestamp_us: int) -> int | None:
    """The first offset in this batch at or after a time. Times need not rise within a batch."""
    late = np.flatnonzero(times(batch) >= timestamp_us)
    return batch.column("offset")[int(late[0])].as_py() if len(late) else None


def refuse_other_rows(queue: str, partition: int, stamp: Stamp, stored: int, rows: int) -> None:
    """A batch that is sent again must be the same: else its rows would be acknowledged, and nowhere."""
    if stored != rows:
        raise Refused(
            f"queue {queue!r}, partition {partition}: producer {stamp.producer!r} sent batch {stamp.sequence} with "
            f"{stored} messages before, and with {rows} now: use a new number for new messages"
        )


class OtherRows(Refused):
    """Other rows were stored under this stamp: ``then`` and ``now`` say how many they are."""

    def __init__(self, text: str, then: int, now: int) -> None:
        super().__init__(text)
        self.then = then
        self.now = now


def refuse_other_content(queue: str, partition: int, stamp: Stamp, stored: str) -> None:
    """Refuse a retry with other content under the same stamp. A stored batch without a checksum is believed."""
    if stamp.content and stored and stamp.content != stored:
        then, now = (int(content.partition("/")[0]) for content in (stored, stamp.content))
        raise OtherRows(
            f"queue {queue!r}, partition {partition}: producer {stamp.producer!r} sent other messages as batch "
            f"{stamp.sequence} before ({then} then, {now} now): use a new number for new messages",
            then,
            now,
        )


def refuse_forgotten(queue: str, partition: int, stamp: Stamp, known_from: int) -> None:
    """Raise Conflict if a batch may be where the log does not know stamps any more."""
    if stamp.since is not None and stamp.since < known_from:
        raise Conflict(
            f"queue {queue!r}, partition {partition}: whether batch {stamp.sequence} of producer {stamp.producer!r} "
            f"is at offset {stamp.since} or behind is not known: stamps are remembered from {known_from} on"
        )


def refuse_offset(queue: str, partition: int, offset: int, bounds: tuple[int, int]) -> NoReturn:
    """Raise the error for an offset that cannot be read."""
    start, end = bounds
    where = f"queue {queue!r}, partition {partition}"
    if offset < start:
        raise Expired(f"{where}: offsets {offset} to {start - 1} are no longer stored; the log starts at {start}")
    raise BeyondEnd(
        f"{where}: offset {offset} is ahead of the log, which ends at {end}. "
        "If it is a checkpoint, the log was cut or created anew: seek the group to go on"
    )
