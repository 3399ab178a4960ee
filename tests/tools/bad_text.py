"""Arrow columns whose texts are not UTF-8, as a reader of Parquet hands them on."""

from __future__ import annotations

import pyarrow as pa

from pxrs.logs.base import HEADERS


def bad_text(content: bytes) -> pa.Array:
    """A column of one text, of these bytes."""
    ends = (0).to_bytes(4, "little") + len(content).to_bytes(4, "little")
    return pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(ends), pa.py_buffer(content)])


def bad_headers(name: bytes) -> pa.Array:
    """The headers of one message: one header of this name."""
    item = HEADERS.value_type
    pair = pa.StructArray.from_arrays([bad_text(name), pa.array([b"x"], pa.binary())], fields=list(item))
    return pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pair).cast(HEADERS)
