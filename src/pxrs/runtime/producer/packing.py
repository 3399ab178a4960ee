"""Packs messages that are not durable yet: parcels of messages, and the batches of partitions that they become.

A receipt is a view on a parcel, so one message costs a few list entries and nothing of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pxrs.errors import Unavailable
from pxrs.io.signals import Latch
from pxrs.logs import base
from pxrs.logs.base import ENTRY_SCHEMA, HEADERS, TIMESTAMP, FewRows, Log, Stamp
from pxrs.logs.message_size import headers_bytes
from pxrs.rules.routing.partitioner import round_robin
from pxrs.settings import check_seconds

FlushNow = Callable[["PendingBatch"], None]

_BODY_FIELDS = [ENTRY_SCHEMA.field(name) for name in ("timestamp", "key", "value", "headers", "tenant")]
BODY_SCHEMA: pa.Schema = pa.schema(_BODY_FIELDS)
"""The columns of an entry without its id, which is given when the parcel is packed."""
_ID_NUMBER = ENTRY_SCHEMA.get_field_index("id")
_ID = ENTRY_SCHEMA.field(_ID_NUMBER)

FEW = 512
"""Up to this many messages cost less one by one than arrays."""

nulls = base.nulls
_FEW_NULLS = {"headers": nulls(FEW, HEADERS), "tenant": nulls(FEW, pa.string())}

ROW_BYTES = 48
"""The bytes of a message beside its key and value: offset, time, id, and the arrays' own offsets."""
GIVEN_BYTES = 24
"""The bytes of these that are not yet in a batch of ``BODY_SCHEMA``: offset and id."""


class Routes(Protocol):
    """The functions of a partitioner that a producer needs."""

    def partition(self, key: bytes, /) -> int:
        """The partition of one key."""

    def partitions_of(self, keys: Any) -> NDArray[np.int32]:
        """The partition of each key, -1 for a null key."""


class PendingBatch:
    """Messages that become durable together, or fail together."""

    def __init__(self, flush_now: FlushNow) -> None:
        self.size = 0
        self.partitions: NDArray[np.int32] | None = None
        self.offsets: NDArray[np.int64] | None = None
        self.error: BaseException | None = None
        self.finished = Latch()
        self.flush_now = flush_now

    def count(self) -> int:
        """Its size in bytes."""
        return self.size

    @property
    def rows(self) -> int:
        """The number of messages."""
        raise NotImplementedError

    def body(self) -> pa.RecordBatch:
        """The messages as ``BODY_SCHEMA``."""
        raise NotImplementedError

    def route(self, routes: Routes, body: pa.RecordBatch) -> NDArray[np.int32]:
        return routes.partitions_of(body.column("key"))

    def settle(self, partitions: NDArray[np.int32], offsets: NDArray[np.int64]) -> None:
        self.partitions, self.offsets = partitions, offsets
        self.finished.set()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.finished.set()

    def wait(self, timeout: float | None) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Partitions and offsets of all messages, once they are durable."""
        if not self.finished.is_set():
            self.flush_now(self)
            if not self.finished.wait(timeout):
                raise Unavailable(f"not durable after {timeout} s; it may still become so")
        if self.error is not None:
            raise self.error
        assert self.partitions is not None and self.offsets is not None
        return self.partitions, self.offsets


class Extras(NamedTuple):
    """The headers, times and tenants that few messages have beside key and value."""

    time_us: int | None
    headers: list[dict[str, Any]] | None
    tenant: str | None

    @property
    def size(self) -> int:
        return headers_bytes(self.headers or ()) + len((self.tenant or "").encode())


class Receipt:
    """A promise for one message: a view on the batch it travels in.

    One is made for every message, and filled in by who makes it: a constructor would cost as much as the object.
    """

    __slots__ = ("parcel", "row")
    parcel: PendingBatch
    row: int

    def done(self) -> bool:
        """Whether the message is durable, or has failed."""
        return self.parcel.finished.is_set()

    def result(self, timeout: float | None = None) -> tuple[int, int]:
        """(partition, offset), once the message is durable. Asking sends the batch off without lingering."""
        if timeout is not None:
            check_seconds("timeout", timeout)
        partitions, offsets = self.parcel.wait(timeout)
        return int(partitions[self.row]), int(offsets[self.row])

    def __repr__(self) -> str:
        if not self.done():
            return "<Receipt: not stored yet>"
        if self.parcel.error is not None:
            return f"<Receipt: failed, {self.parcel.error}>"
        partition, offset = self.result()
        return f"<Receipt: stored in partition {partition} at offset {offset}>"


class SentParcel(PendingBatch):
    """Messages sent one by one. Extras are kept aside, by the message's number in the parcel."""

    def __init__(self, flush_now: FlushNow, due: float) -> None:
        super().__init__(flush_now)
        self.due = due
        self.room = 0
        """The size that it may reach without going beyond the producer's buffer."""
        self.look = 0
        """Up to this row, messages are put in without being counted."""
        self.keys: list[str | bytes | None] = []
        self.values: list[bytes] = []
        self.extras: dict[int, Extras] = {}
        self._counted = 0
        self._clock_rows: list[int] = []
        self._clock_times: list[float] = []

    def add(self, key: str | bytes | None, value: bytes, extras: Extras | None, now: float) -> int:
        """Put in a message with the time, which holds for those behind it as well until the next one that has one."""
        row = len(self.values)
        self.keys.append(key)
        self.values.append(value)
        self._clock_rows.append(row)
        self._clock_times.append(now)
        if extras is not None:
            self.extras[row] = extras
            self.size += extras.size
        return row

    def take_in(self, parcel: SentParcel) -> None:
        """Put the messages of another parcel behind those of this one."""
        first = len(self.values)
        self.keys += parcel.keys
        self.values += parcel.values
        self._clock_rows += [first + row for row in parcel._clock_rows]
        self._clock_times += parcel._clock_times
        self.extras.update((first + row, extras) for row, extras in parcel.extras.items())

    def count(self) -> int:
        values = self.values[self._counted :]
        if values:
            keys = filter(None, self.keys[self._counted :])
            self.size += sum(map(len, values)) + sum(map(len, keys)) + ROW_BYTES * len(values)
            self._counted += len(values)
        return self.size

    @property
    def rows(self) -> int:
        return len(self.values)

    def body(self) -> pa.RecordBatch:
        rows = self.rows
        columns = [
            pa.Array.from_buffers(TIMESTAMP, rows, [None, pa.py_buffer(self._times())]),
            pa.array(self.keys, pa.binary()),
            pa.array(self.values, pa.binary()),
            self._extra("headers", rows),
            self._extra("tenant", rows),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=BODY_SCHEMA)

    def times(self) -> list[int]:
        """The time of each message, in microseconds."""
        if len(self._clock_times) == 1:
            return [round(self._clock_times[0] * 1e6)] * len(self.values)
        found: list[int] = self._times().tolist()
        return found

    def all_keys(self) -> list[bytes | None]:
        return [key.encode() if isinstance(key, str) else key for key in self.keys]

    def _times(self) -> NDArray[np.int64]:
        rows, times = len(self.values), [round(time * 1e6) for time in self._clock_times]
        found = np.full(rows, times[0]) if len(times) == 1 else np.repeat(times, np.diff([*self._clock_rows, rows]))
        for row, extras in self.extras.items():
            if extras.time_us is not None:
                found[row] = extras.time_us
        return found

    def route(self, routes: Routes, body: pa.RecordBatch) -> NDArray[np.int32]:
        # Few keys are routed faster as they are; many as an array.
        return routes.partitions_of(self.keys) if len(self.keys) < FEW else super().route(routes, body)

    def _extra(self, field: str, rows: int) -> pa.Array:
        none = _FEW_NULLS[field]
        if not self.extras:
            return none.slice(0, rows) if rows <= FEW else nulls(rows, none.type)
        return pa.array([getattr(self.extras.get(row), field, None) for row in range(rows)], none.type)


def together(parcels: Sequence[PendingBatch]) -> list[PendingBatch]:
    """Join neighbouring parcels whose messages were sent one by one.

    Arrays of a whole shipment cost less than those of its parcels, and most of all fewer turns: after each step that
    lets other threads run, a busy sender keeps the packing thread waiting for Python's lock, up to 5 ms.
    """
    found: list[PendingBatch] = []
    for kind, run in groupby(parcels, type):
        neighbours = list(run)
        if kind is SentParcel and len(neighbours) > 1:
            whole = SentParcel(neighbours[0].flush_now, 0.0)
            for parcel in neighbours:
                whole.take_in(cast(SentParcel, parcel))
            neighbours = [whole]
        found += neighbours
    return found


class TableParcel(PendingBatch):
    """Messages that came as an Arrow batch, perhaps with their partitions."""

    def __init__(self, flush_now: FlushNow, batch: pa.RecordBatch, given: NDArray[np.int32] | None) -> None:
        super().__init__(flush_now)
        self._batch = batch
        self._given = given

    @property
    def rows(self) -> int:
        return int(self._batch.num_rows)

    def body(self) -> pa.RecordBatch:
        return self._batch

    def route(self, routes: Routes, body: pa.RecordBatch) -> NDArray[np.int32]:
        return super().route(routes, body) if self._given is None else self._given


class Handful(NamedTuple):
    """A few messages that were sent one by one, sorted into rows for each partition."""

    parcels: Sequence[SentParcel]
    rows: dict[int, FewRows]
    stamps: dict[int, Stamp]
    partitions: NDArray[np.int32]
    places: dict[int, list[int]]
    """The messages that went to each partition."""

    def append_to(self, log: Log) -> Mapping[int, int]:
        return log.append_rows(self.rows, self.stamps)

    def settle(self, firsts: Mapping[int, int]) -> None:
        """Tell each message its offset."""
        offsets = [0] * len(self.partitions)
        for partition, places in self.places.items():
            for offset, place in enumerate(places, firsts[partition]):
                offsets[place] = offset
        _settle(self.parcels, [parcel.rows for parcel in self.parcels], self.partitions, np.array(offsets, np.int64))


def _settle(
    parcels: Sequence[PendingBatch], rows: Sequence[int], partitions: NDArray[np.int32], offsets: NDArray[np.int64]
) -> None:
    start = 0
    for parcel, count in zip(parcels, rows, strict=True):
        parcel.settle(partitions[start : start + count], offsets[start : start + count])
        start += count


class Shipment(NamedTuple):
    """Parcels, sorted into one batch for each partition; appended as often as needed with the same stamps."""

    parcels: Sequence[PendingBatch]
    rows: list[int]
    batches: dict[int, pa.RecordBatch]
    stamps: dict[int, Stamp]
    partitions: NDArray[np.int32]
    order: NDArray[np.intp] | None

    def append_to(self, log: Log) -> Mapping[int, int]:
        return log.append(self.batches, self.stamps)

    def settle(self, firsts: Mapping[int, int]) -> None:
        """Tell each message its offset."""
        runs = [np.arange(firsts[p], firsts[p] + batch.num_rows) for p, batch in self.batches.items()]
        offsets = np.concatenate(runs)
        if self.order is not None:
            given, offsets = offsets, np.empty(len(self.order), np.int64)
            offsets[self.order] = given
        _settle(self.parcels, self.rows, self.partitions, offsets)


class Packer:
    """Routes messages, gives them ids, and sorts them into batches. Order within a partition is kept."""

    def __init__(self, routes: Routes, partitions: int, producer: bytes) -> None:
        self._routes = routes
        self._partitions = partitions
        self._producer = producer
        self._sequences: dict[int, int] = {}
        self._sent = 0
        # Many small producers must not all begin with partition 0.
        self._turn = int.from_bytes(producer, "big") % partitions

    def pack_any(self, parcels: Sequence[PendingBatch]) -> Shipment | Handful:
        """Few messages with nothing but key and value go without Arrow: to set it up costs more than they do."""
        sent = [parcel for parcel in parcels if isinstance(parcel, SentParcel) and not parcel.extras]
        if len(sent) == len(parcels) and sum(parcel.rows for parcel in sent) < FEW:
            return self._pack_few(sent)
        return self.pack(parcels)

    def _pack_few(self, parcels: Sequence[SentParcel]) -> Handful:
        keys = [key for parcel in parcels for key in parcel.all_keys()]
        values = [value for parcel in parcels for value in parcel.values]
        times = [time for parcel in parcels for time in parcel.times()]
        routed = self._routed(keys)
        ids = [self._producer + number.to_bytes(8, "big") for number in range(self._sent, self._sent + len(keys))]
        self._sent += len(keys)
        places: dict[int, list[int]] = {}
        for number, partition in enumerate(routed.tolist()):
            places.setdefault(partition, []).append(number)
        rows = {partition: rows_at(places[partition], times, keys, values, ids) for partition in sorted(places)}
        return Handful(parcels, rows, {number: self._stamp(number) for number in rows}, routed, places)

    def _routed(self, keys: list[bytes | None]) -> NDArray[np.int32]:
        if len(keys) > 1 or keys[0] is None:
            return self._placed(self._routes.partitions_of(keys))
        return np.array([self._routes.partition(keys[0])], np.int32)

    def pack(self, parcels: Sequence[PendingBatch]) -> Shipment:
        fewer = together(parcels)
        bodies = [parcel.body() for parcel in fewer]
        routed = [self._route(*each) for each in zip(fewer, bodies, strict=True)]
        partitions = routed[0] if len(routed) == 1 else np.concatenate(routed)
        batch = self._with_ids(joined(bodies))
        order = stable_order(partitions, self._partitions)
        batches = split(batch, partitions, order)
        stamps = {number: self._stamp(number) for number in batches}
        rows = [parcel.rows for parcel in parcels]
        return Shipment(parcels, rows, batches, stamps, partitions, order)

    def _route(self, parcel: PendingBatch, body: pa.RecordBatch) -> NDArray[np.int32]:
        return self._placed(parcel.route(self._routes, body))

    def _placed(self, found: NDArray[np.int32]) -> NDArray[np.int32]:
        """The partitions, with those of messages without a key in turns."""
        if found.min() < 0:
            keyless = np.flatnonzero(found < 0)
            found = found.copy()
            found[keyless] = round_robin(self._turn, len(keyless), self._partitions)
            self._turn = (self._turn + len(keyless)) % self._partitions
        return found

    def _with_ids(self, body: pa.RecordBatch) -> pa.RecordBatch:
        rows, first = body.num_rows, self._sent
        self._sent += rows
        ids = pa.py_buffer(ids_of(self._producer, first, rows))
        column = pa.FixedSizeBinaryArray.from_buffers(_ID.type, rows, [None, ids])
        return body.add_column(_ID_NUMBER, _ID, column)

    def _stamp(self, partition: int) -> Stamp:
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + 1
        return Stamp(self._producer.hex(), sequence)


# ---- rows sorted by partition ---------------------------------------------------------------------------------------


def rows_at(
    places: list[int], times: list[int], keys: list[bytes | None], values: list[bytes], ids: list[bytes]
) -> FewRows:
    """The messages at these positions."""
    if len(places) == len(values):
        return FewRows(times, keys, values, b"".join(ids))
    chosen = b"".join([ids[at] for at in places])
    return FewRows([times[at] for at in places], [keys[at] for at in places], [values[at] for at in places], chosen)


def ids_of(producer: bytes, first: int, rows: int) -> bytes | NDArray[np.uint64]:
    """The producer and the number of each message, as bytes one after the other."""
    if rows < FEW:
        return b"".join([producer + number.to_bytes(8, "big") for number in range(first, first + rows)])
    ids = np.empty((rows, 2), ">u8")
    ids[:, 0] = int.from_bytes(producer, "big")
    ids[:, 1] = np.arange(first, first + rows)
    return ids


def joined(bodies: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(bodies) == 1:
        return bodies[0]
    return pa.Table.from_batches(bodies).combine_chunks().to_batches()[0]


def stable_order(partitions: NDArray[np.int32], count: int) -> NDArray[np.intp] | None:
    """The rows to take, one partition after the other; None where they are in that order already."""
    if len(partitions) == 1 or not np.any(partitions[1:] < partitions[:-1]):
        return None
    # numpy sorts 16-bit numbers by radix, several times faster than wider ones.
    small = partitions.astype(np.int16) if count <= 32_767 else partitions
    return np.argsort(small, kind="stable")


def split(
    batch: pa.RecordBatch, partitions: NDArray[np.int32], order: NDArray[np.intp] | None
) -> dict[int, pa.RecordBatch]:
    """Slice the rows by partition, in rising order of partitions."""
    if batch.num_rows == 1:
        return {int(partitions[0]): batch}
    counts = np.bincount(partitions)
    numbers = np.flatnonzero(counts)
    if len(numbers) == 1:
        return {int(numbers[0]): batch}
    counts = counts[numbers]
    if order is not None:
        batch = _taken(batch, pa.array(order))
    starts = np.cumsum(counts) - counts
    slices = zip(numbers.tolist(), starts.tolist(), counts.tolist(), strict=True)
    return {number: batch.slice(start, count) for number, start, count in slices}


def _taken(batch: pa.RecordBatch, order: pa.Array) -> pa.RecordBatch:
    """The rows in this order. A column of nulls alone, as headers mostly are, is the same in any order."""
    rows = batch.num_rows
    columns = [column if column.null_count == rows else column.take(order) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
