"""The Parquet sink: what plain readers find in its directory."""

from __future__ import annotations

import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from pxrs.errors import BadSetting, Refused
from pxrs.model import Range
from pxrs.sinks import ParquetSink, output
from tests.sinks.support import batch_of, output_of, values_in

BATCH = batch_of(Range(0, 0, 9, 1))


def written(sink: ParquetSink, number: int, out: Any) -> None:
    sink.publish(sink.stage(batch_of(Range(0, number, number + 1, 1), number=number), out))


# ---- what can be given ----------------------------------------------------------------------------------------------


def test_tables_batches_and_lists_of_batches_are_taken(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    table = output_of(BATCH)
    for number, given in enumerate([table, table.to_batches()[0], table.to_batches(max_chunksize=2)]):
        written(sink, number, given)
    assert values_in(tmp_path) == sorted(3 * table.column("value").to_pylist())
    assert len(list(tmp_path.glob("*.parquet"))) == 3, "one file for each batch"


@pytest.mark.parametrize("empty", [pa.table({}), output_of(BATCH).slice(0, 0), [], output_of(BATCH).slice(9)])
def test_an_empty_output_leaves_no_file_and_no_note(empty: Any, tmp_path: Path) -> None:
    assert ParquetSink(tmp_path / "out").stage(BATCH, empty) == ""
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"n": [1]}),
        pa.table({"day": [1]}),
        pa.table([[1], [2], [3]], ["n", "n", "day"]),
        pa.table({"n": [1], "day": [0.5]}),
        pa.table({"n": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]), "day": ["x"]}),
        pa.table({"n": ["changed"], "day": ["x"]}),
        pa.table({"n": [1], "more": [2], "day": ["x"]}),
    ],
    ids=["no column", "no other", "twice", "directory", "union", "changed", "more"],
)
def test_columns_that_no_row_could_have_are_refused_without_any_in_the_same_words(
    table: pa.Table, tmp_path: Path
) -> None:
    written(ParquetSink(tmp_path / "out", partition_by="day"), 1, pa.table({"n": [1], "day": ["x"]}))
    said = []
    for given in (table, table[:0]):
        with pytest.raises(Refused) as caught:
            ParquetSink(tmp_path / "out", partition_by="day").stage(BATCH, given)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_columns_of_no_type_are_no_change_while_they_are_empty(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out", partition_by="day")
    for _ in range(2):
        assert sink.stage(BATCH, pa.table({"n": [], "day": []})) == ""
        written(sink, 1, pa.table({"n": [1], "day": ["x"]}))


@pytest.mark.parametrize("wrong", [None, {"a": 1}, [1], "rows"])
def test_an_output_of_another_kind_is_a_mistake_in_the_program(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=f"not {type(wrong).__name__}"):
        ParquetSink(tmp_path / "out").stage(BATCH, wrong)
    assert os.listdir(tmp_path) == []


def test_what_parquet_cannot_hold_is_refused(tmp_path: Path) -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    with pytest.raises(Refused, match="cannot be written as Parquet"):
        ParquetSink(tmp_path).stage(BATCH, pa.table({"u": union}))


# ---- what readers find ----------------------------------------------------------------------------------------------


def test_nothing_is_seen_before_it_is_published_by_any_reader(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")
    note = sink.stage(BATCH, output_of(BATCH))
    assert list((tmp_path / "out").rglob("*")) == [], "also one that skips no names, such as a glob"
    sink.publish(note)
    assert [path.name for path in (tmp_path / "out").rglob("*")] == [f"part-{BATCH.name}-00000.parquet"]


def test_a_reader_that_lists_while_batches_come_never_fails_and_never_sees_one_twice(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")
    written(sink, 0, pa.table({"value": ["0"]}))
    done = threading.Event()

    def write() -> None:
        try:
            for number in range(1, 60):
                written(sink, number, pa.table({"value": [str(number)]}))
        finally:
            done.set()

    with ThreadPoolExecutor(1) as pool:
        writing, counts = pool.submit(write), [0]
        while not done.is_set():
            found = values_in(tmp_path / "out")
            assert len(found) == len(set(found))
            counts.append(len(found))
        writing.result()
    assert counts == sorted(counts)
    assert len(values_in(tmp_path / "out")) == 60


def test_partition_by_makes_hive_directories(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path, partition_by=("day", "city"), compression="zstd")
    rows = [{"day": day, "city": city, "n": n} for n, (day, city) in enumerate([(1, "a/b"), (1, None), (2, "Köln")])]
    for number in range(2):
        written(sink, number, pa.Table.from_pylist(rows))
    assert {path.parent.parent.name for path in tmp_path.rglob("*.parquet")} == {"day=1", "day=2"}
    found = ds.dataset(str(tmp_path), format="parquet", partitioning="hive").to_table().to_pylist()
    assert sorted(row["n"] for row in found) == [0, 0, 1, 1, 2, 2]
    assert {(row["n"], row["day"], row["city"]) for row in found} == {(0, 1, "a/b"), (1, 1, None), (2, 2, "Köln")}


@pytest.mark.parametrize(("columns", "said"), [(["n"], "no column 'day'"), (["day"], "no column but those")])
def test_an_output_that_does_not_fit_partition_by_is_refused(columns: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=said):
        ParquetSink(tmp_path, partition_by="day").stage(BATCH, pa.table({name: [1] for name in columns}))


def test_settings_that_readers_would_stumble_over_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="'_day': readers skip"):
        ParquetSink(tmp_path, partition_by="_day")
    with pytest.raises(BadSetting, match="'lzma'"):
        ParquetSink(tmp_path, compression="lzma")


def test_files_hold_plain_types_that_spark_reads_too(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    columns = {
        "id": pa.array([b"0" * 16], pa.binary(16)),
        "at": pa.array([moment], pa.timestamp("ns", "Europe/Berlin")),
        "word": pa.array(["a"]).dictionary_encode(),
        "long": pa.array(["b"], pa.large_string()),
    }
    written(ParquetSink(tmp_path), 1, pa.table(columns))
    found = ds.dataset(str(tmp_path), format="parquet").to_table()
    kinds = {field.name: str(field.type) for field in found.schema}
    assert kinds == {
        "id": "fixed_size_binary[16]", "at": "timestamp[us, tz=UTC]", "word": "string", "long": "string"
    }  # fmt: skip
    assert found.column("at").to_pylist() == [moment]


def test_columns_that_change_are_refused_before_readers_fail_on_them(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    written(sink, 1, pa.table({"a": [1], "b": ["x"]}))
    for changed in ({"a": ["1"], "b": ["x"]}, {"a": [1]}, {"a": [1], "b": ["x"], "c": [2]}):
        with pytest.raises(Refused, match="have changed from"):
            sink.stage(BATCH, pa.table(changed))
    written(sink, 2, pa.table({"b": ["y"], "a": [2]}))  # another order is no change
    assert ds.dataset(str(tmp_path), format="parquet").to_table().num_rows == 2


def rows_in(directory: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ds.dataset(directory, format="parquet").to_table().to_pylist()
    return sorted(found, key=lambda row: str(row["value"]))


def test_a_column_without_any_value_gets_the_type_of_the_first_one(tmp_path: Path) -> None:
    """Readers take the types from one file for all: one without them is written again."""
    sink = ParquetSink(tmp_path / "out")
    written(sink, 0, pa.table({"value": ["a"], "n": pa.nulls(1), "m": pa.nulls(1)}))
    assert rows_in(tmp_path / "out") == [{"value": "a", "n": None, "m": None}]
    written(sink, 1, pa.table({"value": ["b"], "n": [5], "m": pa.nulls(1)}))
    written(ParquetSink(tmp_path / "out"), 2, pa.table({"value": ["c"], "n": pa.nulls(1), "m": ["x"]}))
    schemas = {str(pq.read_schema(path)) for path in (tmp_path / "out").glob("*.parquet")}
    assert schemas == {"value: string\nn: int64\nm: string"}
    assert [(row["n"], row["m"]) for row in rows_in(tmp_path / "out")] == [(None, None), (5, None), (None, "x")]
    with pytest.raises(Refused, match=r"changed from {'n': 'int64'} to {'n': 'string'}"):
        written(sink, 3, pa.table({"value": ["d"], "n": ["five"], "m": ["x"]}))
    assert [name for name in os.listdir(tmp_path / "out") if not name.endswith(".parquet")] == []


@pytest.mark.parametrize("nothing_first", [True, False], ids=["without a type first", "with one first"])
@pytest.mark.parametrize("shared", [True, False], ids=["one sink", "two processes"])
def test_output_without_a_type_that_was_staged_beside_another_gets_it_too(
    tmp_path: Path, shared: bool, nothing_first: bool
) -> None:
    """Both were written aside before either was shown."""
    one = ParquetSink(tmp_path / "out", partition_by="day")
    other = one if shared else ParquetSink(tmp_path / "out", partition_by="day")
    tables = [
        pa.table({"value": ["a"], "n": pa.nulls(1), "day": [1]}),
        pa.table({"value": ["b"], "n": [5], "day": [2]}),
    ]
    batches = [batch_of(Range(0, number, number + 1, 1), number=number) for number in (0, 1)]
    notes = [sink.stage(b, table) for sink, b, table in zip((one, other), batches, tables, strict=True)]
    for sink, note in [(one, notes[0]), (other, notes[1])] if nothing_first else [(other, notes[1]), (one, notes[0])]:
        sink.publish(note)
    files = list((tmp_path / "out").rglob("*.parquet"))
    assert {str(pq.ParquetFile(path).schema_arrow.field("n").type) for path in files} == {"int64"} and len(files) == 2


def test_a_column_that_never_has_a_value_is_looked_up_once_in_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, read, looked = ParquetSink(tmp_path / "out"), pq.read_metadata, Counter[str]()

    def counting(path: Any, *more: Any) -> Any:
        looked[str(path)] += 1
        return read(path, *more)

    monkeypatch.setattr(pq, "read_metadata", counting)
    for number in range(20):
        written(sink, number, pa.table({"value": [str(number)], "n": pa.nulls(1)}))
    assert len(rows_in(tmp_path / "out")) == 20 and max(looked.values()) < 5


def test_threads_stage_and_publish_their_own_batches_at_the_same_time(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")

    def work(partition: int) -> None:
        for number in range(10):
            batch = batch_of(Range(partition, number, number + 1, 1), number=100 * partition + number)
            sink.publish(sink.stage(batch, output_of(batch)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert values_in(tmp_path / "out") == sorted(f"{p}-{n}" for p in range(4) for n in range(10))
    assert os.listdir(tmp_path / "_out.staging") == ["plans"]


# ---- a Spark DataFrame, by what it can do ---------------------------------------------------------------------------


class Frame:
    """Writes as Spark does: several files, an empty one, and what belongs to nobody."""

    columns = ("key", "value")
    master = "local[2]"

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        # the object plays all the parts that a sink asks for
        self.sparkSession = self.sparkContext = self.conf = self.write = self
        self.settings: dict[str, str] = {}

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return self.table

    def set(self, key: str, value: str) -> None:
        self.settings[key] = value

    def mode(self, _: str) -> Frame:
        return self

    def option(self, *_: str) -> Frame:
        return self

    def parquet(self, path: str) -> None:
        data = Path(path.removeprefix("file://"))
        late = data / "_temporary" / "0"
        late.mkdir(parents=True)
        half = len(self.table) // 2
        for number, part in enumerate([self.table[:half], self.table[:0], self.table[half:]]):
            pq.write_table(part, data / f"part-{number:05d}-uuid-c000.snappy.parquet")
            (data / f".part-{number:05d}-uuid-c000.snappy.parquet.crc").write_bytes(b"crc")
        (data / "_SUCCESS").touch()
        pq.write_table(self.table, late / "part-00009.parquet")


def test_a_small_frame_is_collected_and_a_big_one_written_by_the_executors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, table = ParquetSink(tmp_path / "out"), output_of(BATCH)
    sink.publish(sink.stage(BATCH, Frame(table)))
    assert len(list((tmp_path / "out").iterdir())) == 1
    monkeypatch.setattr(output, "SMALL", 8)
    big = batch_of(Range(0, 9, 18, 1), number=2)
    note = sink.stage(big, Frame(output_of(big)))
    sink.publish(note)
    assert values_in(tmp_path / "out") == sorted(f"0-{n}" for n in range(18))
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [f"part-{b.name}-{n:05d}.parquet" for b, n in ((BATCH, 0), (big, 0), (big, 1))]
    assert os.listdir(tmp_path / "_out.staging") == ["plans"]


def test_what_a_late_task_adds_to_a_sealed_batch_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SMALL", 0)
    sink = ParquetSink(tmp_path / "out")
    frame = Frame(output_of(BATCH))
    note = sink.stage(BATCH, frame)
    pq.write_table(frame.table, tmp_path / "_out.staging" / BATCH.name / "part-00007-uuid-c000.snappy.parquet")
    sink.publish(note)
    assert values_in(tmp_path / "out") == sorted(frame.table.column("value").to_pylist())


def test_a_big_frame_without_rows_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SMALL", 0)
    sink = ParquetSink(tmp_path / "out")
    assert sink.stage(BATCH, Frame(output_of(BATCH)[:0])) == ""
    assert os.listdir(tmp_path / "_out.staging") == ["plans"]
    assert os.listdir(tmp_path / "_out.staging" / "plans") == ["place.json"]
    written(sink, 1, pa.table({"key": [1], "value": ["x"]}))
    with pytest.raises(Refused, match=r"have changed from {'key': 'int64'} to {'key': 'string'}"):
        sink.stage(BATCH, Frame(output_of(BATCH)[:0]))
