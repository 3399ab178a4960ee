"""Texts in Arrow columns that may not be UTF-8: refused where they come in, readable where they are stored already.

Arrow takes the bytes of a text as they are, from a Parquet file for instance. Python cannot decode them.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pxrs.errors import Refused


def refuse_bad_text(name: str, column: pa.Array | pa.ChunkedArray) -> None:
    """Refuse a column that holds a text, or the name of a header, which is not UTF-8."""
    if column.null_count == len(column):
        return
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise Refused(f"column {name!r} holds a text that is not UTF-8: {error}") from error


def values_of(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """A column of texts or headers as Python values; a byte that is not UTF-8 is written as ``\\xff``."""
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        return [_readable(value) for value in array.cast(_as_bytes(array.type)).to_pylist()]


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(pa.struct([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())]))
    return pa.binary()


def _readable(value: Any) -> Any:
    if isinstance(value, list):
        return [{"key": _readable(pair["key"]), "value": pair["value"]} for pair in value]
    return None if value is None else value.decode(errors="backslashreplace")
