"""The sink refuses in the driver when a write is planned: by name, with what to write instead; no trace stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

import pxrs
from pxrs.errors import Mismatch, NotFound, PxrsError, Refused
from pxrs.spark.read.source import DefaultSource

TEXT, PAIR = StringType(), StructType([StructField("a", LongType())])


def schema(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


MESSAGES = schema(key=TEXT, value=BinaryType())


@pytest.fixture
def url(tmp_path: Path) -> str:
    pxrs.open(f"file:{tmp_path}/orders", partitions=4).close()
    return f"file:{tmp_path}/orders"


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ({"key": LongType(), "value": TEXT}, r"column 'key' is bigint, .* write CAST\(key AS STRING\) AS key"),
        ({"value": DateType()}, r"column 'value' is date, .* write CAST\(value AS STRING\) AS value"),
        ({"value": PAIR}, r"column 'value' is struct<a:bigint>, .* write to_json\(value\) AS value"),
        ({"value": TEXT, "partition": TEXT}, r"write CAST\(partition AS INT\) AS partition"),
        ({"value": TEXT, "timestamp": TimestampNTZType()}, r"write CAST\(timestamp AS TIMESTAMP\) AS timestamp"),
        ({"value": TEXT, "tenant": BinaryType()}, r"write CAST\(tenant AS STRING\) AS tenant"),
        ({"value": TEXT, "headers": MapType(TEXT, TEXT)}, "'headers' is map<string,string>, and array<struct<key:str"),
        ({"value": TEXT, "headers": ArrayType(PAIR)}, "'headers' is array<struct<a:bigint>>, and array<struct<key:str"),
        ({"value": TEXT, "id": LongType()}, "a queue has no place for column 'id'"),
        ({"value": TEXT, "topic": TEXT}, "a queue has no place for column 'topic'"),
        ({"valeu": TEXT}, "a message needs a column 'value'; there are .'valeu'."),
    ],
)
def test_columns_that_do_not_fit_come_back_with_the_cast_to_write(
    url: str, kinds: dict[str, DataType], said: str
) -> None:
    for plan in (DefaultSource({"path": url}).writer, DefaultSource({"path": url}).streamWriter):
        with pytest.raises(Refused, match=said):
            plan(schema(**kinds), False)


def test_a_repeated_column_is_refused(url: str) -> None:
    twice = StructType([StructField("value", TEXT), StructField("value", TEXT)])
    with pytest.raises(Refused, match="column 'value' is there twice"):
        DefaultSource({"path": url}).writer(twice, False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partition": "3"}, r"option 'partition' is not known to a write \(did you mean 'partitions'"),
        ({"partitions": "many"}, "option 'partitions' = 'many': a whole number from 1"),
        ({"partitions": "0"}, "option 'partitions' = '0'"),
        ({"partitions": "5"}, "was created with partitions = 4, and is opened with 5"),
        ({"hash": "xxh64"}, "was created with hash = 'xxh64-spark', and is opened with 'xxh64'"),
        ({"hash": "md5"}, "hash 'md5' is not known"),
        ({"reduce": "none"}, "reduce 'none' is not known"),
        ({"topic": "bills"}, "option 'topic' names the queue 'bills'; the one in .* is 'orders'"),
        ({"pxrs.durability": "perhaps"}, "durability = 'perhaps'"),
        ({"pxrs.segment.bytes": "much"}, r"option 'pxrs.segment.bytes' = 'much'"),
        ({"pxrs.log": "file:elsewhere"}, "name two logs"),
        ({"pxrs.staging": "s3://bucket/place"}, "a sink writes to a local directory"),
        ({"startingOffsets": "earliest"}, "option 'startingOffsets' is not known to a write"),
    ],
)
def test_a_wrong_option_is_named(url: str, options: dict[str, str], said: str) -> None:
    for plan in (DefaultSource({"path": url, **options}).writer, DefaultSource({"path": url, **options}).streamWriter):
        with pytest.raises(PxrsError, match=said):
            plan(MESSAGES, False)


def test_a_write_may_have_a_name_and_a_stream_has_its_own(url: str) -> None:
    with pytest.raises(Refused, match=r"numbers the writes of a 'pxrs.producer.name'"):
        DefaultSource({"path": url, "pxrs.producer.sequence": "3"}).writer(MESSAGES, False)
    with pytest.raises(Refused, match=r"producer name '../away' is not usable"):
        DefaultSource({"path": url, "pxrs.producer.name": "../away"}).writer(MESSAGES, False)
    with pytest.raises(Refused, match="numbered by Spark, and its checkpoint names it"):
        DefaultSource({"path": url, "pxrs.producer.name": "x"}).streamWriter(MESSAGES, False)
    DefaultSource({"path": url, "checkpointlocation": "anywhere"}).streamWriter(MESSAGES, False)
    with pytest.raises(Refused, match="option 'path' is missing"):
        DefaultSource({}).writer(MESSAGES, False)


def test_what_is_refused_makes_no_queue(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/nothing"
    with pytest.raises(NotFound, match=r"there is no queue in .* set option 'partitions' to create it"):
        DefaultSource({"path": url}).writer(MESSAGES, False)
    for options, wrong, overwrite in (
        ({}, schema(key=LongType(), value=TEXT), False),
        ({"hash": "md5"}, MESSAGES, False),
        ({"pxrs.staging": "s3://bucket"}, MESSAGES, False),
        ({"pxrs.durability": "perhaps"}, MESSAGES, False),
        ({}, MESSAGES, True),
    ):
        with pytest.raises(Refused):
            DefaultSource({"path": url, "partitions": "4", **options}).writer(wrong, overwrite)
    with pytest.raises(Refused, match="lives in the memory of one process"):
        DefaultSource({"path": "memory:orders", "partitions": "4"}).writer(MESSAGES, False)
    assert os.listdir(tmp_path) == []


def test_nothing_is_overwritten(url: str) -> None:
    with pytest.raises(Refused, match=r"a queue only grows.* mode must be append"):
        DefaultSource({"path": url}).writer(MESSAGES, True)
    with pytest.raises(Refused, match=r"a queue only grows.* output mode must be append"):
        DefaultSource({"path": url}).streamWriter(MESSAGES, True)


def test_a_column_of_a_source_is_no_choice_of_a_partition(url: str) -> None:
    """A frame as a source gives it says where its messages were; one that was routed says where they go."""
    source = {"key": BinaryType(), "value": BinaryType(), "topic": TEXT, "partition": LongType(), "offset": LongType()}
    writer = DefaultSource({"path": url}).writer(schema(**source), False)
    assert writer.job.columns == ("key", "value")  # type: ignore[attr-defined]  # Spark's own writers have none
    fields = [field for field in schema(**source) if field.name != "partition"]
    for count, routes in ((4, True), (5, False)):
        mark = StructField("partition", LongType(), metadata={"pxrs.routed": f"{count} xxh64-spark pmod"})
        if routes:
            writer = DefaultSource({"path": url}).writer(StructType([*fields, mark]), False)
            assert writer.job.columns == ("key", "value", "partition")  # type: ignore[attr-defined]  # see above
        else:
            with pytest.raises(Mismatch, match="was routed for"):
                DefaultSource({"path": url}).writer(StructType([*fields, mark]), False)
