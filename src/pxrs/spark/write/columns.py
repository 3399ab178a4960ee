"""Chooses the columns of a frame that become messages, and the partition of a key.

All of it is checked when a write is planned, not in its tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import abs as absolute
from pyspark.sql.functions import col, lit, pmod, when, xxhash64
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from pxrs.errors import BadSetting, Mismatch, Refused
from pxrs.logs.base import LogIdentity
from pxrs.rules.routing.partitioner import NULL_KEY, Partitioner
from pxrs.settings import DEFAULT_HASH
from pxrs.spark.read.columns import nearest

if TYPE_CHECKING:
    from pxrs.runtime.queue.queue import Queue

ROUTED = "pxrs.routed"
"""The key in the metadata of ``routed``'s column: the partitions, hash and reduction that it was made for."""

_LOW_31_BITS = 0x7FFF_FFFF

OF_A_SOURCE = ("topic", "partition", "offset", "timestampType", "id", "epoch")
"""A frame with ``offset`` is from a queue's or Kafka's source: these columns say where its messages were."""


class Kind(NamedTuple):
    """The type of a column, in words, and what to write for another one."""

    fits: Callable[[DataType], bool]
    words: str
    cast: str


def _is_bytes(kind: DataType) -> bool:
    return isinstance(kind, StringType | BinaryType)


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    inside = {field.name: field.dataType for field in kind.elementType}
    return list(inside) == ["key", "value"] and isinstance(inside["key"], StringType) and _is_bytes(inside["value"])


def _is(*kinds: type[DataType]) -> Callable[[DataType], bool]:
    return lambda kind: isinstance(kind, kinds)


_HEADERS = "array<struct<key:string,value:binary>>"
KINDS: dict[str, Kind] = {
    "key": Kind(lambda kind: _is_bytes(kind) or isinstance(kind, NullType), "string or binary", "STRING"),
    "value": Kind(_is_bytes, "string or binary", "STRING"),
    "headers": Kind(_is_headers, _HEADERS, _HEADERS.upper()),
    "timestamp": Kind(_is(TimestampType), "timestamp", "TIMESTAMP"),
    "tenant": Kind(_is(StringType), "string", "STRING"),
    "partition": Kind(_is(ByteType, ShortType, IntegerType, LongType), "int", "INT"),
}
"""The columns that a write takes; all but value may be missing."""


def columns_to_write(schema: StructType) -> tuple[str, ...]:
    """The columns of a frame that are written, each checked; what it had from a source is left out."""
    names = [field.name for field in schema]
    left_out = _of_a_source(schema)
    if "value" not in names:
        raise Refused(
            f"a message needs a column 'value'; there are {names}: name it, as in "
            "df.selectExpr('CAST(account AS STRING) AS key', 'to_json(struct(*)) AS value')"
        )
    for field in schema:
        if field.name not in left_out:
            _check(field, names)
    return tuple(name for name in KINDS if name in names and name not in left_out)


def _of_a_source(schema: StructType) -> set[str]:
    if "offset" not in schema.fieldNames():
        return set()
    return {field.name for field in schema if field.name in OF_A_SOURCE and ROUTED not in (field.metadata or {})}


def _check(field: StructField, names: list[str]) -> None:
    kind = KINDS.get(field.name)
    if kind is None:
        raise Refused(
            f"a queue has no place for column {field.name!r}{nearest(field.name, KINDS)}; it takes {', '.join(KINDS)}: "
            "select these, or put the others into the value, as to_json(struct(*)) does"
        )
    if names.count(field.name) > 1:
        raise Refused(f"column {field.name!r} is there twice")
    if not kind.fits(field.dataType):
        raise Refused(
            f"column {field.name!r} is {field.dataType.simpleString()}, and {kind.words} is needed: "
            f"write {_cast(field, kind)} AS {field.name}"
        )


def _cast(field: StructField, kind: Kind) -> str:
    if kind.cast == "STRING" and isinstance(field.dataType, StructType | ArrayType | MapType | VariantType):
        return f"to_json({field.name})"
    return f"CAST({field.name} AS {kind.cast})"


def check_key(name: str, kind: DataType) -> None:
    """Refuse a key that has no bytes of its own, with the cast to write."""
    _check_kind = KINDS["key"]
    if not _check_kind.fits(kind):
        cast = _cast(StructField(name, kind), _check_kind)
        raise Refused(f"key {name!r} is {kind.simpleString()}, and {_check_kind.words} is needed: write {cast}")


def routing_mark(partitions: int, hash_name: str, reduce: str) -> dict[str, Any]:
    """The metadata of a routed column."""
    return {ROUTED: f"{partitions} {hash_name} {reduce}"}


def check_routed(schema: StructType, identity: LogIdentity) -> None:
    """Refuse a column that was routed for another queue."""
    for field in schema:
        found = (field.metadata or {}).get(ROUTED)
        wanted = routing_mark(identity.partitions, identity.hash, identity.reduce)[ROUTED]
        if field.name == "partition" and found not in (None, wanted):
            raise Mismatch(
                f"column 'partition' was routed for (partitions, hash, reduce) = ({found}), and queue "
                f"{identity.name!r} has ({wanted}): call routed(df, queue) with the queue that is written to"
            )


# ---- the partition of a key, as a column: the producer's choice, bit for bit -----------------------------------------


def routed(df: DataFrame, queue: Queue | Partitioner | int, key: str = "key", column: str = "partition") -> DataFrame:
    """The frame with a column that holds each key's partition in this queue; null for a null key, which the write
    sends round robin.

    ``queue`` is an open queue, a ``Partitioner``, or a number of partitions. Keys are string or binary. With the
    default hash this is an expression of Spark's own, ``pmod(xxhash64(key), n)``; other hashes go through Arrow.
    ``routed(df, queue).repartition(n, "partition")`` brings the rows of a partition together.
    """
    partitioner = _partitioner_of(queue)
    if key not in df.columns:
        raise Refused(f"there is no column {key!r} to route by{nearest(key, df.columns)}; there are {df.columns}")
    kind = df.schema[key].dataType
    check_key(key, kind)
    mark = routing_mark(partitioner.partitions, partitioner.hash, partitioner.reduce)
    found = _expression(col(f"`{key}`"), kind, partitioner).alias(column, metadata=mark)
    return df.select(*[col(f"`{name}`") for name in df.columns if name != column], found)


def _partitioner_of(queue: Queue | Partitioner | int) -> Partitioner:
    if isinstance(queue, Partitioner):
        return queue
    if type(queue) is int:
        return Partitioner(queue)
    found = getattr(queue, "partitioner", None)
    if not isinstance(found, Partitioner):
        raise BadSetting(f"queue = {queue!r}: an open queue, a pxrs.Partitioner or a number of partitions is needed")
    return found


def _expression(key: Column, kind: DataType, partitioner: Partitioner) -> Column:
    native = _native(key, kind, partitioner)
    if native is None:
        return _through_arrow(partitioner)(key.cast("binary"))
    return when(key.isNotNull(), native.cast("int"))


def _native(key: Column, kind: DataType, partitioner: Partitioner) -> Column | None:
    """Spark's own expression; None where it has none. A collated text is hashed by its meaning, not by its bytes."""
    if partitioner.hash != DEFAULT_HASH:
        return None
    hashed = xxhash64(key if not isinstance(kind, StringType) or kind == StringType() else key.cast("binary"))
    count = lit(partitioner.partitions)
    reductions = {
        "pmod": pmod(hashed, count),
        "abs": absolute(hashed % count),
        "mask": hashed.bitwiseAND(lit(_LOW_31_BITS)) % count,
    }
    return reductions.get(partitioner.reduce)


def _through_arrow(partitioner: Partitioner) -> Callable[[Column], Column]:
    def partition(keys: pa.Array) -> pa.Array:
        found = partitioner.partitions_of(keys)
        return pa.array(found, pa.int32(), mask=found == NULL_KEY)

    # Spark finds by the type hints which kind of function this is, and warns if it is named.
    found: Callable[[Column], Column] = arrow_udf(partition, IntegerType())  # type: ignore[call-overload]  # see above
    return found
