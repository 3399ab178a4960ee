"""What engines hand to a sink: Arrow tables and batches, or a Spark DataFrame, known by what it can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pxrs.errors import Refused

SMALL = 20_000
"""A Spark batch of at most so many messages is collected and written by the driver: one job less, 100 ms saved."""

_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"


def collected(output: Any, rows: int) -> Any:
    """The output as a table; a Spark DataFrame of a big batch stays what it is."""
    if hasattr(output, "toArrow") and hasattr(output, "write"):
        return output.toArrow() if rows <= SMALL else output
    if isinstance(output, pa.RecordBatch):
        output = [output]
    if isinstance(output, list) and all(isinstance(part, pa.RecordBatch) for part in output):
        return pa.Table.from_batches(output) if output else pa.table({})
    if isinstance(output, pa.Table):
        return output
    kind = type(output).__name__
    raise Refused(f"a sink takes a pyarrow Table, a RecordBatch, a list of them, or a Spark DataFrame, not {kind}")


def write_frame(frame: Any, path: str, compression: str, partition_by: Sequence[str] = ()) -> None:
    """Let the executors write Parquet files into a directory.

    From here on the session writes timestamps as Parquet's own type. Spark's default, INT96, has no time zone: read
    by Arrow it is another type than that of the files which the driver wrote beside it.
    """
    frame.sparkSession.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    writer = frame.write.mode("overwrite").option("compression", compression)
    (writer.partitionBy(*partition_by) if partition_by else writer).parquet(f"file://{path}")
