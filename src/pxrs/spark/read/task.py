"""The task side: slices of a log in, Arrow batches out, exactly as Spark declared them.

Runs on executors. Imports the reading of pieces and pyarrow: no registry, no driver, no credential.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from pxrs.errors import HandlerFailed, Refused
from pxrs.logs.pieces import read_range
from pxrs.logs.read_errors import reading_each
from pxrs.rules.addressing import Reader, own_rows
from pxrs.spark.read.columns import Shaper, schema_of
from pxrs.spark.read.plan import Slice
from pxrs.spark.spark_internals import do_not_wait

ENOUGH_ROWS = 16_384
ENOUGH_BYTES = 2 << 20
"""Small stored batches are put together until there is this much; each batch on the wire has its price."""
MOST_ROWS = 65_536
"""A larger stored batch is cut: the JVM holds a batch as a whole."""

MapArrow = Callable[[pa.RecordBatch], Any]
"""RecordBatch → RecordBatch, None, or several RecordBatches."""


Stored = Callable[[Slice], Iterable[pa.RecordBatch]]
"""The function that reads the stored batches of a slice: from its pieces, or from an open log."""


class ReadSpec(NamedTuple):
    """The columns and the queue that are read, and the schema of the batches.

    ``reader``: the group that reads. It passes over dead letters that were sent again for another one.
    """

    topic: str
    columns: tuple[str, ...]
    schema: pa.Schema
    reader: Reader | None = None


Arrival = tuple[Callable[..., "TaskReader"], tuple[ReadSpec, bytes | None]]
"""The pickled function by which a worker gets its reader."""


class TaskReader:
    """The code that travels to executors: it turns slices into batches, and calls the user's function, if any."""

    def __init__(self, reading: ReadSpec, function: bytes | None = None) -> None:
        self.reading = reading
        self.function = function

    def __reduce__(self) -> Arrival:
        return arrived, (self.reading, self.function)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Read the batches of one task. Spark hands in its slices in order; None if it has none."""
        return self.batches(partition.value or ())

    def batches(self, slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
        """The messages of these slices, or what the user's function makes of them."""
        function = None if self.function is None else pickle.loads(self.function)
        if function is not None and not slices:  # only to see whether it can run here at all
            list(results(function(pa.RecordBatch.from_pylist([], schema=schema_of(self.reading.columns)))))
        return batches_of(self.reading, slices, self._stored, function)

    def _stored(self, part: Slice) -> Iterator[pa.RecordBatch]:
        columns, reader = self.reading.columns, self.reading.reader
        wanted = columns if reader is None else (*columns, "headers")  # these say for whom a message is
        found = reading_each(part.partition, read_range(part.pieces, part.start, part.end, wanted))
        return found if reader is None else (own_rows(batch, reader) for batch in found)


def arrived(reading: ReadSpec, function: bytes | None = None) -> TaskReader:
    """A reader that has come to a worker, before the slices that it is to read have."""
    do_not_wait()
    return TaskReader(reading, function)


def read_tasks(
    tasks: Sequence[Sequence[Slice]], reader: TaskReader, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """In the form that ``mapInArrow`` wants: the tasks whose numbers come in, one number for each Spark task."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from reader.batches(tasks[number])


def batches_of(
    reading: ReadSpec, slices: Iterable[Slice], stored: Stored, function: MapArrow | None = None
) -> Iterator[pa.RecordBatch]:
    """The batches of these slices, in order, in sizes that are good to hand on."""
    every = (batch for part in slices for batch in _batches(reading, part, stored, function))
    return coalesced(every, reading.schema)


def _batches(reading: ReadSpec, part: Slice, stored: Stored, function: MapArrow | None) -> Iterator[pa.RecordBatch]:
    if function is None:
        yield from _shaped(reading, part, stored, reading.schema)
        return
    given = schema_of(reading.columns)
    where = f"queue {reading.topic!r}, partition {part.partition}"
    for batch in coalesced(_shaped(reading, part, stored, given), given):  # a call never mixes partitions
        yield from call(function, batch, reading.schema, where)


def _shaped(reading: ReadSpec, part: Slice, stored: Stored, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    shaper = Shaper(reading.columns, reading.topic, part.partition, part.epoch)
    for batch in stored(part):
        for start in range(0, batch.num_rows, MOST_ROWS):
            yield pa.RecordBatch.from_arrays(shaper.shape(batch.slice(start, MOST_ROWS)), schema=schema)


def coalesced(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order; small neighbours are joined, large ones passed on without a copy."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if _is_large(batch):
            if waiting:
                yield joined(waiting, schema)
            waiting, rows, size = [], 0, 0
            yield batch
            continue
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ENOUGH_ROWS or size >= ENOUGH_BYTES:
            yield joined(waiting, schema)
            waiting, rows, size = [], 0, 0
    if rows:
        yield joined(waiting, schema)


def _is_large(batch: pa.RecordBatch) -> bool:
    return batch.num_rows >= ENOUGH_ROWS // 4 or bool(batch.nbytes >= ENOUGH_BYTES // 4)


def joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Copy all these batches into one."""
    arrays = [pa.concat_arrays([batch.column(at) for batch in batches]) for at in range(len(schema))]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# ---- the user's function ---------------------------------------------------------------------------------------------


def call(function: MapArrow, batch: pa.RecordBatch, schema: pa.Schema, where: str) -> Iterator[pa.RecordBatch]:
    """Call the function on a batch and shape the result by the schema; nothing for None and for empty batches."""
    try:
        for result in results(function(batch)):
            if result.num_rows:
                yield conform(result, schema)
    except Exception as error:
        error.add_note(f"in map_arrow, {where}, {batch.num_rows} rows{_offsets(batch)}")
        raise


def results(returned: Any) -> Iterable[pa.RecordBatch]:
    """The batches in whatever a function may return."""
    if returned is None:
        return ()
    if isinstance(returned, pa.RecordBatch):
        return (returned,)
    if isinstance(returned, Iterable) and not isinstance(returned, pa.Table):
        return _checked(returned)
    raise _not_a_batch(returned)


def _checked(returned: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    for one in returned:
        if not isinstance(one, pa.RecordBatch):
            raise _not_a_batch(one)
        yield one


def _not_a_batch(returned: object) -> HandlerFailed:
    return HandlerFailed(f"map_arrow returned a {type(returned).__name__}: a pyarrow.RecordBatch or None is needed")


def _offsets(batch: pa.RecordBatch) -> str:
    if "offset" not in batch.schema.names:
        return ""
    offsets = batch.column("offset")
    return f", offsets {offsets[0].as_py()} to {offsets[-1].as_py()}"


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly these fields, in this order; columns are found by name and cast where that is safe."""
    if batch.schema.equals(schema):
        return _without_nulls(batch)
    missing = [name for name in schema.names if name not in batch.schema.names]
    if missing or batch.num_columns != len(schema):
        raise Refused(
            f"map_arrow returned the columns {batch.schema.names}, and {schema.names} were declared: "
            "say with schema= what it returns"
        )
    arrays = [_cast(batch.column(field.name), field) for field in schema]
    return _without_nulls(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _without_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Refuse nulls in columns declared without: the JVM trusts the declaration and would show a value for a null."""
    for field, array in zip(batch.schema, batch.columns, strict=True):
        if not field.nullable and array.null_count:
            raise Refused(f"map_arrow returned a null in {field.name!r}, which was declared not to have any")
    return batch


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    if array.type.equals(field.type):
        return array
    try:
        return array.cast(field.type)
    except pa.ArrowException as error:
        raise Refused(f"map_arrow returned {field.name!r} as {array.type}, not {field.type}: {error}") from error
