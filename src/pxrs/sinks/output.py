"""The output that engines hand to a sink: Arrow tables and batches, or a Spark DataFrame, known by what it can do."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pxrs.errors import BadSetting, Refused, Unavailable
from pxrs.sinks.hive_names import COPYING, NULL
from pxrs.sinks.local_files import raise_of_disk, visible_files

SMALL = 20_000
"""A Spark batch of at most this many messages is collected and written by the driver: one job less, 100 ms saved."""

_CHUNK_ROWS, _CHUNK_BYTES = 10_000, 1_000_000
"""The largest piece of an output that is kept."""
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"


def collected(output: Any, rows: int) -> Any:
    """The output as a table; a Spark DataFrame of a big batch stays what it is."""
    if hasattr(output, "toArrow") and hasattr(output, "write"):
        return output.toArrow() if rows <= SMALL else output
    if isinstance(output, pa.RecordBatch):
        output = [output]
    if isinstance(output, list) and all(isinstance(part, pa.RecordBatch) for part in output):
        return _joined(output) if output else pa.table({})
    if isinstance(output, pa.Table):
        return output
    kind = type(output).__name__
    raise BadSetting(f"a sink takes a pyarrow Table, a RecordBatch, a list of them, or a Spark DataFrame, not {kind}")


def _joined(batches: list[pa.RecordBatch]) -> pa.Table:
    """Join tables. A column without any value in one batch (of no type for Arrow) gets the type of the others."""
    first = batches[0].schema
    for batch in batches[1:]:
        _check_same_columns(first, batch.schema)
    try:
        schema = pa.unify_schemas([batch.schema for batch in batches], promote_options="default")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise Refused(f"{_CHANGED}: {error}. Give the columns their types with a schema") from error
    return pa.concat_tables([pa.Table.from_batches([b]).select(schema.names).cast(schema) for b in batches])


def _check_same_columns(first: pa.Schema, other: pa.Schema) -> None:
    if first.names != other.names and (
        sorted(first.names) != sorted(other.names) or len(set(other.names)) < len(other)
    ):
        raise Refused(f"{_CHANGED}: {first.names} and {other.names}. Return the same columns for all messages")


_CHANGED = "the columns of the output are not the same for all messages"


def write_frame(frame: Any, path: str, compression: str, partition_by: Sequence[str] = ()) -> None:
    """Let the executors write Parquet files into a directory.

    From here on the session writes timestamps as Parquet's own type. Spark's default, INT96, has no time zone: read
    by Arrow it is another type than that of the files which the driver wrote beside it.
    """
    frame.sparkSession.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    is_one_machine = str(frame.sparkSession.sparkContext.master).startswith("local")
    written = None if is_one_machine else import_module("pyspark.sql").Observation()
    if written is not None:
        frame = frame.observe(written, import_module("pyspark.sql.functions").expr("count(*) AS rows"))
    writer = _checked(frame, partition_by).write.mode("overwrite").option("compression", compression)
    try:
        (writer.partitionBy(*partition_by) if partition_by else writer).parquet(f"file://{path}")
    except Exception as error:
        raise_of_disk(error, path)
        raise
    if written is not None:
        check_seen(path, int(written.get["rows"]))


def _checked(frame: Any, partition_by: Sequence[str]) -> Any:
    """Check the rows; a value whose directory readers would take for another, or skip, fails the batch. The driver says
    more when the message is alone.
    """
    for column in partition_by:
        if frame.schema[column].dataType.typeName() == "string":
            functions = import_module("pyspark.sql.functions")
            value = functions.col("`{}`".format(column.replace("`", "``")))
            said = functions.lit(f"a value of column {column!r} cannot name a directory")
            bad = (value == NULL) | value.endswith(COPYING)
            frame = frame.withColumn(column, functions.when(bad, functions.raise_error(said)).otherwise(value))
    return frame


def tables_in(path: str, rows: int) -> Iterator[pa.Table]:
    """Read what executors have written, in tables of this many rows; an empty one comes before those of a file."""
    for file in (file for file in visible_files(path) if file.endswith(".parquet")):
        with pq.ParquetFile(file) as opened:
            yield opened.schema_arrow.empty_table()
            yield from (pa.Table.from_batches([batch]) for batch in opened.iter_batches(rows))


def check_seen(path: str, rows: int) -> None:
    """Refuse output that executors have written to disks of their own: the driver would commit without it."""
    files = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    seen = sum(pq.read_metadata(file).num_rows for file in files if file.endswith(".parquet"))
    if seen != rows:
        raise Unavailable(
            f"executors wrote {rows} rows into {path}, and the driver sees {seen} there: it must be a directory that "
            "driver and executors share"
        )


# ---- output that is kept until its commit is known ------------------------------------------------------------------


class Output:
    """The output of one batch, in chunks, for as long as it may have to be written again. ``close`` frees it."""

    def __init__(self, output: Any, rows: int) -> None:
        self._table, self._directory = collected(output, rows), ""
        if not isinstance(self._table, pa.Table):
            frame, self._table = self._table, None
            self._directory = tempfile.mkdtemp(prefix="pxrs-output-")
            try:
                write_frame(frame, os.path.join(self._directory, "rows"), "none")
            except BaseException:
                self.close()
                raise
        empty = pa.schema([]) if self._table is None else self._table.schema
        self.schema = next((chunk.schema for chunk in self.chunks()), empty)
        self.rows = sum(chunk.num_rows for chunk in self.chunks())

    def chunks(self) -> Iterator[pa.Table]:
        if self._table is not None:
            yield from _sliced(self._table)
            return
        for table in tables_in(os.path.join(self._directory, "rows"), _CHUNK_ROWS):
            yield from _sliced(table)

    def close(self) -> None:
        self._table = None
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)


def _sliced(table: pa.Table) -> Iterator[pa.Table]:
    """In pieces of some rows and bytes each."""
    per_row = max(1, table.nbytes // max(1, table.num_rows))
    rows = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // per_row))
    return (table.slice(start, rows) for start in range(0, table.num_rows, rows))
