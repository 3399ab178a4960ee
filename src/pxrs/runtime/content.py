"""What a batch holds, in a few characters: how many rows, and a checksum that depends on their values alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash


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
