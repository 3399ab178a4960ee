"""Exact ranges of a queue as one DataFrame. Plans here, in the driver; the tasks get files and offsets only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial, reduce
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program calls it
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from pxrs.errors import BadSetting, Refused
from pxrs.logs.base import SCHEMA, Log, Piece
from pxrs.logs.read_errors import ReadFailed, reading
from pxrs.model import Range
from pxrs.rules.addressing import ONLY_FOR, Reader, own_rows
from pxrs.spark.read.columns import TYPES, check_columns, schema_of
from pxrs.spark.read.plan import Ranges, Slice, check_ranges, slices_of, spread
from pxrs.spark.read.task import MapArrow, ReadSpec, TaskReader, batches_of, joined, read_tasks, results

if TYPE_CHECKING:
    from pxrs.runtime.queue.queue import Queue

Schema: TypeAlias = str | StructType | pa.Schema
"""DDL text such as "account string, total long", a StructType, or an Arrow schema."""

_STORED = from_arrow_schema(schema_of([name for name in TYPES if name in SCHEMA.names]))
_BY_PARTITION = {"partition", "epoch"}
_MOST_SCANS = 64
_VERIFY = "parquet.page.verify-checksum.enabled"


def check_session(spark: object, who: str) -> None:
    """Refuse anything else, before something is done with it."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise BadSetting(
            f"{who} does not work over Spark Connect: it needs the JVM of a classic session, such as "
            'pxrs.spark.session() makes. What works: spark.read.format("pxrs") and spark.readStream.format("pxrs")'
        )
    if not isinstance(spark, SparkSession):
        raise BadSetting(f"{who} needs a SparkSession, not {spark!r}: pxrs.spark.session() makes one")


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
    log = log_of(queue)
    spec = frame_spec(log.identity.name, columns, map_arrow, schema)
    try:
        with reading():
            wanted = check_ranges(log, ranges)
            slices = slices_for_tasks(log, wanted)
        if slices:
            return frame_of(spark, slices, spec, tasks)
        return spark.createDataFrame(table_of(log, wanted, spec)[0], schema=spec.schema)
    except ReadFailed as error:  # who asked for messages, and runs no loop, gets the error of the log itself
        raise error.trouble from error


class FrameSpec(NamedTuple):
    """The checked parts of a frame: the columns that are read, or what a function makes of them."""

    reading: ReadSpec
    schema: StructType
    map_arrow: MapArrow | None

    def of_group(self, reader: Reader) -> FrameSpec:
        """The frame of a group, without the messages that it passes over."""
        return self._replace(reading=self.reading._replace(reader=reader))


def frame_spec(
    topic: str, columns: Iterable[str] | None, map_arrow: MapArrow | None, schema: Schema | None
) -> FrameSpec:
    """Check what is asked for. Nothing is read yet."""
    names = check_columns(columns)
    output = _output_schema(names, map_arrow, schema)
    return FrameSpec(ReadSpec(topic, names, to_arrow(output)), output, map_arrow)


def slices_for_tasks(log: Log, ranges: Iterable[Range]) -> tuple[Slice, ...] | None:
    """The slices that tasks read; None where they cannot: a log in memory refuses to say where its pieces are."""
    try:
        return slices_of(log, ranges)
    except Refused:
        return None


def frame_of(spark: SparkSession, slices: Iterable[Slice], spec: FrameSpec, tasks: int | None = None) -> DataFrame:
    """The messages of these slices, read by tasks; sealed files by the JVM."""
    shares = spread(slices, spark.sparkContext.defaultParallelism if tasks is None else tasks)
    return _load(spark, shares, spec) if spec.map_arrow is not None else _mixed(spark, shares, spec)


def nothing(spark: SparkSession, spec: FrameSpec) -> DataFrame:
    """A frame without messages, read by a task all the same: everything else that a frame needs must be there."""
    return _load(spark, ((),), spec)


def _mixed(spark: SparkSession, shares: Sequence[Sequence[Slice]], spec: FrameSpec) -> DataFrame:
    """Sealed files are read by the JVM; only what is not sealed goes through Python."""
    sealed: list[SealedPart] = []
    tails = [tuple(rest for one in share if (rest := _take_sealed(one, sealed)) is not None) for share in shares]
    frames = [read_sealed(spark, sealed, spec)] if sealed else []
    if any(tails):
        frames.append(_load(spark, tuple(tail for tail in tails if tail), spec))
    return united(frames)


def _take_sealed(part: Slice, sealed: list[SealedPart]) -> Slice | None:
    parts, rest = split(part)
    sealed += parts
    return rest


def _load(spark: SparkSession, shares: Sequence[Sequence[Slice]], spec: FrameSpec) -> DataFrame:
    """Not through the data source: Spark would plan that in two more processes, and copy each row once more."""
    function = None if spec.map_arrow is None else _pickled(spec.map_arrow)
    read = partial(read_tasks, shares, TaskReader(spec.reading, function))
    return spark.range(0, len(shares), 1, len(shares)).mapInArrow(read, spec.schema)


def log_of(queue: Queue | Log) -> Log:
    """The log of a queue, or the log itself."""
    found = queue if isinstance(queue, Log) else getattr(queue, "log", None)
    if not isinstance(found, Log):
        raise BadSetting(f"{queue!r} is no queue: open it first, with pxrs.open({queue!r})")
    return found


def _pickled(map_arrow: MapArrow) -> bytes:
    """Pickle the function by itself, so that one that cannot travel has an error of its own."""
    try:
        pickled: bytes = cloudpickle.dumps(map_arrow)  # type: ignore[no-untyped-call]  # pyspark has it untyped
    except Exception as error:
        raise BadSetting(f"map_arrow cannot be sent to Spark's workers: {error}. What does it refer to?") from error
    return pickled


# ---- sealed files, which the JVM reads: only the columns that are used -----------------------------------------------


class SealedPart(NamedTuple):
    """A sealed file, and which of its messages are wanted."""

    partition: int
    epoch: int
    path: str
    start: int
    end: int
    whole: bool


def split(part: Slice) -> tuple[list[SealedPart], Slice | None]:
    """The sealed files of a slice, which come first, and what is left of it."""
    sealed = [piece for piece in part.pieces if piece.kind == "parquet"]
    parts = [_part(part, piece) for piece in sealed]
    reached = parts[-1].end if parts else part.start
    if reached == part.end:
        return parts, None
    return parts, part._replace(start=reached, pieces=tuple(part.pieces[len(sealed) :]))


def _part(part: Slice, piece: Piece) -> SealedPart:
    start, end = max(part.start, piece.start), min(part.end, piece.end)
    return SealedPart(part.partition, part.epoch, piece.path, start, end, (start, end) == (piece.start, piece.end))


def read_sealed(spark: SparkSession, parts: Sequence[SealedPart], spec: FrameSpec) -> DataFrame:
    """Scan all files at once; or one scan for each partition if rows must name theirs. Spark would read the paths of
    files for that, even for an unused column: only very many partitions are worth it.
    """
    groups: list[Sequence[SealedPart]] = [parts]
    if not _BY_PARTITION.isdisjoint(spec.reading.columns):
        apart = [list(group) for _, group in groupby(sorted(parts), key=lambda part: part.partition)]
        groups = [*apart] if len(apart) <= _MOST_SCANS else groups
    return united([_read(spark, group, spec.reading) for group in groups]).to(spec.schema)


def _read(spark: SparkSession, parts: Sequence[SealedPart], spec: ReadSpec) -> DataFrame:
    """A scan over the files that are wanted as they are, and one over those of which a part is: few, and filtered."""
    whole, cut = [part for part in parts if part.whole], [part for part in parts if not part.whole]
    frames = [_scan(spark, whole)] if whole else []
    if cut:
        frames.append(_scan(spark, cut).where(reduce(Column.__or__, map(_wanted, cut))))
    if spec.reader is not None:
        frames = [frame.where(_meant_for(spec.reader)) for frame in frames]
    constants = _constants(spec.topic, parts)
    selected = [constants.get(name, F.col(name)).alias(name) for name in spec.columns]
    return united([frame.select(selected) for frame in frames])


def _scan(spark: SparkSession, parts: Sequence[SealedPart]) -> DataFrame:
    """Scan files with fixed rules for missing and damaged ones: no message is left out in silence."""
    options = {_VERIFY: True, "ignoreMissingFiles": False, "ignoreCorruptFiles": False}
    return spark.read.schema(_STORED).options(**options).parquet(*(_escaped(part.path) for part in parts))


def _escaped(path: str) -> str:
    """Spark takes a path for a pattern."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def _wanted(part: SealedPart) -> Column:
    """The end of a path is plain, however the path before it is written."""
    place = "/" + "/".join(part.path.split("/")[-2:])
    return F.col("_metadata.file_path").endswith(place) & F.col("offset").between(part.start, part.end - 1)


def _meant_for(reader: Reader) -> Column:
    """``Reader.is_meant`` for the JVM: the header of a message names no other group of this log."""

    def is_for_another(header: Column) -> Column:
        words = F.split(header["value"].cast("string"), "/")
        is_of_log = (F.size(words) == 3) & (words[0] == reader.log_id)
        return (header["key"] == ONLY_FOR) & is_of_log & (words[1] != reader.group)

    return F.coalesce(~F.exists("headers", is_for_another), F.lit(True))


def _constants(topic: str, parts: Sequence[SealedPart]) -> dict[str, Column]:
    partition = _by_partition({part.partition: part.partition for part in parts}, "int")
    epoch = _by_partition({part.partition: part.epoch for part in parts}, "long")
    return {"topic": F.lit(topic), "timestampType": F.lit(0), "partition": partition, "epoch": epoch}


def _by_partition(values: dict[int, int], kind: str) -> Column:
    """The expression for the partition of a row."""
    if len(set(values.values())) == 1:
        return F.lit(next(iter(values.values()))).cast(kind)
    number = F.regexp_extract("_metadata.file_path", r"/partition-(\d+)/[^/]+$", 1).cast("int")
    if all(partition == value for partition, value in values.items()):
        return number
    pairs = [F.lit(one) for pair in values.items() for one in pair]
    return F.create_map(pairs)[number].cast(kind)


def united(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.union, frames)


# ---- reading in this process -----------------------------------------------------------------------------------------


def table_of(log: Log, ranges: Iterable[Range], spec: FrameSpec) -> tuple[pa.Table, int]:
    """The messages of these ranges, one chunk, copied out of the log; and how many a group passes over.

    Quicker than tasks for few messages.
    """
    given, stored = spec.reading, StoredBatches(log, spec.reading.reader)
    batches = list(batches_of(given, (Slice(*part) for part in ranges), stored, spec.map_arrow))
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


def _output_schema(names: tuple[str, ...], map_arrow: MapArrow | None, schema: Schema | None) -> StructType:
    """The columns of the DataFrame: those that are read, or those that ``map_arrow`` makes of them."""
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
    """The schema of a function's result, from its result for a batch without rows."""
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
