"""Checks the table of ``send_batch`` column by column, brings it to the log's types, and cuts it to size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pxrs.errors import Refused
from pxrs.logs.base import HEADERS, TIMESTAMP
from pxrs.logs.message_size import refuse_large
from pxrs.rules.addressing import refuse_marked
from pxrs.rules.texts import refuse_bad_text
from pxrs.runtime.producer.buffer import SHIPMENT_BYTES
from pxrs.runtime.producer.packing import BODY_SCHEMA, GIVEN_BYTES, nulls

PART_BYTES = SHIPMENT_BYTES
"""A larger table travels in several parts, so that the buffer's bound holds; each is an append of its own..."""
PARTITION_BYTES = 262_144
"""...which should hold about this much for each partition, if the buffer has room for it: what a batch costs beside its
content is then the smaller part of it, for writers and for readers."""

_Part = tuple[pa.RecordBatch, "NDArray[np.int32] | None", int]


def _is_bytes(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind)
        for is_kind in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)
    )


def _is_key(kind: pa.DataType) -> bool:
    return _is_bytes(kind) or pa.types.is_null(kind)


def _is_text(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_null))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is not None


def _is_headers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return bool(pa.types.is_null(kind))
    item = kind.value_type
    return bool(pa.types.is_struct(item)) and [field.name for field in item] == ["key", "value"]


_ACCEPTED: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "key": (_is_key, "binary or string"),
    "value": (_is_bytes, "binary or string"),
    "headers": (_is_headers, str(HEADERS)),
    "timestamp": (_is_time, "a timestamp with a time zone"),
    "tenant": (_is_text, "string"),
    "partition": (pa.types.is_integer, "an integer"),
}


def body_parts(table: Any, partitions: int, now_us: int, buffer_bytes: int, most: int | None) -> list[_Part]:
    """The rows as batches of ``BODY_SCHEMA``, with the partitions if given, and the bytes each will hold.

    Everything is checked before the first part is returned: a bad table is refused whole. ``most``: the largest message
    that the log takes.
    """
    body, given = whole_body(table, partitions, now_us, most)
    parts = list(_cut(body, given, min(max(PART_BYTES, PARTITION_BYTES * partitions), buffer_bytes)))
    largest = max((size for _, _, size in parts), default=0)
    if largest > buffer_bytes:
        raise Refused(f"a message of {largest} bytes does not fit into buffer_bytes = {buffer_bytes}")
    return parts


def whole_body(table: Any, partitions: int, now_us: int, most: int | None) -> tuple[pa.Table, NDArray[np.int32] | None]:
    """The rows as a table of ``BODY_SCHEMA``, checked, with the partitions if given."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        raise Refused(f"send_batch takes a pyarrow Table or RecordBatch, not {type(table).__name__}")
    _check_columns(table.schema)
    given = _given_partitions(table, partitions) if "partition" in table.column_names else None
    body = _body(table, now_us)
    for name in ("headers", "tenant"):
        refuse_bad_text(name, body.column(name))
    refuse_marked(body.column("headers"))
    refuse_large(body, most)
    return body, given


def parts_by_rows(body: pa.Table, given: NDArray[np.int32] | None, rows: int) -> Iterator[_Part]:
    """Parts of the same size whatever the settings, and however the table lies in memory."""
    for start in range(0, body.num_rows, rows):
        part = body.slice(start, rows).combine_chunks().to_batches()[0]
        yield part, None if given is None else given[start : start + rows], part.nbytes


def _check_columns(schema: pa.Schema) -> None:
    for name in ("key", "value"):
        if name not in schema.names:
            raise Refused(f"send_batch needs a column {name!r} ({_ACCEPTED[name][1]}); there are {schema.names}")
    for field in schema:
        if field.name not in _ACCEPTED:
            raise Refused(f"send_batch knows no column {field.name!r}; it takes {', '.join(_ACCEPTED)}")
        accepts, expected = _ACCEPTED[field.name]
        if not accepts(field.type):
            raise Refused(f"column {field.name!r} of send_batch must be {expected}, not {field.type}")
    if len(set(schema.names)) < len(schema.names):
        raise Refused(f"send_batch was given a column twice: {schema.names}")


def _given_partitions(table: pa.Table, partitions: int) -> NDArray[np.int32]:
    column = table.column("partition")
    if column.null_count:
        raise Refused("column 'partition' of send_batch holds a null")
    found = column.to_numpy()
    if len(found) and (found.min() < 0 or found.max() >= partitions):
        raise Refused(f"column 'partition' of send_batch must hold 0 to {partitions - 1} only")
    return np.asarray(found, np.int32)


def _body(table: pa.Table, now_us: int) -> pa.Table:
    if table.column("value").null_count:
        raise Refused("column 'value' of send_batch holds a null")
    return pa.Table.from_arrays([_column(table, field, now_us) for field in BODY_SCHEMA], schema=BODY_SCHEMA)


def _column(table: pa.Table, field: pa.Field, now_us: int) -> pa.ChunkedArray:
    rows, now = table.num_rows, pa.scalar(now_us, TIMESTAMP)
    given = table.column(field.name) if field.name in table.column_names else None
    if field.name == "timestamp":
        return pa.chunked_array([pa.repeat(now, rows)]) if given is None else pc.fill_null(_cast(given, field), now)
    if given is None or given.null_count == rows:
        return pa.chunked_array([nulls(rows, field.type)])
    return _cast(given, field)


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return column.cast(field.type, safe=field.name != "timestamp")  # nanoseconds may be cut off
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Refused(f"column {field.name!r} of send_batch cannot become {field.type}: {error}") from error


def _cut(body: pa.Table, given: NDArray[np.int32] | None, limit: int) -> Iterator[_Part]:
    rows = body.num_rows
    size = body.nbytes + rows * GIVEN_BYTES
    if size > limit and rows > 1:
        # In even parts: each is as large as the limit allows, so that a shipment holds as few batches as can be.
        step = -(-rows // min(rows, -(-size // limit)))
        for start in range(0, rows, step):
            part = None if given is None else given[start : start + step]
            yield from _cut(body.slice(start, step), part, limit)
    elif rows:
        yield body.combine_chunks().to_batches()[0], given, size
