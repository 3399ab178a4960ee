"""The directories of ``partition_by``, named as Spark and Hive name them: ``city=Zürich/day=2026-01-31``.

Small batches are written by the driver and large ones by Spark, into the same directories. So names, and the texts of
values, are those of Spark; a value for which no name can be found that every reader reads back is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pxrs.errors import HandlerFailed, Refused

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The directory of null, and of the empty text: Hive has no name for that one."""
COPYING = "._COPYING_"
"""Spark takes what ends like this for a file on its way, and skips it."""
MOST_DIRECTORIES = 65_536
_MOST_BYTES = 255
"""The longest name in a directory, in the usual file systems."""
_ESCAPED = re.compile(r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_SPARK_TYPES = (
    "string", "char", "varchar", "byte", "short", "integer", "long", "boolean", "date", "decimal", "timestamp",
    "timestamp_ntz",
)  # fmt: skip


def check_frame(frame: Any, columns: Sequence[str]) -> None:
    """Refuse columns of a Spark DataFrame that cannot be directories."""
    for column in columns:
        kind = str(frame.schema[column].dataType.typeName())
        if kind not in _SPARK_TYPES:
            raise _bad_type(column, kind)


def check_table(table: pa.Table, columns: Sequence[str]) -> None:
    """Refuse columns of a table that cannot name directories, whatever is in them."""
    for column in columns:
        _printer(_plain(table.schema.field(column).type), column)


def split_table(table: pa.Table, columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Split a table by directory: each path with its rows, in their order, without the columns that are in the path."""
    parts = [_segments(table.column(column), column) for column in columns]
    paths = pc.binary_join_element_wise(*parts, "/").combine_chunks().dictionary_encode()
    if len(paths.dictionary) > MOST_DIRECTORIES:
        raise Refused(f"one batch of output would make {len(paths.dictionary)} directories; {MOST_DIRECTORIES} at most")
    order = pc.sort_indices(paths.indices)  # stable
    rows, start = table.drop_columns(list(columns)).take(order), 0
    counts = {one["values"]: one["counts"] for one in pc.value_counts(paths.indices).to_pylist()}
    for number, path in enumerate(paths.dictionary.to_pylist()):
        yield path, rows.slice(start, counts[number])
        start += counts[number]


def segment(column: str, text: str | None) -> str:
    """The name of the directory for one value, given as text."""
    if text is not None and (fault := _fault(text)):
        raise HandlerFailed(f"the value {_short(text)} of column {column!r} cannot name a directory: {fault}")
    name = f"{_escaped(column)}={_escaped(text) if text else NULL}"
    if len(name.encode()) > _MOST_BYTES:
        raise HandlerFailed(
            f"the value {_short(text or '')} of column {column!r} cannot name a directory: {len(name.encode())} bytes, "
            f"{_MOST_BYTES} at most"
        )
    return name


def _fault(text: str) -> str:
    if "\0" in text:
        return "it has a NUL in it"
    if text == NULL:
        return "readers take it for null"
    return "readers skip such names" if text.endswith(COPYING) else ""


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _short(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:60] + "…")


# ---- values as texts -------------------------------------------------------------------------------------------------


def _segments(values: pa.ChunkedArray, column: str) -> pa.ChunkedArray:
    """The name of the directory for each row; each value is looked at once."""
    values = values.cast(_plain(values.type))
    printed = _printer(values.type, column)
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", values.type.tz), safe=False)  # as in the files
    found = values.combine_chunks().dictionary_encode(null_encoding="encode")
    try:
        texts = [None if value is None else printed(value) for value in found.dictionary.to_pylist()]
    except (ValueError, OverflowError) as error:  # what is no text, and what Python has no date for
        raise HandlerFailed(f"a value of column {column!r} cannot name a directory: {error}") from error
    names = pa.array([segment(column, text) for text in texts], pa.string())
    return pa.chunked_array([names.take(found.indices)])


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _printer(kind: pa.DataType, column: str) -> Callable[[Any], str]:
    types = pa.types
    if types.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if types.is_integer(kind) or types.is_null(kind) or _is_text(kind):
        return str
    if types.is_date(kind):
        return date.isoformat
    if types.is_decimal(kind):
        return lambda value: format(value, "f")
    if types.is_timestamp(kind):
        return _moment
    raise _bad_type(column, str(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _moment(value: datetime) -> str:
    """In the column's own time zone, which for a DataFrame is the session's; without zeros at the end."""
    whole, _, fraction = value.replace(tzinfo=None).isoformat(" ", "microseconds").partition(".")
    fraction = fraction.rstrip("0")
    return f"{whole}.{fraction}" if fraction else whole


def _bad_type(column: str, kind: str) -> Refused:
    return Refused(
        f"partition_by = {column!r}: values of type {kind} have no name that all readers read back; cast the column to "
        "text (string), to whole numbers or to a date"
    )
