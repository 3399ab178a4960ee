"""Counts the size of messages, for logs that take none above a limit: bytes of key, value, headers and tenant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pxrs.errors import Refused

HEADER_BYTES = 16
"""The bytes that a header takes beside its name and value."""


def headers_bytes(pairs: Iterable[dict[str, Any]]) -> int:
    """The bytes that the headers of one message take."""
    return sum(len(pair["key"].encode()) + len(pair["value"] or b"") + HEADER_BYTES for pair in pairs)


def row_bytes(rows: pa.Table | pa.RecordBatch) -> NDArray[np.int64]:
    """The size of each message of a table; columns that it does not have take nothing."""
    import pyarrow.compute as pc  # tasks of Spark import this module, and most of them do without

    sizes = np.zeros(rows.num_rows, np.int64)
    for name in ("key", "value", "tenant"):
        if name in rows.schema.names:
            sizes += pc.fill_null(pc.binary_length(rows.column(name)), 0).to_numpy().astype(np.int64)
    if "headers" in rows.schema.names:
        sizes += _of_headers(rows.column("headers"))
    return sizes


def _of_headers(column: pa.ChunkedArray | pa.Array) -> NDArray[np.int64]:
    headers = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if headers.null_count == len(headers):
        return np.zeros(len(headers), np.int64)
    import pyarrow.compute as pc

    pairs = headers.flatten()
    lengths = [pc.fill_null(pc.binary_length(pairs.field(name)), 0).to_numpy() for name in ("key", "value")]
    parents = pc.list_parent_indices(headers).to_numpy()
    return np.bincount(parents, sum(lengths) + HEADER_BYTES, minlength=len(headers)).astype(np.int64)


def refuse_large(rows: pa.Table | pa.RecordBatch, largest: int | None) -> None:
    """Refuse a table with a message above the log's limit, by its row; a table that is small as a whole has none."""
    if largest is None or rows.nbytes <= largest:
        return
    sizes = row_bytes(rows)
    if len(sizes) and sizes.max() > largest:
        row = int(np.argmax(sizes > largest))
        raise too_large(int(sizes[row]), largest, f"row {row}: ")


def too_large(size: int, largest: int, where: str = "") -> Refused:
    """The error for one message above the log's limit."""
    return Refused(
        f"{where}a message of {size} bytes is larger than this log takes: {largest} (of JetStream by the server's "
        "max_payload, at most 1 MiB). It was not sent: keep the content elsewhere and send a reference to it"
    )
