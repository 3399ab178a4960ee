"""Which partition a key belongs to, as a column: the producer's choice, bit for bit, in Spark's own words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import abs as absolute
from pyspark.sql.functions import col, lit, pmod, when, xxhash64
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DataType, IntegerType, StringType

from pxrs.errors import BadSetting, Refused
from pxrs.rules.routing.partitioner import NULL_KEY, Partitioner
from pxrs.settings import DEFAULT_HASH
from pxrs.spark.read.columns import nearest
from pxrs.spark.write.columns import check_key, routing_mark

if TYPE_CHECKING:
    from pxrs.runtime.queue.queue import Queue

_LOW_31_BITS = 0x7FFF_FFFF


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

    # Spark finds by the type hints which kind of function this is, and warns if it is told.
    found: Callable[[Column], Column] = arrow_udf(partition, IntegerType())  # type: ignore[call-overload]  # see above
    return found
