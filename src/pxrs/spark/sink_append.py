"""From staged files to the log: mapped, given ids and a time, and appended in shipments, each with a stamp.

How files are cut into shipments depends on nothing but the files. So whoever carries a decision out appends the same
batches under the same stamps.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pxrs.clock import SystemClock
from pxrs.errors import Damaged
from pxrs.logs.base import ENTRY_SCHEMA, TIMESTAMP, Log, Stamp
from pxrs.runtime.appending import append_patiently
from pxrs.runtime.parcels import nulls
from pxrs.settings import Settings
from pxrs.spark.sink_ledger import Decision, Ledger

SHIPMENT_BYTES = 16 << 20
"""So much is appended at a time; it must not change: a shipment that is appended again is known by its number."""
_MAX_SHIPMENTS = 1 << 20
_LOOK_ROWS = 65_536
_ID = ENTRY_SCHEMA.field("id").type


class Shipment(NamedTuple):
    """One batch for each of some partitions."""

    number: int
    batches: dict[int, pa.RecordBatch]

    def marks(self) -> dict[int, bytes]:
        """The id of the first row for each partition. Rows are appended together, so where one stands all do."""
        return {partition: rows.column("id")[0].as_py() for partition, rows in self.batches.items()}


def append_decided(
    log: Log, settings: Settings, ledger: Ledger, sequence: int, decision: Decision, is_new: bool
) -> None:
    """Append what was decided for a number, all that is not stored yet. If it is new, nothing can be."""
    try:
        _append(log, settings, ledger, sequence, decision, is_new)
    except FileNotFoundError as error:
        if ledger.holds(sequence):
            raise Damaged(f"a file that is to be stored is gone: {error}") from error


def _append(log: Log, settings: Settings, ledger: Ledger, sequence: int, decision: Decision, is_new: bool) -> None:
    folder = ledger.place(sequence).staged
    stored = set() if is_new else _stored(log, decision, folder)
    for shipment in shipments(decision, folder):
        marks = shipment.marks()
        rows = {p: batch for p, batch in shipment.batches.items() if marks[p] not in stored}
        if not ledger.holds(sequence):  # who slept here must not append what the log no longer remembers
            return
        if rows:
            stamp = Stamp(f"spark-{os.path.basename(ledger.folder)}", sequence * _MAX_SHIPMENTS + shipment.number)
            append_patiently(log, rows, dict.fromkeys(rows, stamp), settings, SystemClock())


def shipments(decision: Decision, folder: str) -> Iterator[Shipment]:
    """The rows of these files in the order of their tasks, small batches of a partition put together."""
    waiting: dict[int, list[pa.RecordBatch]] = {}
    size = number = 0
    for partition, rows in _entries(decision, folder):
        waiting.setdefault(partition, []).append(rows)
        size += rows.nbytes
        if size >= SHIPMENT_BYTES:
            yield Shipment(number, {p: _joined(batches) for p, batches in waiting.items()})
            waiting, size, number = {}, 0, number + 1
    if waiting:
        yield Shipment(number, {p: _joined(batches) for p, batches in waiting.items()})


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _entries(decision: Decision, folder: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    for name in decision.files:
        path, first = os.path.join(folder, name), 0
        try:
            with pa.memory_map(path) as file, pa.ipc.open_stream(file) as reader:
                for rows, about in reader.iter_batches_with_custom_metadata():
                    yield int(about[b"partition"]), _with_the_rest(rows, name, first, decision.time_us)
                    first += rows.num_rows
        except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
            raise Damaged(f"{path}, which is to be stored, cannot be read: {error}") from error


def _with_the_rest(rows: pa.RecordBatch, file: str, first: int, time_us: int) -> pa.RecordBatch:
    """The rows as the log takes them: what was not given is added here, the same each time."""
    count, now = rows.num_rows, pa.scalar(time_us, TIMESTAMP)
    columns: dict[str, pa.Array] = {name: rows.column(name) for name in rows.schema.names}
    columns["id"] = _ids(file, first, count)
    columns["timestamp"] = columns["timestamp"].fill_null(now) if "timestamp" in columns else pa.repeat(now, count)
    arrays = [columns[field.name] if field.name in columns else nulls(count, field.type) for field in ENTRY_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)


def _ids(file: str, first: int, count: int) -> pa.Array:
    """The file, whose name is random, and the number of the row in it."""
    ids = np.empty((count, 2), ">u8")
    ids[:, 0] = xxhash.xxh3_64_intdigest(file.encode())
    ids[:, 1] = np.arange(first, first + count)
    return pa.FixedSizeBinaryArray.from_buffers(_ID, count, [None, pa.py_buffer(ids)])


def _stored(log: Log, decision: Decision, folder: str) -> set[bytes]:
    """The marks that stand in the queue already. A log knows only the latest stamps, and this may come much later."""
    marks: dict[int, list[bytes]] = {}
    for shipment in shipments(decision, folder):
        for partition, mark in shipment.marks().items():
            marks.setdefault(partition, []).append(mark)
    return {mark for partition, own in marks.items() for mark in _found(log, partition, decision.after, own)}


def _found(log: Log, partition: int, after: Mapping[int, int], marks: list[bytes]) -> Iterator[bytes]:
    wanted = pa.array(marks, _ID)
    offset = max(log.bounds(partition)[0], after.get(partition, 0))
    while (batch := log.read(partition, offset, _LOOK_ROWS)) is not None:
        ids = batch.column("id")
        yield from ids.filter(pc.is_in(ids, value_set=wanted)).to_pylist()
        offset += batch.num_rows
