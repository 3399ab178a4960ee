"""``partition_by``: small batches, which the driver writes, and large ones, which Spark writes, share directories."""

from __future__ import annotations

import itertools
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from pxrs.errors import HandlerFailed, Refused
from pxrs.model import Batch, Owner, Range
from pxrs.sinks import ParquetSink
from pxrs.sinks.output import SMALL

pytestmark = pytest.mark.xdist_group("spark")

_numbers = itertools.count()
ODD = ["", " ", "a b", "x/y", "50%", "%41", "ü", "Zürich", "a=b", "a:b", ".", "..", "a\\b", "'\"", "{[]}^*?#", "\x7f",
       "+", "\u2028", "𝄞", "e\u0301", "\t\n", "01", "1", "null", "true", "~", "&;|<>$", "_x", ".x", "k=k"]  # fmt: skip
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


def batch(rows: int) -> Batch:
    return Batch("orders", "log-1", "etl", Owner("A", "a" * 32), next(_numbers), (Range(0, 0, rows, 1),))


def write(sink: ParquetSink, table: pa.Table, spark: SparkSession | None) -> None:
    """By the driver, or, given a session, by Spark."""
    output, rows = (table, 1) if spark is None else (spark.createDataFrame(table), SMALL + 1)
    sink.publish(sink.stage(batch(rows), output))


def folders(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def read_back(directory: Path, spark: SparkSession) -> dict[str, dict[int, Any]]:
    """What each reader finds, by the number of the row."""
    shown = f"{directory}/**/*.parquet"
    schema = pa.schema({"v": pa.int64(), "k": pa.string()})
    by_arrow = ds.dataset(str(directory), schema, format="parquet", partitioning=ds.partitioning(
        pa.schema({"k": pa.string()}), flavor="hive")).to_table()  # fmt: skip
    by_spark = spark.read.schema("v long, k string").parquet(f"file://{directory}").toArrow()
    by_duckdb = duckdb.sql(
        f"SELECT v, k FROM read_parquet('{shown}', hive_partitioning = true, hive_types_autocast = false)"
    )
    assert by_duckdb is not None
    tables = {"arrow": by_arrow, "spark": by_spark, "duckdb": pa.table(by_duckdb.arrow())}
    return {name: {row["v"]: row["k"] for row in table.to_pylist()} for name, table in tables.items()}


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@example(values=ODD)
@given(values=st.lists(TEXTS, min_size=60, max_size=90))
def test_any_text_is_read_back_by_spark_pyarrow_and_duckdb(
    values: list[str], spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place, count = tmp_path_factory.mktemp("hive"), len(values)
    for start, by in ((0, None), (count, spark)):
        table = pa.table({"k": [*values, None], "v": list(range(2 * start, 2 * start + count + 1))})
        write(ParquetSink(place / "both", partition_by="k"), table, by)
        write(ParquetSink(place / ("small" if by is None else "large"), partition_by="k"), table, by)
    assert folders(place / "small") == folders(place / "large")
    expected = {start + n: value or None for start in (0, 2 * count) for n, value in enumerate([*values, None])}
    for reader, found in read_back(place / "both", spark).items():
        assert found == expected, reader


MOMENT = datetime(2026, 7, 2, 3, 4, 5, tzinfo=UTC)
KINDS = {
    "bool": pa.array([True, False, None]),
    "byte": pa.array([-1, 0, 127], pa.int8()),
    "long": pa.array([-(2**63), 0, 2**63 - 1]),
    "date": pa.array([date(1, 1, 1), date(2026, 1, 31), date(9999, 12, 31)]),
    "decimal": pa.array([Decimal("1.50"), Decimal("0.00000001"), Decimal("-12345678.9")], pa.decimal128(20, 8)),
    "time": pa.array([MOMENT, MOMENT.replace(microsecond=670_000)]).cast(pa.timestamp("us")),
    "moment": pa.array([MOMENT.replace(microsecond=6), MOMENT.replace(year=1950)], pa.timestamp("us", "UTC")),
    "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_other_types_are_named_as_spark_names_them(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"k": KINDS[kind], "v": list(range(len(KINDS[kind])))})
    plain = table.set_column(0, "k", table.column("k").cast(pa.string())) if kind == "dictionary" else table
    frame = spark.createDataFrame(plain)
    small, large = ParquetSink(tmp_path / "small", partition_by="k"), ParquetSink(tmp_path / "large", partition_by="k")
    small.publish(small.stage(batch(1), table if kind == "dictionary" else frame))
    large.publish(large.stage(batch(SMALL + 1), frame))
    assert folders(tmp_path / "small") == folders(tmp_path / "large")


@pytest.mark.parametrize("kind", ["binary", "double"])
def test_large_batches_refuse_the_types_that_small_ones_refuse(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql(f"SELECT CAST('1' AS {kind}) AS k, 1 AS v")
    for rows in (1, SMALL + 1):
        with pytest.raises(Refused, match=rf"partition_by = 'k': values of type {kind}"):
            ParquetSink(tmp_path / "out", partition_by="k").stage(batch(rows), frame)


@pytest.mark.parametrize(
    "value", ["__HIVE_DEFAULT_PARTITION__", "x._COPYING_", "a\0b", "x" * 254], ids=["null", "copying", "nul", "long"]
)
def test_a_value_without_a_name_is_refused_from_every_writer(value: str, spark: SparkSession, tmp_path: Path) -> None:
    sink, table = ParquetSink(tmp_path / "out", partition_by="k"), pa.table({"k": ["good", value], "v": [1, 2]})
    with pytest.raises(HandlerFailed, match="of column 'k' cannot name a directory"):
        write(sink, table, None)
    with pytest.raises(Exception) as caught:  # the batch is halved until the driver says it of the message
        write(sink, table, spark)
    assert not isinstance(caught.value, Refused)
    assert folders(tmp_path / "out") == []
