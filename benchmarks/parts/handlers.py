"""The functions of the benchmarks on Spark: RecordBatch in, RecordBatch out; the same ones for us and for the peers.

They are cheap on purpose: what a function costs, both sides pay, and it would only hide what is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

COLUMNS = ("key", "value", "offset")
"""What the functions are given, here and there."""


def measured(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Every message as it is, and how long it is."""
    return pa.RecordBatch.from_arrays([*batch.columns, pc.binary_length(batch.column("value"))], [*COLUMNS, "length"])


def sixteenth(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One message in sixteen, as it is, and how long it is."""
    return measured(batch.filter(pc.equal(pc.bit_wise_and(batch.column("offset"), 15), 0)))


def counted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """How many messages each account has of those in this batch."""
    grouped = pa.table({"key": batch.column("key")}).group_by("key").aggregate([([], "count_all")]).combine_chunks()
    return pa.RecordBatch.from_arrays([_only(column) for column in grouped.columns], ["key", "messages"])


def _only(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


@dataclass(frozen=True)
class Handler:
    """A function, what it returns, and sums that tell whether two sides have computed the same."""

    title: str
    function: Callable[[pa.RecordBatch], pa.RecordBatch]
    schema: str
    totals: tuple[str, ...]


_FULL = "key binary, value binary, offset long, length int"
_SUMS = ("sum(length)", "sum(offset)", "count(*)")

EACH_ROW = Handler("map_arrow, a row for each message", measured, _FULL, _SUMS)
ONE_IN_16 = Handler("map_arrow, 1 row in 16", sixteenth, _FULL, _SUMS)
COUNTED = Handler(
    "map_arrow, counts by account", counted, "key binary, messages long", ("sum(messages)", "count(distinct key)")
)
