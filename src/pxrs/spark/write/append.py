"""Appends staged files to the log: mapped, given ids and a time, in shipments with a stamp each.

How files are cut into shipments depends on nothing but the files. So every process appends the same
batches under the same stamps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from pxrs.errors import Damaged
from pxrs.io.clock import SystemClock
from pxrs.logs.base import ENTRY_SCHEMA, TIMESTAMP, Log
from pxrs.runtime.producer.append_once import AppendOnce, part_stamp
from pxrs.runtime.producer.packing import nulls
from pxrs.runtime.producer.retry import patiently
from pxrs.settings import Settings
from pxrs.spark.write.decisions import Decision, Ledger

SHIPMENT_BYTES = 16 << 20
"""The bytes that are appended at a time. It must not change: a retried shipment is known by its number."""
_LANES, _LANE_BYTES = 4, 1 << 20
"""Threads that append a large shipment, each with partitions of its own: one core cannot keep up."""
_ID = ENTRY_SCHEMA.field("id").type


class FilePart(NamedTuple):
    """Rows of one partition in a file, ``first`` rows behind its start."""

    rows: pa.RecordBatch
    file: int
    first: int


class JointAppend(NamedTuple):
    """The rows that are appended together to some partitions."""

    number: int
    parts: dict[int, list[FilePart]]

    @property
    def size(self) -> int:
        return sum(part.rows.nbytes for parts in self.parts.values() for part in parts)

    def batch(self, partition: int, time_us: int) -> pa.RecordBatch:
        batches = [_with_the_rest(part, time_us) for part in self.parts[partition]]
        return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def append_decided(log: Log, settings: Settings, ledger: Ledger, sequence: int, decision: Decision) -> None:
    """Append what was decided for a number, all that is not stored yet."""
    once = AppendOnce(log, lambda: ledger.holds(sequence))

    def append(shipment: JointAppend, partitions: list[int]) -> bool:
        stamp = part_stamp(f"spark-{os.path.basename(ledger.folder)}", sequence, shipment.number)
        rows = {partition: shipment.batch(partition, decision.time_us) for partition in partitions}
        return patiently(lambda: once.append(rows, stamp, decision.after), settings, SystemClock())

    try:
        _append_all(shipments(decision, ledger.place(sequence).staged), append)
    except FileNotFoundError as error:
        if ledger.holds(sequence):
            raise Damaged(f"a file that is to be stored is gone: {error}") from error


def _append_all(found: Iterator[JointAppend], append: Callable[[JointAppend, list[int]], bool]) -> None:
    """Append one shipment after the other, until another process has finished."""
    with ThreadPoolExecutor(_LANES + 1, thread_name_prefix="pxrs-append") as threads:
        coming = threads.submit(next, found, None)
        while (shipment := coming.result()) is not None:
            coming = threads.submit(next, found, None)  # is read while this one is appended
            lanes = _LANES if shipment.size >= _LANE_BYTES else 1
            shares = [share for lane in range(lanes) if (share := list(shipment.parts)[lane::lanes])]
            under_way = [threads.submit(append, shipment, share) for share in shares]
            if not all(done.result() for done in under_way):
                return


def shipments(decision: Decision, folder: str) -> Iterator[JointAppend]:
    """The rows of these files in the order of their tasks, small batches of a partition put together."""
    waiting: dict[int, list[FilePart]] = {}
    size = number = 0
    for partition, part in _parts(decision, folder):
        waiting.setdefault(partition, []).append(part)
        size += part.rows.nbytes
        if size >= SHIPMENT_BYTES:
            yield JointAppend(number, waiting)
            waiting, size, number = {}, 0, number + 1
    if waiting:
        yield JointAppend(number, waiting)


def _parts(decision: Decision, folder: str) -> Iterator[tuple[int, FilePart]]:
    for name in decision.files:
        path, first, file_id = os.path.join(folder, name), 0, xxhash.xxh3_64_intdigest(name.encode())
        try:
            with pa.memory_map(path) as file, pa.ipc.open_stream(file) as reader:
                for rows, about in reader.iter_batches_with_custom_metadata():
                    yield int(about[b"partition"]), FilePart(rows, file_id, first)
                    first += rows.num_rows
        except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
            raise Damaged(f"{path}, which is to be stored, cannot be read: {error}") from error


def _with_the_rest(part: FilePart, time_us: int) -> pa.RecordBatch:
    """The rows as the log takes them: what was not given is added here, the same each time."""
    count, now = part.rows.num_rows, pa.scalar(time_us, TIMESTAMP)
    columns: dict[str, pa.Array] = {name: part.rows.column(name) for name in part.rows.schema.names}
    columns["id"] = _ids(part)
    columns["timestamp"] = columns["timestamp"].fill_null(now) if "timestamp" in columns else pa.repeat(now, count)
    arrays = [columns[field.name] if field.name in columns else nulls(count, field.type) for field in ENTRY_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)


def _ids(part: FilePart) -> pa.Array:
    """The file, whose name is random, and the number of the row in it."""
    count = part.rows.num_rows
    ids = np.empty((count, 2), ">u8")
    ids[:, 0] = part.file
    ids[:, 1] = np.arange(part.first, part.first + count)
    return pa.FixedSizeBinaryArray.from_buffers(_ID, count, [None, pa.py_buffer(ids)])
