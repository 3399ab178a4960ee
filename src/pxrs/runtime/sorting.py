"""How messages are sorted into one batch for each partition."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pxrs.logs.base import Rows

FEW = 512
"""So many messages cost less one by one than the setting up of arrays."""


def rows_at(
    places: list[int], times: list[int], keys: list[bytes | None], values: list[bytes], ids: list[bytes]
) -> Rows:
    """Those of the messages that stand at these places."""
    if len(places) == len(values):
        return Rows(times, keys, values, b"".join(ids))
    chosen = b"".join([ids[at] for at in places])
    return Rows([times[at] for at in places], [keys[at] for at in places], [values[at] for at in places], chosen)


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
    """Which rows to take, one partition after the other; None where they stand like that already."""
    if len(partitions) == 1 or not np.any(partitions[1:] < partitions[:-1]):
        return None
    # numpy sorts 16-bit numbers by radix, several times faster than wider ones.
    small = partitions.astype(np.int16) if count <= 32_767 else partitions
    return np.argsort(small, kind="stable")


def split(
    batch: pa.RecordBatch, partitions: NDArray[np.int32], order: NDArray[np.intp] | None
) -> dict[int, pa.RecordBatch]:
    """One slice for each partition that occurs, in rising order of partitions."""
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
