"""The columns of a queue in Spark: their names and types, and how they are made from stored batches.

Runs in Spark tasks: needs pyarrow, and nothing of Spark.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from pxrs.errors import BadSetting

_TEXT, _BYTES = pa.string(), pa.binary()
HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", _TEXT), pa.field("value", _BYTES)])))

TYPES: dict[str, pa.DataType] = {
    "key": _BYTES,
    "value": _BYTES,
    "topic": _TEXT,
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS,
    "id": _BYTES,
    "tenant": _TEXT,
    "epoch": pa.int64(),
}
"""All columns in their order, with the Arrow types that Spark makes of its own."""

PLAIN = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The default columns: those of Kafka's source."""

IDENTITY = ("id", "tenant", "epoch")
NEVER_NULL = frozenset({"value", "topic", "partition", "offset", "timestamp", "timestampType", "epoch"})

CHUNK_ROWS = 16_384
"""The rows of a constant column that is built once; longer ones are built apart."""


def check_columns(names: Iterable[str] | None) -> tuple[str, ...]:
    """The columns to read; the plain ones if none are named. An unknown or repeated one is refused by name."""
    if isinstance(names, str):
        raise BadSetting(f"columns = {names!r}: a list of names is needed, as in columns=[{names!r}]")
    found = PLAIN if names is None else tuple(names)
    for number, name in enumerate(found):
        if name not in TYPES:
            raise BadSetting(f"a queue has no column {name!r}{nearest(name, TYPES)}: there are {', '.join(TYPES)}")
        if name in found[:number]:
            raise BadSetting(f"column {name!r} is asked for twice")
    if not found:
        raise BadSetting("no column is asked for")
    return found


def nearest(name: object, known: Iterable[str]) -> str:
    """A hint for a mistyped name."""
    lowered = {word.lower(): word for word in known}
    close = difflib.get_close_matches(str(name).lower(), lowered, n=1)
    return f" (did you mean {lowered[close[0]]!r}?)" if close else ""


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """These columns as Spark declares them to Arrow: all may be null."""
    return pa.schema([pa.field(name, TYPES[name]) for name in columns])


def declared(columns: Sequence[str]) -> pa.Schema:
    """These columns as a source declares them: of what is never null the JVM need not ask of each value."""
    return pa.schema([pa.field(name, TYPES[name], nullable=name not in NEVER_NULL) for name in columns])


class Shaper:
    """Makes the asked-for columns out of a partition's stored batches, without a copy where types allow it."""

    def __init__(self, columns: Sequence[str], topic: str, partition: int, epoch: int) -> None:
        self.columns = columns
        self._constants = {"topic": topic, "partition": partition, "timestampType": 0, "epoch": epoch}
        self._built: dict[str, pa.Array] = {}

    def shape(self, stored: pa.RecordBatch) -> list[pa.Array]:
        """The columns of one stored batch."""
        return [self._column(name, stored) for name in self.columns]

    def _column(self, name: str, stored: pa.RecordBatch) -> pa.Array:
        if name in self._constants:
            return self._constant(name, stored.num_rows)
        return _CONVERTED.get(name, _as_it_is)(stored.column(name))

    def _constant(self, name: str, rows: int) -> pa.Array:
        built = self._built.get(name)
        if built is None or len(built) < rows:
            value = pa.scalar(self._constants[name], TYPES[name])
            built = self._built[name] = pa.repeat(value, max(rows, CHUNK_ROWS))
        return built.slice(0, rows)


def _as_it_is(array: pa.Array) -> pa.Array:
    return array


def _headers(array: pa.Array) -> pa.Array:
    return pa.nulls(len(array), HEADERS) if array.null_count == len(array) else array.cast(HEADERS)


def _id(array: pa.Array) -> pa.Array:
    return array.cast(_BYTES)


_CONVERTED: dict[str, Callable[[pa.Array], pa.Array]] = {"headers": _headers, "id": _id}
