"""Sending messages to a queue: batched, routed by key, durable when the receipt says so.

Two producers: one for messages, and one with a name that outlives its process, for numbered batches.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from pxrs.errors import BadKey, BadSetting, Refused
from pxrs.io.clock import Clock
from pxrs.logs.base import Log
from pxrs.logs.batches import OtherRows
from pxrs.model import check_name
from pxrs.rules.addressing import refuse_name
from pxrs.runtime.producer.append_once import part_stamp
from pxrs.runtime.producer.buffer import Buffer
from pxrs.runtime.producer.packing import Extras, Packer, Receipt, Routes, TableParcel
from pxrs.runtime.producer.retry import append_patiently
from pxrs.runtime.producer.table_input import body_parts, parts_by_rows, whole_body
from pxrs.runtime.views.tables import counted
from pxrs.settings import Settings, check_seconds

__all__ = ["BatchReceipt", "NamedProducer", "Producer", "Receipt"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class BatchReceipt:
    """A promise for all messages of one ``send_batch``."""

    __slots__ = ("_parcels",)

    def __init__(self, parcels: list[TableParcel]) -> None:
        self._parcels = parcels

    def done(self) -> bool:
        return all(parcel.finished.is_set() for parcel in self._parcels)

    def result(self, timeout: float | None = None) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(partitions, offsets) of all rows in their order, once all are durable."""
        check_seconds("timeout", timeout)
        found = [parcel.wait(timeout) for parcel in self._parcels]
        if not found:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        return np.concatenate([p for p, _ in found]), np.concatenate([o for _, o in found])

    def __repr__(self) -> str:
        rows = sum(parcel.rows for parcel in self._parcels)
        if any(parcel.error is not None for parcel in self._parcels):
            return f"<BatchReceipt of {counted(rows, 'message')}: failed>"
        return f"<BatchReceipt of {counted(rows, 'message')}: {'stored' if self.done() else 'not stored yet'}>"


class Producer:
    """Sends messages to one queue. Safe to use from several threads; not across ``fork``.

    While the log is unavailable an append is repeated for ``send_timeout_ms``; any other failure ends the
    producer: its waiting messages fail, and later sends are refused with the cause.

    What is still in the buffer when the program ends is stored then, within ``send_timeout_ms``; messages that cannot
    be stored are named with their number in one line on stderr. Close a producer to get an error for them.
    """

    def __init__(
        self,
        log: Log,
        partitioner: Routes,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self.id = os.urandom(8).hex()
        self._partitions = log.identity.partitions
        self._queue = log.identity.name
        self._largest = log.largest_message
        self._settings = settings
        self._clock = clock
        packer = Packer(partitioner, self._partitions, bytes.fromhex(self.id))
        self._buffer = Buffer(log, packer, settings, clock)
        self._closed = False
        # A producer that is dropped still sends what it was given, and its thread then ends.
        self._dropped = weakref.finalize(self, self._buffer.drop)
        self._dropped.atexit = False

    def send(
        self,
        key: str | bytes | None,
        value: bytes | str,
        headers: Mapping[str, bytes | str] | None = None,
        *,
        timestamp: datetime | int | None = None,
        tenant: str | None = None,
    ) -> Receipt:
        """Send one message. Returns at once, unless the buffer is full; a bad message is refused here."""
        extras = None
        if headers is None and timestamp is None and tenant is None:
            receipt = self._buffer.put_small(key, value)
            if receipt is not None:
                return receipt
        else:
            extras = _extras(headers, timestamp, tenant)
        return self._buffer.put(_key(key), _value(value), extras)

    def send_batch(self, table: pa.Table | pa.RecordBatch) -> BatchReceipt:
        """Send the rows of an Arrow table: key, value [, headers, timestamp, tenant], in their order.

        A column ``partition``, if there is one, is taken as it is instead of routing by key.
        """
        now_us = round(self._clock.wall() * 1e6)
        parts = body_parts(table, self._partitions, now_us, self._settings.buffer_bytes, self._largest)
        parcels = []
        for batch, given, size in parts:
            parcel = TableParcel(self._buffer.flush_now, batch, given)
            parcel.size = size
            self._buffer.put_parcel(parcel)
            parcels.append(parcel)
        return BatchReceipt(parcels)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is durable; raises the first failure."""
        check_seconds("timeout", timeout)
        self._buffer.flush(timeout)

    def give_up(self) -> None:
        """Repeat no append that fails from now on: who waits need not wait for ``send_timeout_ms``."""
        self._buffer.given_up.set()

    @property
    def stored(self) -> int:
        """The number of durable messages so far, in the order in which they were sent."""
        return self._buffer.stored

    def close(self) -> None:
        """Flush and end; raises the first failure. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        self._dropped.detach()
        self._buffer.end()
        if self._buffer.failure is not None:
            raise self._buffer.failure

    def __repr__(self) -> str:
        return f"<Producer of queue {self._queue!r}: {self.stored} messages stored{', closed' if self._closed else ''}>"

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception:
            if error is None:  # else the body's own error says more
                raise


def _key(key: object) -> bytes | None:
    if key is None:
        return None
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise BadKey(f"key {key!r} has no UTF-8 form: {error.reason}") from None
    if isinstance(key, bytes):
        return bytes(key)
    raise BadKey(f"a key must be str, bytes or None, not {type(key).__name__}: write {_as_bytes('key', key)}")


def _value(value: object, what: str = "value") -> bytes:
    if isinstance(value, str):
        return _check_text(what, value)
    if isinstance(value, bytes):
        return bytes(value)
    raise Refused(
        f"a {what} must be bytes or str, not {type(value).__name__}: write {_as_bytes(what.split()[-1], value)}"
    )


def _as_bytes(what: str, value: object) -> str:
    """The call that sends this: bytes of buffers, the text of numbers, JSON of the rest."""
    if isinstance(value, bytearray | memoryview):
        return f"bytes({what})"
    if isinstance(value, int | float | UUID):
        return f"str({what})"
    return f"json.dumps({what}), or encode it yourself"


def _check_text(what: str, text: object) -> bytes:
    if not isinstance(text, str):
        raise Refused(f"a {what} must be str, not {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Refused(f"{what} {text!r} has no UTF-8 form: {error.reason}") from None


def _extras(headers: Mapping[str, bytes | str] | None, timestamp: datetime | int | None, tenant: str | None) -> Extras:
    if tenant is not None:
        _check_text("tenant", tenant)
    return Extras(
        None if timestamp is None else _microseconds(timestamp),
        None if headers is None else _pairs(headers),
        tenant,
    )


def _pairs(headers: Mapping[str, bytes | str]) -> list[dict[str, Any]]:
    if not isinstance(headers, Mapping):
        raise Refused(f"headers must be a mapping of names to bytes, not {type(headers).__name__}")
    for name in headers:
        _check_text("header name", name)
        refuse_name(name)
    return [{"key": name, "value": _value(value, "header value")} for name, value in headers.items()]


def _microseconds(timestamp: object) -> int:
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise Refused(f"timestamp {timestamp.isoformat()} has no time zone")
        return (timestamp - _EPOCH) // _MICROSECOND
    if type(timestamp) is int and -(2**63) <= timestamp < 2**63:
        return timestamp
    raise Refused(f"a timestamp must be a datetime or microseconds since 1970, not {timestamp!r}")


# ---- a producer with a name ------------------------------------------------------------------------------------------


_MAX_SEQUENCE = 1 << 40
_PART_ROWS = 16_384
"""The size at which a batch is cut. It must never change: a part that is sent again is known by its number."""


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
            self._store(packer, TableParcel(_no_flush, body, given), sequence, part, content)
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
        # Rows that were sent under this number before may be in any partition. The first part shows which.
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
    """The time that the caller has given: one that was added here differs when the batch is sent again."""
    if "timestamp" not in table.schema.names or table.column("timestamp").null_count:
        whole = whole.drop_columns(["timestamp"])
    return whole if partitions is None else whole.append_column("partition", pa.array(partitions))


def _no_flush(_: object) -> None:
    """Do nothing: no message lingers here."""


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
