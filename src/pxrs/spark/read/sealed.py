"""The sealed history of a queue in Spark: Parquet files that the JVM reads, only the columns that are used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from itertools import groupby
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program calls it
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pxrs.logs.base import SCHEMA, Piece
from pxrs.rules.addressing import ONLY_FOR, Reader
from pxrs.spark.read.columns import TYPES, schema_of
from pxrs.spark.read.plan import Slice

_STORED = from_arrow_schema(schema_of([name for name in TYPES if name in SCHEMA.names]))
_BY_PARTITION = {"partition", "epoch"}
_MOST_SCANS = 64
_VERIFY = "parquet.page.verify-checksum.enabled"


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


def read_sealed(
    spark: SparkSession,
    topic: str,
    parts: Sequence[SealedPart],
    columns: Sequence[str],
    schema: StructType,
    reader: Reader | None = None,
) -> DataFrame:
    """One scan over all files; one for each partition if rows must tell theirs. Spark would read the paths of files
    for that, also where the column is not used in the end: only very many partitions are worth it."""
    groups: list[Sequence[SealedPart]] = [parts]
    if not _BY_PARTITION.isdisjoint(columns):
        apart = [list(group) for _, group in groupby(sorted(parts), key=lambda part: part.partition)]
        groups = [*apart] if len(apart) <= _MOST_SCANS else groups
    return united([_read(spark, topic, group, columns, reader) for group in groups]).to(schema)


def _read(
    spark: SparkSession, topic: str, parts: Sequence[SealedPart], columns: Sequence[str], reader: Reader | None
) -> DataFrame:
    """A scan over the files that are wanted as they are, and one over those of which a part is: few, and filtered."""
    whole, cut = [part for part in parts if part.whole], [part for part in parts if not part.whole]
    frames = [_scan(spark, whole)] if whole else []
    if cut:
        frames.append(_scan(spark, cut).where(reduce(Column.__or__, map(_wanted, cut))))
    if reader is not None:
        frames = [frame.where(_meant_for(reader)) for frame in frames]
    constants = _constants(topic, parts)
    selected = [constants.get(name, F.col(name)).alias(name) for name in columns]
    return united([frame.select(selected) for frame in frames])


def _scan(spark: SparkSession, parts: Sequence[SealedPart]) -> DataFrame:
    """Whatever the session says of missing and damaged files: no message is passed over in silence."""
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
    """What ``Reader.is_meant`` says, for the JVM: the mark in the headers names no other group of this log."""

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
    """What stands for the partition that a row is from."""
    if len(set(values.values())) == 1:
        return F.lit(next(iter(values.values()))).cast(kind)
    number = F.regexp_extract("_metadata.file_path", r"/partition-(\d+)/[^/]+$", 1).cast("int")
    if all(partition == value for partition, value in values.items()):
        return number
    pairs = [F.lit(one) for pair in values.items() for one in pair]
    return F.create_map(pairs)[number].cast(kind)


def united(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.union, frames)
