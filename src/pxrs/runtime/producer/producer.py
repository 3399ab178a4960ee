"""Sending messages to a queue: batched, routed by key, durable when the receipt says so."""

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
from numpy.typing import NDArray

from pxrs.errors import BadKey, Refused
from pxrs.io.clock import Clock
from pxrs.logs.base import Log
from pxrs.rules.addressing import refuse_name
from pxrs.runtime.producer.buffer import Buffer
from pxrs.runtime.producer.packing import Extras, Packer, Receipt, Routes, TableParcel
from pxrs.runtime.producer.table_input import body_parts
from pxrs.runtime.views.tables import counted
from pxrs.settings import Settings, check_seconds

__all__ = ["BatchReceipt", "Producer", "Receipt"]

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
    be stored are told with their number in one line on stderr. Close a producer to hear of them as an error.
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
            parcel = TableParcel(self._buffer.hurry, batch, given)
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
        """How many messages are durable so far: the first so many of all that were sent."""
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
    """What somebody writes who wants to send this: bytes of buffers, the text of numbers, JSON of the rest."""
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
