"""A table of a database as a sink: what fits into it, what is refused, and the walk of a batch aside and together."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import sqlglot
from sqlalchemy import Column, MetaData, Table, delete, insert, select
from sqlalchemy.schema import CreateTable

import pxrs.sinks
from pxrs.errors import BadSetting, BadUrl, Fenced, HandlerFailed, NotFound, Refused, Unavailable
from pxrs.io.sql.connections import driver_for
from pxrs.model import Batch, Grant, Owner, Range
from pxrs.runtime.ports.sink import Overtaken
from pxrs.sinks import SqlSink
from pxrs.sinks.sql.staging import SqlStaging
from pxrs.sinks.sql.table import _sql_type
from pxrs.sinks.staged import Note
from tests.sinks.sql.support import KEYED, PLAIN, SqlPlace, is_sink
from tests.sinks.support import GROUP, LOG, QUEUE, batch_of, output_of

UTC = datetime.UTC
WIDE = pa.table(
    {
        "small": pa.array([1, None], pa.int16()),
        "whole": pa.array([2**31 - 1, -(2**31)], pa.int32()),
        "big": pa.array([2**63 - 1, -(2**63)]),
        "flag": [True, None],
        "ratio": [0.1, -1e300],
        "name": ["naïve 'quoted' \\ \"text\"\n\\.\nend", ""],
        "raw": pa.array([b"\x00\xff'\\", b""], pa.binary()),
        "day": [datetime.date(2026, 1, 31), None],
        "at": pa.array([datetime.datetime(2026, 1, 31, 12, 0, 0, 123456, UTC), None], pa.timestamp("us", "UTC")),
        "price": pa.array([Decimal("12.34"), Decimal("-0.01")], pa.decimal128(10, 2)),
        "kind": pa.array(["a", None]).dictionary_encode(),
    }
)


def one(number: int = 1, epoch: int = 1, partition: int = 0, rows: int = 3) -> Batch:
    return batch_of(Range(partition, 0, rows, epoch), number=number)


def claim(epoch: int, partition: int = 0) -> Grant:
    return Grant(partition, Owner("B", "b" * 32), epoch)


def publish(sink: SqlSink, output: Any, number: int = 1) -> None:
    sink.publish(sink.stage(one(number), output))


# ---- what is written ------------------------------------------------------------------------------------------------


def test_every_type_comes_back_as_it_went_in(place: SqlPlace) -> None:
    sink = place.sink(create=True)
    publish(sink, WIDE)
    publish(sink, WIDE.slice(1), 2)
    names = ", ".join(f"{name}" for name in WIDE.column_names)
    expected = [tuple(row.values()) for row in WIDE.to_pylist()]
    naive = place.engine.dialect.name == "mysql"
    at = WIDE.column_names.index("at")
    if naive:
        expected = [tuple(v.replace(tzinfo=None) if i == at and v else v for i, v in enumerate(r)) for r in expected]
    found = [tuple(row) for row in place.rows(names)]
    assert sorted(found, key=lambda row: row[2]) == sorted([*expected, expected[1]], key=lambda row: row[2])


def test_a_big_output_is_cut_into_pieces(place: SqlPlace) -> None:
    sink = place.sink(create=True)
    count = 25_000
    table = pa.table({"value": pa.array(range(count)), "raw": pa.array([b"\xff" * (n % 50) for n in range(count)])})
    note = sink.stage(one(rows=count), table)
    assert place.staged() > 2
    place.sink().publish(note)  # by somebody else, who has not got it in memory
    assert sorted(row[0] for row in place.rows("value")) == list(range(count))
    assert sum(len(row[0]) for row in place.rows("raw")) == sum(n % 50 for n in range(count))
    assert place.staged() == 0


def test_columns_are_matched_by_name_and_defaults_stay_the_tables(place: SqlPlace) -> None:
    counted = {"postgresql": "SERIAL", "mysql": "BIGINT AUTO_INCREMENT"}[place.engine.dialect.name]
    place.make(f"CREATE TABLE {{table}} (n {counted} PRIMARY KEY, b INT DEFAULT 7, c INT, value {{word}} NOT NULL)")
    publish(place.sink(), pa.table({"value": ["x", "y"], "c": [1, 2]}))
    assert sorted(map(tuple, place.rows("n, b, c, value"))) == [(1, 7, 1, "x"), (2, 7, 2, "y")]


def test_names_are_never_taken_for_statements(place: SqlPlace) -> None:
    name = 'we"ird %s; DROP TABLE %(x)s'
    sink = place.sink(create=True)
    publish(sink, pa.table({name: [1, 2], "value": ["%s", "'); --"]}))
    assert place.values() == sorted(["%s", "'); --"])


def test_bytes_of_messages_go_into_text(place: SqlPlace) -> None:
    place.make(PLAIN)
    publish(place.sink(), pa.table({"key": pa.array([None, b"k"]), "value": pa.array([b"a", "ü".encode()])}))
    assert place.values() == ["a", "ü"]
    with pytest.raises(HandlerFailed, match="column 'value'"):
        place.sink().stage(one(3), pa.table({"value": pa.array([b"\xff"])}))


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "named"),
    [
        (pa.table({"value": ["a"], "extra": [1]}), "has no column 'extra'"),
        (pa.table({"key": ["a"]}), "the output has no column 'value'"),
        (pa.table({"value": [1]}), "column 'value': int64 does not go into VARCHAR"),
        (pa.table({"value": [["a"]]}), "column 'value': list.* JSON"),
        (pa.Table.from_arrays([pa.array(["a"])] * 2, ["value", "value"]), r"several columns named \['value'\]"),
    ],
)
@pytest.mark.parametrize("rows", [1, 0])
def test_a_column_that_does_not_fit_is_refused_before_anything_is_written(
    place: SqlPlace, output: pa.Table, named: str, rows: int
) -> None:
    place.make()
    with pytest.raises(Refused, match=named):
        place.sink().stage(one(), output.slice(0, rows))
    assert place.values() == [] and place.staged() == 0


@pytest.mark.parametrize(
    ("output", "named"),
    [
        (pa.table({"value": pa.array([None, "x"])}), "column 'value': NULL"),
        (pa.table({"value": ["x" * 101]}), "column 'value': a value of length 101"),
        (pa.table({"value": ["x", "x"]}), "does not take the output"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_before_the_commit(place: SqlPlace, output: pa.Table, named: str) -> None:
    place.make()
    sink = place.sink()
    with pytest.raises(HandlerFailed, match=named):
        sink.stage(one(), output)
    assert place.staged() == 0
    publish(sink, pa.table({"value": ["fine"]}), 2)
    assert place.values() == ["fine"]


@pytest.mark.parametrize(
    ("kind", "values"), [("SMALLINT", pa.array([40_000])), ("DECIMAL(5,2)", pa.array([Decimal("1.234")]))]
)
def test_numbers_that_do_not_fit_are_not_rounded(place: SqlPlace, kind: str, values: pa.Array) -> None:
    place.make(f"CREATE TABLE {{table}} (value {kind})")
    with pytest.raises(HandlerFailed, match="column 'value': a value does not fit"):
        place.sink().stage(one(), pa.table({"value": values}))


def test_what_one_database_cannot_store_is_named(place: SqlPlace) -> None:
    is_maria = place.engine.dialect.name == "mysql"
    place.make("CREATE TABLE {table} (value {word}, ratio DOUBLE PRECISION)")
    output = pa.table({"ratio": [float("nan")]}) if is_maria else pa.table({"value": ["a\0b"]})
    with pytest.raises(HandlerFailed, match="not finite" if is_maria else "NUL"):
        place.sink().stage(one(), output)


def test_a_table_that_is_missing_is_named(place: SqlPlace) -> None:
    with pytest.raises(NotFound, match=rf"no table {place.table}: create it, or say create=True"):
        place.sink().stage(one(), output_of(one()))


def test_there_is_no_column_for_nested_types(place: SqlPlace) -> None:
    with pytest.raises(Refused, match="column 'tags': there is no type of SQL for list"):
        place.sink(create=True).stage(one(), pa.table({"tags": [["a"]]}))
    assert place.tables() == []


def test_bad_addresses_are_refused_without_the_password() -> None:
    with pytest.raises(BadUrl, match="an SQL sink writes to postgresql://") as told:
        SqlSink("redis://me:secret@h/0", "bills")
    assert "secret" not in str(told.value)
    with pytest.raises(BadSetting, match="table = ''"):
        SqlSink("postgresql://me:secret@h/db", "")
    with pytest.raises(BadSetting, match="patience = -1"):
        SqlSink("postgresql://me:secret@h/db", "bills", patience=-1)
    shown = repr(SqlSink("postgresql://me:secret@h/db", "bills"))
    assert shown == "SqlSink('postgresql://h:5432/db', 'bills')"


def test_a_database_that_is_not_there_is_unavailable_and_its_password_stays_secret() -> None:
    with pytest.raises(Unavailable) as told:
        SqlSink("postgresql://me:secret@127.0.0.1:1/db", "bills", patience=0).stage(one(), output_of(one()))
    assert "127.0.0.1:1" in str(told.value) and "secret" not in str(told.value)


# ---- aside ----------------------------------------------------------------------------------------------------------


def test_nothing_is_seen_before_it_is_published_and_then_once(place: SqlPlace) -> None:
    place.make()
    sink = place.sink()
    batch = one()
    note = sink.stage(batch, output_of(batch))
    assert place.values() == [] and place.staged() == 1
    for publisher in (sink, place.sink(), sink):
        publisher.publish(note)
        assert place.values() == ["0-0", "0-1", "0-2"] and place.staged() == 0


def test_output_without_rows_needs_no_note(place: SqlPlace) -> None:
    place.make()
    sink = is_sink(place.sink())
    assert sink.stage(one(), output_of(one()).slice(0, 0)) == ""
    assert sink.stage(one(), []) == ""
    sink.publish("")
    sink.publish('{"batch": "nothing"}')
    assert place.values() == []


def test_what_is_discarded_is_gone(place: SqlPlace) -> None:
    place.make()
    sink = place.sink()
    sink.stage(one(), output_of(one()))
    sink.discard(one())
    sink.discard(one())
    assert place.staged() == 0 and place.values() == []


def test_a_new_owner_shows_what_is_committed_and_removes_what_is_not(place: SqlPlace) -> None:
    place.make()
    old = place.sink()
    committed = old.stage(one(1), output_of(one(1)))
    left = batch_of(Range(0, 3, 6, 1), Range(1, 0, 3, 1), number=2)
    old.stage(left, output_of(left))
    other = batch_of(Range(0, 0, 3, 1), group="other")
    old.stage(other, output_of(other))
    place.sink().recover(QUEUE, LOG, GROUP, claim(2), committed)
    assert place.values() == ["0-0", "0-1", "0-2"]
    assert place.staged() == 1, "that of another group"


def test_b77_a_late_owner_writes_nothing_aside(place: SqlPlace) -> None:
    place.make()
    late, new = place.sink(), place.sink()
    late.recover(QUEUE, LOG, GROUP, claim(1), "")
    new.recover(QUEUE, LOG, GROUP, claim(3), "")
    both = batch_of(Range(0, 0, 3, 1), Range(1, 0, 3, 5))
    with pytest.raises(Fenced, match="has seen epoch 3 of partition 0, and not only 1"):
        late.stage(both, output_of(both))
    assert place.staged() == 0
    batch = batch_of(Range(1, 0, 3, 1), number=2)
    late.publish(late.stage(batch, output_of(batch)))  # the other partition was not touched by the refused batch
    assert place.values() == ["1-0", "1-1", "1-2"]


def test_a_claim_below_the_guard_is_overtaken_and_says_what_to_do_if_the_registry_was_restored(
    place: SqlPlace,
) -> None:
    place.make()
    place.sink().recover(QUEUE, LOG, GROUP, claim(7), "")
    with pytest.raises(Overtaken, match="has seen epoch 7 of partition 0, and not only 2") as told:
        place.sink().recover(QUEUE, LOG, GROUP, claim(2), "")
    assert "delete the rows" not in str(told.value), "as a rule it is a hand-over"
    assert f"delete the rows of group {GROUP!r} from {place.table}_pxrs_guard" in str(told.value.as_went_back())


def test_notes_of_other_tables_and_databases(place: SqlPlace) -> None:
    place.make()
    sink = place.sink()
    note = sink.stage(one(), output_of(one()))
    aside = place.sink(table=f"{place.table}_b", create=True)
    aside.recover(QUEUE, LOG, GROUP, claim(2), note)  # the group goes on with another table: nothing is lost
    assert place.values() == ["0-0", "0-1", "0-2"]
    foreign = Note("sql", place.table, "another place", "b-1").text
    with pytest.raises(Refused, match=f"committed for table {place.table} of another database"):
        sink.recover(QUEUE, LOG, GROUP, claim(2), foreign)


def test_notes_of_other_sinks(place: SqlPlace, tmp_path: Any) -> None:
    place.make()
    note = Note("parquet", str(tmp_path / "out"), str(tmp_path), "b-1")
    place.sink().publish(note.text)
    (tmp_path / "b-1").mkdir()
    with pytest.raises(Refused, match="committed for another sink"):
        place.sink().publish(note.text)


def test_committed_rows_that_the_table_takes_no_more_wait_for_its_repair(place: SqlPlace) -> None:
    place.make(PLAIN)
    sink = place.sink()
    note = sink.stage(one(), output_of(one()))
    place.run(f"ALTER TABLE {place.table} ADD COLUMN needed INT NOT NULL")
    with pytest.raises(Refused, match=r"is committed, and table .* does not take it: .*needed"):
        sink.publish(note)
    assert place.staged() == 1
    place.run(f"ALTER TABLE {place.table} DROP COLUMN needed")
    place.sink().publish(note)
    assert place.values() == ["0-0", "0-1", "0-2"]


def test_a_plain_table_needs_no_trial_and_a_keyed_one_is_asked_first(place: SqlPlace) -> None:
    place.make(KEYED)
    publish(place.sink(), pa.table({"value": ["a"]}))
    with pytest.raises(HandlerFailed, match="does not take the output"):
        place.sink().stage(one(2), pa.table({"value": ["b", "a"]}))
    assert place.values() == ["a"] and place.staged() == 0


def test_a_table_with_a_rule_of_any_kind_is_asked_first(place: SqlPlace) -> None:
    place.make("CREATE TABLE {table} (value {word}, UNIQUE (value))")
    publish(place.sink(), pa.table({"value": ["a"]}))
    with pytest.raises(HandlerFailed, match="does not take the output"):
        place.sink().stage(one(2), pa.table({"value": ["b", "a"]}))
    assert place.values() == ["a"] and place.staged() == 0


def test_the_note_names_no_host_and_no_password(place: SqlPlace) -> None:
    place.make()
    values = json.loads(place.sink().stage(one(), output_of(one())))
    assert values["sink"] == "sql" and values["target"] == place.table
    assert "127.0.0.1" not in str(values) and "a-word-for-tests" not in str(values)


# ---- without a server -----------------------------------------------------------------------------------------------


def test_oracle_gets_statements_that_its_grammar_knows() -> None:
    """There is no server of it in reach: the statements are compiled for it, and parsed."""
    dialect, staging = driver_for("oracle").dialect, SqlStaging("bills", "shop")
    staged, guard = staging.staged, staging.guard
    statements = [
        *(CreateTable(table) for table in staging.metadata.sorted_tables),
        select(guard.c.epoch).where(guard.c.part == 1).order_by(guard.c.part).with_for_update(),
        insert(staged),
        delete(staged).where(staged.c.batch == "b"),
        CreateTable(Table("bills", MetaData(), *(Column(f.name, _sql_type(f)) for f in WIDE.schema))),
    ]
    for statement in statements:
        text = str(statement.compile(dialect=dialect))
        parsed = sqlglot.parse_one(text, dialect="oracle")
        assert not isinstance(parsed, sqlglot.exp.Command), text


def test_sqlalchemy_is_loaded_by_those_who_use_it() -> None:
    load = "import sys, pxrs.sinks, pxrs.spark.pipeline.pipeline_file"
    code = f"{load}; print('sqlalchemy' in sys.modules); pxrs.sinks.SqlSink"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.strip() == "False"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pxrs.sinks.sql.sink")
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(BadSetting, match=r"sqlalchemy is not installed: pip install 'pxrs\[postgres\]'"):
        _ = pxrs.sinks.SqlSink
