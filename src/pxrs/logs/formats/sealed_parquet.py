"""A sealed segment: one Parquet file with the columns of the log, in the order of offsets, without a gap.

Any program reads it with no help from us. Each page has its own checksum, and the manifest has one of the whole file.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

import numpy as np
import pyarrow as pa
import xxhash

from pxrs.errors import Damaged
from pxrs.logs.base import SCHEMA
from pxrs.logs.batches import times
from pxrs.logs.formats.manifest import Sealed

ROW_GROUP, ROW_GROUP_BYTES = 131_072, 16_777_216
"""Rows and bytes of one row group, about: what a reader here decodes, and keeps, at a time."""


def sealed_name(base: int) -> str:
    return f"{base:020d}.parquet"


def write_sealed(batches: Iterable[pa.RecordBatch], path: str, compression: str) -> tuple[int, int]:
    """Write and sync a Parquet file of these batches; returns the least and the greatest of their times."""
    import pyarrow.parquet as pq  # brings pandas along, and most processes seal and read nothing sealed

    first_us, last_us = 2**63 - 1, -(2**63)
    with open(path, "wb") as file:
        with pq.ParquetWriter(file, SCHEMA, compression=compression, write_page_checksum=True) as writer:
            for group in _groups(batches):
                at = times(group)
                first_us, last_us = min(first_us, int(at.min())), max(last_us, int(at.max()))
                writer.write_batch(group)
        file.flush()
        os.fsync(file.fileno())
    return first_us, last_us


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in row groups of a good size."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROW_GROUP or size >= ROW_GROUP_BYTES:
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)


def digest_of(path: str) -> str:
    """The checksum of a whole file, as it can be read back."""
    with pa.memory_map(path) as file:
        digest: str = xxhash.xxh3_64_hexdigest(memoryview(file.read_buffer()))
    return digest


def describe(path: str, start: int, end: int, first_us: int, last_us: int) -> Sealed:
    """The manifest's entry of a file that was just written."""
    return Sealed(sealed_name(start), start, end, first_us, last_us, os.path.getsize(path), digest_of(path))


def check_sealed(path: str, start: int, end: int) -> None:
    """Read a new file whole, checksums of its pages included: it must hold exactly these offsets."""
    file, reached = SealedFile(path, start), start
    for group in file.groups(start, end):
        _, batch = file.load(group)
        offsets = batch.column("offset").to_numpy()
        if not np.array_equal(offsets, np.arange(reached, reached + len(offsets))):
            raise Damaged(f"{path}: the offsets from {reached} on did not come back as they were written")
        reached += len(offsets)
    if reached != end:
        raise Damaged(f"{path}: the offsets {reached} to {end - 1} did not come back as they were written")


class SealedFile:
    """A sealed file that is open for reading, row group by row group."""

    def __init__(self, path: str, start: int) -> None:
        import pyarrow.parquet as pq

        self.path = path
        self.start = start
        try:
            self._file = pq.ParquetFile(path, memory_map=True, page_checksum_verification=True)
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Damaged(f"{path}: this sealed segment, from offset {start} on, cannot be read: {error}") from error
        if not self._file.schema_arrow.equals(SCHEMA):
            raise Damaged(f"{path}: this sealed segment, from offset {start} on, has not the columns of a log")
        metadata = self._file.metadata
        rows = (metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
        self._starts: list[int] = list(accumulate(rows, initial=start))

    @property
    def end(self) -> int:
        return self._starts[-1]

    def groups(self, start: int, end: int) -> range:
        """The row groups that hold a message of ``[start, end)``."""
        first = max(0, bisect_right(self._starts, start) - 1)
        return range(first, bisect_right(self._starts, end - 1) if end > start else first)

    def group_of(self, offset: int) -> int:
        return bisect_right(self._starts, offset) - 1

    def newest_us(self, group: int) -> int | None:
        """The newest time in a row group, as its statistics say; None if they do not."""
        statistics = self._file.metadata.row_group(group).column(SCHEMA.get_field_index("timestamp")).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        newest: int = statistics.max_raw
        return newest

    def load(self, group: int, columns: list[str] | None = None) -> tuple[int, pa.RecordBatch]:
        """The first offset of a row group, and its messages."""
        start = self._starts[group]
        try:
            table = self._file.read_row_group(group, columns=columns)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Damaged(f"{self.path}: the messages from offset {start} on are damaged: {error}") from error
        return start, _whole(table)


def _whole(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
