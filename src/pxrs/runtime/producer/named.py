"""A producer with a name that outlives its process: what is sent again under the same number is stored once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from pxrs.errors import BadSetting, Refused
from pxrs.io.clock import Clock
from pxrs.logs.base import Log
from pxrs.logs.batches import OtherRows
from pxrs.model import check_name
from pxrs.runtime.producer.append_once import part_stamp
from pxrs.runtime.producer.packing import Packer, Routes, TableParcel
from pxrs.runtime.producer.retry import append_patiently
from pxrs.runtime.producer.table_input import parts_by_rows, whole_body
from pxrs.settings import Settings

_MAX_SEQUENCE = 1 << 40
_PART_ROWS = 16_384
"""Where a batch is cut. It must never change: a part that is sent again is known by its number."""


class NamedProducer:
    """Sends numbered batches. After a crash the next process of the same name sends the last ones again, each with its
    number and the same rows; the log knows them, and stores what is missing.

    How far back a log knows them is said by the log: a file log in its active segment and the one before it. Other rows
    under a number that it knows are refused.
    """

    def __init__(self, log: Log, routes: Routes, settings: Settings, clock: Clock, name: str) -> None:
        self.name = check_name("producer", name)
        self._log = log
        self._routes = routes
        self._settings = settings
        self._clock = clock

    def send_batch(
        self, table: pa.Table | pa.RecordBatch, sequence: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Store the rows, as ``Producer.send_batch`` takes them; returns their partitions and offsets once durable.

        ``sequence`` numbers the batches of this producer. The same number must always come with the same rows.
        """
        if type(sequence) is not int or not 0 <= sequence < _MAX_SEQUENCE:
            raise BadSetting(f"sequence = {sequence!r}: a whole number from 0 to {_MAX_SEQUENCE - 1}")
        now_us = round(self._clock.wall() * 1e6)
        count = self._log.identity.partitions
        # Ids, and the turns of messages without a key, must come out the same when the batch is sent again.
        packer = Packer(self._routes, count, xxhash.xxh3_64_digest(f"{self.name}/{sequence}".encode()))
        whole, partitions = whole_body(table, count, now_us, self._log.largest_message)
        content = content_of(_given(table, whole, partitions))
        stored = [
            self._store(packer, TableParcel(_no_hurry, body, given), sequence, part, content)
            for part, (body, given, _) in enumerate(parts_by_rows(whole, partitions, _PART_ROWS))
        ]
        if not stored:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        return np.concatenate([p for p, _ in stored]), np.concatenate([o for _, o in stored])

    def _store(
        self, packer: Packer, parcel: TableParcel, sequence: int, part: int, content: str
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        shipment = packer.pack([parcel])
        stamp = part_stamp(self.name, sequence, part, content)
        # Rows that were sent under this number before may stand in any partition. The first part tells.
        looked_at = shipment.batches if part else range(self._log.identity.partitions)
        stamps = dict.fromkeys(looked_at, stamp)
        try:
            shipment.settle(append_patiently(self._log, shipment.batches, stamps, self._settings, self._clock))
        except OtherRows as error:
            raise Refused(
                f"producer {self.name!r} has sent sequence {sequence} with other rows before ({error.then} then, "
                f"{error.now} now), and these are not stored: give new rows the next number"
            ) from error
        return parcel.wait(None)


def _given(table: pa.Table | pa.RecordBatch, whole: pa.Table, partitions: NDArray[np.int32] | None) -> pa.Table:
    """What the caller has said: a time that was added here is another one when the batch is sent again."""
    if "timestamp" not in table.schema.names or table.column("timestamp").null_count:
        whole = whole.drop_columns(["timestamp"])
    return whole if partitions is None else whole.append_column("partition", pa.array(partitions))


def _no_hurry(_: object) -> None:
    """Nothing lingers here."""


# ---- what a batch holds, in a few characters ------------------------------------------------------------------------


def content_of(table: pa.Table) -> str:
    """ROWS/CHECKSUM of a table, however it lies in memory: chunks, slices and unused bytes do not count."""
    digest = xxhash.xxh3_64()
    for name, column in zip(table.column_names, table.columns, strict=True):
        digest.update(name.encode())
        _add(digest, column.combine_chunks())
    return f"{table.num_rows:010d}/{digest.hexdigest()}"


def _add(digest: xxhash.xxh3_64, column: pa.Array) -> None:
    """Take in the values of a column: which there are, how long each is, and their bytes."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    digest.update(np.packbits(valid).tobytes())
    column = column.drop_null()
    if pa.types.is_list(column.type):
        digest.update(pc.list_value_length(column).to_numpy().tobytes())
        _add(digest, column.flatten())
    elif pa.types.is_struct(column.type):
        for number in range(column.type.num_fields):
            _add(digest, column.field(number))
    elif pa.types.is_timestamp(column.type) or pa.types.is_integer(column.type):
        digest.update(column.cast(pa.int64()).to_numpy().tobytes())
    else:
        _add_texts(digest, column.cast(pa.binary()))


def _add_texts(digest: xxhash.xxh3_64, column: pa.Array) -> None:
    digest.update(pc.binary_length(column).to_numpy().tobytes())
    _, ends, data = column.buffers()
    if len(column) and data is not None:
        first, last = np.frombuffer(ends, np.int32)[[column.offset, column.offset + len(column)]]
        digest.update(memoryview(data)[first:last])
