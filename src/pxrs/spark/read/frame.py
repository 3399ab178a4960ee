"""Exact ranges of a queue as one DataFrame. Plans here, in the driver; the tasks get files and offsets only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from pxrs.errors import BadSetting, Refused
from pxrs.logs.base import Log
from pxrs.logs.read_errors import ReadFailed, reading
from pxrs.model import Range
from pxrs.rules.addressing import Reader, own_rows
from pxrs.spark.read.columns import check_columns, schema_of
from pxrs.spark.read.plan import Plan, Ranges, Slice, check_ranges, plan_of
from pxrs.spark.read.sealed import SealedPart, read_sealed, split, united
from pxrs.spark.read.session_kind import check_session
from pxrs.spark.read.task import MapArrow, ReadSpec, TaskReader, batches_of, joined, read_tasks, results

if TYPE_CHECKING:
    from pxrs.runtime.queue.queue import Queue

Schema: TypeAlias = str | StructType | pa.Schema
"""DDL text such as "account string, total long", a StructType, or an Arrow schema."""


def frame(
    spark: SparkSession,
    queue: Queue | Log,
    ranges: Ranges,
    columns: Iterable[str] | None = None,
    map_arrow: MapArrow | None = None,
    schema: Schema | None = None,
    tasks: int | None = None,
) -> DataFrame:
    """The messages of exactly these ranges: ``{partition: (start, end)}``, or ``Range`` objects.

    ``map_arrow`` is called next to the log, with Arrow batches of one partition each, in order; what it returns is
    the DataFrame. ``schema`` says what that is; left out, the function is asked with an empty batch. A partition is
    read by one task; ``tasks`` limits how many there are (default: as many as run at once).
    """
    check_session(spark, "frame")
    with _as_it_is():
        return group_frame(spark, queue, ranges, None, columns, map_arrow, schema, tasks)


def group_frame(
    spark: SparkSession,
    queue: Queue | Log,
    ranges: Ranges,
    reader: Reader | None,
    columns: Iterable[str] | None = None,
    map_arrow: MapArrow | None = None,
    schema: Schema | None = None,
    tasks: int | None = None,
) -> DataFrame:
    """The same for a group, without what it passes over."""
    log = log_of(queue)
    names = check_columns(columns)
    output = output_schema(names, map_arrow, schema)
    most = spark.sparkContext.defaultParallelism if tasks is None else tasks
    with reading():
        wanted = check_ranges(log, ranges)
        plan = plan_of(log, wanted, names, most) if wanted and _can_give_pieces(log, wanted[0]) else None
    if plan is None:
        table, _ = _read_here(log, wanted, ReadSpec(log.identity.name, names, to_arrow(output), reader), map_arrow)
        return spark.createDataFrame(table, schema=output)
    plan = plan._replace(reader=reader)
    return _load(spark, plan, output, map_arrow) if map_arrow is not None else _mixed(spark, plan, output)


def nothing(
    spark: SparkSession, log: Log, columns: tuple[str, ...], schema: StructType, map_arrow: MapArrow | None = None
) -> DataFrame:
    """No messages, read by a task all the same: what a frame needs besides messages must be there for this one too."""
    return _load(spark, Plan(log.identity.name, columns, ((),)), schema, map_arrow)


def _mixed(spark: SparkSession, plan: Plan, schema: StructType) -> DataFrame:
    """Sealed files are read by the JVM; only what is not sealed goes through Python."""
    sealed: list[SealedPart] = []
    tasks = [[rest for one in task if (rest := _take_sealed(one, sealed)) is not None] for task in plan.tasks]
    frames = [read_sealed(spark, plan.topic, sealed, plan.columns, schema, plan.reader)] if sealed else []
    if any(tasks):
        tail = plan._replace(tasks=tuple(tuple(task) for task in tasks if task))
        frames.append(_load(spark, tail, schema, None))
    return united(frames)


def _take_sealed(part: Slice, sealed: list[SealedPart]) -> Slice | None:
    parts, rest = split(part)
    sealed += parts
    return rest


def _load(spark: SparkSession, plan: Plan, schema: StructType, map_arrow: MapArrow | None) -> DataFrame:
    """Not through the data source: Spark would plan that in two more processes, and copy each row once more."""
    function = None if map_arrow is None else _pickled(map_arrow)
    reader = TaskReader(ReadSpec(plan.topic, plan.columns, to_arrow(schema), plan.reader), function)
    tasks = len(plan.tasks)
    return spark.range(0, tasks, 1, tasks).mapInArrow(partial(read_tasks, plan.tasks, reader), schema)


def arrow_of(
    queue: Queue | Log,
    ranges: Ranges,
    columns: Iterable[str] | None = None,
    map_arrow: MapArrow | None = None,
    schema: Schema | None = None,
) -> pa.Table:
    """What ``frame`` would hold, read in this process: quicker for few messages. One chunk, copied out of the log."""
    with _as_it_is():
        return group_table(log_of(queue), ranges, None, columns, map_arrow, schema)[0]


def group_table(
    log: Log,
    ranges: Ranges,
    reader: Reader | None,
    columns: Iterable[str] | None = None,
    map_arrow: MapArrow | None = None,
    schema: Schema | None = None,
) -> tuple[pa.Table, int]:
    """The same for a group, without what it passes over, and how many messages that were."""
    names = check_columns(columns)
    output = to_arrow(output_schema(names, map_arrow, schema))
    with reading():
        wanted = check_ranges(log, ranges)
    return _read_here(log, wanted, ReadSpec(log.identity.name, names, output, reader), map_arrow)


@contextmanager
def _as_it_is() -> Iterator[None]:
    """Who asked for messages, and runs no loop, gets the error of the log itself."""
    try:
        yield
    except ReadFailed as error:
        raise error.trouble from error


def log_of(queue: Queue | Log) -> Log:
    """The log of a queue, or the log itself."""
    found = queue if isinstance(queue, Log) else getattr(queue, "log", None)
    if not isinstance(found, Log):
        raise BadSetting(f"{queue!r} is no queue: open it first, with pxrs.open({queue!r})")
    return found


def _can_give_pieces(log: Log, part: Range) -> bool:
    """Whether other processes can read this log: one in memory refuses to say where its pieces are."""
    try:
        log.pieces(part.partition, part.start, part.end)
    except Refused:
        return False
    return True


def _pickled(map_arrow: MapArrow) -> bytes:
    """By itself, so that a function that cannot travel is told apart from what else might fail."""
    try:
        pickled: bytes = cloudpickle.dumps(map_arrow)  # type: ignore[no-untyped-call]  # pyspark has it untyped
    except Exception as error:
        raise BadSetting(f"map_arrow cannot be sent to Spark's workers: {error}. What does it refer to?") from error
    return pickled


# ---- reading in this process -----------------------------------------------------------------------------------------


def _read_here(log: Log, wanted: Iterable[Range], given: ReadSpec, map_arrow: MapArrow | None) -> tuple[pa.Table, int]:
    slices = (Slice(*part) for part in wanted)
    stored = StoredBatches(log, given.reader)
    batches = list(batches_of(given, slices, stored, map_arrow))
    # Spark's way into the JVM stumbles over slices with columns that are all null, and over columns with no chunk.
    whole = joined(batches, given.schema) if batches else pa.RecordBatch.from_pylist([], schema=given.schema)
    return pa.Table.from_batches([whole]), stored.passed_over


class StoredBatches:
    """The stored batches of an open log, as a group reads them; counts what is for other groups."""

    def __init__(self, log: Log, reader: Reader | None) -> None:
        self.passed_over = 0
        self._log = log
        self._reader = reader

    def __call__(self, part: Slice) -> Iterator[pa.RecordBatch]:
        offset = part.start
        while offset < part.end:
            with reading(part.partition):
                batch = self._log.read(part.partition, offset, part.end - offset)
            assert batch is not None, "the range was checked against the end of the log"
            own = batch if self._reader is None else own_rows(batch, self._reader)
            self.passed_over += batch.num_rows - own.num_rows
            yield own
            offset += batch.num_rows


# ---- what comes out --------------------------------------------------------------------------------------------------


def output_schema(columns: Iterable[str] | None, map_arrow: MapArrow | None, schema: Schema | None) -> StructType:
    """The columns of the DataFrame: those that are read, or those that ``map_arrow`` makes of them."""
    names = check_columns(columns)
    if map_arrow is None:
        if schema is not None:
            raise BadSetting("schema= says what map_arrow returns, and there is no map_arrow: choose with columns=")
        return from_arrow_schema(schema_of(names))
    declared = _schema_from(map_arrow, names) if schema is None else schema
    if isinstance(declared, pa.Schema):
        return _to_spark(declared)
    found = StructType.fromDDL(declared) if isinstance(declared, str) else declared
    if not isinstance(found, StructType):
        raise BadSetting(f"schema = {schema!r}: DDL text with named columns, a StructType or a pyarrow.Schema")
    return found


def _schema_from(map_arrow: MapArrow, columns: tuple[str, ...]) -> pa.Schema:
    """What the function makes of a batch without rows is what it makes of any."""
    empty = pa.RecordBatch.from_pylist([], schema=schema_of(columns))
    try:
        answer = next(iter(results(map_arrow(empty))), None)
    except Exception as error:
        raise BadSetting(f"map_arrow failed on an empty batch, {error!r}: say with schema= what it returns") from error
    if answer is None:
        raise BadSetting("map_arrow returned nothing for an empty batch: say with schema= what it returns")
    untold = [field.name for field in answer.schema if pa.types.is_null(field.type)]
    if untold:  # columns made of Python lists: an empty list has no type
        raise BadSetting(f"map_arrow gave no type to {untold} for an empty batch: say with schema= what it returns")
    return answer.schema


def _to_spark(schema: pa.Schema) -> StructType:
    try:
        return from_arrow_schema(schema)
    except Exception as error:
        raise BadSetting(f"Spark has no type for what map_arrow returns: {error}. Give schema=") from error


def to_arrow(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of a source with this schema."""
    return to_arrow_schema(schema, timezone="UTC")
