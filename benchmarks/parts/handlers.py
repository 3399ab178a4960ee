"""The functions of the benchmarks on Spark: RecordBatch in, RecordBatch out; the same ones for us and for the peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.parts.messages import amounts

COLUMNS = ("key", "value", "offset")
"""What the functions are given, here and there."""


def enriched(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Every message as it is, with the amount that stands in it."""
    return pa.RecordBatch.from_arrays([*batch.columns, amounts(batch)], [*COLUMNS, "amount"])


def sixteenth(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One message in sixteen, by its amount; as large as it is, with the amount."""
    full = enriched(batch)
    return full.filter(pc.equal(pc.bit_wise_and(full.column("amount"), 15), 0))


def counted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """How many messages each account has of those in this batch, and the sum of their amounts."""
    table = pa.table({"key": batch.column("key"), "amount": amounts(batch)})
    grouped = table.group_by("key").aggregate([([], "count_all"), ("amount", "sum")]).combine_chunks()
    return pa.RecordBatch.from_arrays([_only(column) for column in grouped.columns], ["key", "messages", "amount"])


def _only(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


@dataclass(frozen=True)
class Handler:
    """A function, what it returns, and sums that tell whether two sides have computed the same."""

    title: str
    function: Callable[[pa.RecordBatch], pa.RecordBatch]
    schema: str
    totals: tuple[str, ...]


_FULL = "key binary, value binary, offset long, amount long"
_SUMS = ("sum(amount)", "sum(offset)", "count(*)")

EACH_ROW = Handler("map_arrow, a row for each message", enriched, _FULL, _SUMS)
ONE_IN_16 = Handler("map_arrow, 1 row in 16", sixteenth, _FULL, _SUMS)
COUNTED = Handler(
    "map_arrow, counts by account", counted, "key binary, messages long, amount long", ("sum(messages)", "sum(amount)")
)
