"""A registry in Oracle: its statements are compiled and parsed, never run. There is no server in reach."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import oracledb
import pytest
import sqlglot
from sqlalchemy.schema import CreateTable
from sqlglot import expressions

from pxrs.errors import Refused
from pxrs.io.address import parse
from pxrs.io.sql.connections import Sort, driver_for
from pxrs.io.sql.oracle import OracleDriver, dsn
from pxrs.stores.base import ABSENT
from pxrs.stores.sql.statements import (
    OracleStatements,
    OwnChange,
    PendingSwap,
    Statement,
    encoded,
    key_range,
    statements_for,
)
from pxrs.stores.sql.tables import Tables

DRIVER = driver_for("oracle")
TABLES = Tables("pxrs", DRIVER)


@pytest.fixture
def statements() -> OracleStatements:
    made = statements_for(TABLES.rows, DRIVER)
    assert isinstance(made, OracleStatements)
    return made


def texts(statements: OracleStatements) -> dict[str, str]:
    found = {name: value.text for name, value in vars(statements).items() if isinstance(value, Statement)}
    return found | {
        "reads one": statements.reads[1].text,
        "reads most": statements.reads[1_000].text,
        "schema": TABLES._schema,
        "rows": str(CreateTable(TABLES.rows).compile(dialect=DRIVER.dialect)),
        "meta": str(CreateTable(TABLES.meta).compile(dialect=DRIVER.dialect)),
    }


def words(text: str) -> str:
    return " ".join(text.split())


def test_every_statement_is_oracles(statements: OracleStatements) -> None:
    found = texts(statements)
    assert {"scans", "looks", "replaces", "deletes", "creates"} <= set(found)
    for name, text in found.items():
        [parsed] = sqlglot.parse(text, read="oracle")
        assert parsed is not None and not parsed.find(expressions.Command), name
        assert not parsed.find(expressions.Limit, expressions.Fetch, expressions.Lock), name
        assert "RETURNING" not in text.upper() and "IF NOT EXISTS" not in text.upper(), name


def test_the_statements_as_they_are(statements: OracleStatements) -> None:
    found = {name: words(text) for name, text in texts(statements).items()}
    assert found["replaces"] == (
        "UPDATE pxrs_rows SET value=:v, version=:fresh WHERE pxrs_rows.key = :k AND pxrs_rows.version = :stale"
    )
    assert found["deletes"] == "DELETE FROM pxrs_rows WHERE pxrs_rows.key = :k AND pxrs_rows.version = :stale"
    assert found["creates"] == "INSERT INTO pxrs_rows (key, value, version) VALUES (:k, :v, :fresh)"
    assert found["looks"] == (
        "SELECT count(*) AS count_1, sum(pxrs_rows.version) AS sum_1 FROM pxrs_rows "
        "WHERE pxrs_rows.key >= :low AND pxrs_rows.key < :high"
    )
    assert found["scans"].endswith("WHERE pxrs_rows.key >= :low AND pxrs_rows.key < :high ORDER BY pxrs_rows.key")
    assert found["reads one"].endswith("WHERE pxrs_rows.key IN (:k0)")
    assert found["schema"] == "SELECT pxrs_meta.value FROM pxrs_meta WHERE pxrs_meta.name = 'schema'"


def test_b52_keys_are_raw_which_is_not_padded_and_values_may_be_null(statements: OracleStatements) -> None:
    rows = words(texts(statements)["rows"])
    assert "key RAW(2000) NOT NULL" in rows and "CHAR" not in rows
    assert re.search(r"value BLOB( NULL)?,", rows), "an empty value is NULL in Oracle: the column must take it"
    assert "version NUMBER(19, 0) NOT NULL" in rows
    assert "VARCHAR2(40" in words(texts(statements)["meta"])


def test_b52_an_empty_value_is_a_row_and_an_empty_key_is_refused(statements: OracleStatements) -> None:
    cursor = Cursor([(b"a", None, 7), (b"b", b"x", 8)])
    assert statements.scan(cursor, b"a", b"c") == [(b"a", b"", 7), (b"b", b"x", 8)]
    with pytest.raises(Refused, match="empty key"):
        encoded("", DRIVER.least_key)
    assert encoded(" ", DRIVER.least_key) == b" " and encoded("\0", DRIVER.least_key) == b"\0"


def test_b52_a_scan_of_everything_does_not_compare_with_null() -> None:
    assert key_range("", DRIVER.least_key) == (b"\0", b"\xff"), "RAW '' is NULL, and nothing is >= NULL"
    assert key_range("a", DRIVER.least_key) == (b"a", b"b")


class Cursor:
    """Notes what it is told, and answers as it was told to."""

    def __init__(self, rows: Any = (), counts: Any = (), offsets: Any = (), code: int = 1) -> None:
        self.connection = SimpleNamespace(autocommit=True, commits=0, rollbacks=0)
        self.connection.commit = lambda: setattr(self.connection, "commits", self.connection.commits + 1)
        self.connection.rollback = lambda: setattr(self.connection, "rollbacks", self.connection.rollbacks + 1)
        self.sent: list[tuple[str, Any, dict[str, bool]]] = []
        self._rows, self._counts, self._offsets, self._code = rows, counts, offsets, code

    def execute(self, text: str, values: Any) -> None:
        self.sent.append((text, values, {}))

    def executemany(self, text: str, values: Any, **options: bool) -> None:
        assert not self.connection.autocommit
        self.sent.append((text, values, options))

    def fetchall(self) -> Any:
        return self._rows

    def getarraydmlrowcounts(self) -> Any:
        return self._counts

    def getbatcherrors(self) -> Any:
        return [SimpleNamespace(offset=offset, code=self._code) for offset in self._offsets]


def test_a_batch_is_a_request_for_each_kind_and_one_commit(statements: OracleStatements) -> None:
    wishes = [
        PendingSwap(b"b", 5, 15, b""),
        PendingSwap(b"a", 4, 14, b"x"),
        PendingSwap(b"c", ABSENT, 16, b"x"),
        PendingSwap(b"d", ABSENT, 17, b""),
    ]
    cursor = Cursor(counts=[1, 0], offsets=[1])
    outcomes = OwnChange(statements).over(cursor).swap_each(wishes)
    assert [outcome.version for outcome in outcomes] == [0, 14, 16, 0], "a was replaced, c was created"
    (creates, created, with_errors), (replaces, replaced, with_counts) = cursor.sent
    assert creates == statements.creates.text and with_errors == {"batcherrors": True}
    assert created == [{"k": b"c", "v": b"x", "fresh": 16}, {"k": b"d", "v": b"", "fresh": 17}]
    assert replaces == statements.replaces.text and with_counts == {"arraydmlrowcounts": True}
    assert replaced[0] == {"k": b"a", "stale": 4, "v": b"x", "fresh": 14}, "in the order of the keys"
    assert cursor.connection.commits == 1 and cursor.connection.autocommit


def test_an_atomic_swap_with_a_conflict_is_rolled_back(statements: OracleStatements) -> None:
    cursor = Cursor(counts=[1, 0])
    wishes = [PendingSwap(b"a", 4, 14, b"x"), PendingSwap(b"b", 5, 15, b"y")]
    assert OwnChange(statements).over(cursor).swap_all(wishes).version == 0
    assert (cursor.connection.commits, cursor.connection.rollbacks) == (0, 1)
    cursor = Cursor(counts=[1, 1])
    assert OwnChange(statements).over(cursor).swap_all(wishes).version == 15
    assert (cursor.connection.commits, cursor.connection.rollbacks) == (1, 0)


def test_an_error_in_a_batch_that_is_no_duplicate_is_an_error(statements: OracleStatements) -> None:
    wishes = [PendingSwap(b"a", ABSENT, 14, b"x"), PendingSwap(b"b", ABSENT, 15, b"y")]
    with pytest.raises(oracledb.Error, match="1653"):
        OwnChange(statements).over(Cursor(offsets=[0], code=1653)).swap_each(wishes)


def test_reads_come_in_few_sizes(statements: OracleStatements) -> None:
    cursor = Cursor([(b"k1", b"x", 1)])
    statements.read(cursor, [b"k%d" % number for number in range(1_020)])
    sizes = [len(values) for _, values, _ in cursor.sent]
    assert sizes == [1_000, 256]
    assert set(cursor.sent[1][1].values()) == {b"k%d" % number for number in range(1_000, 1_020)}


@pytest.mark.parametrize(
    ("code", "sort"),
    [
        ("ORA-00001", Sort.DUPLICATE), ("ORA-00060", Sort.AGAIN), ("ORA-08177", Sort.AGAIN),
        ("ORA-00942", Sort.NO_TABLE), ("ORA-00955", Sort.EXISTS), ("ORA-01017", Sort.DENIED), ("ORA-03113", Sort.LOST),
        ("DPY-4024", Sort.LOST), ("DPY-6005", Sort.LOST), ("ORA-01653", Sort.FAILED),
    ],
)  # fmt: skip
def test_what_oracles_errors_mean(code: str, sort: Sort) -> None:
    detail = SimpleNamespace(full_code=code, code=int(code[4:]) if code.startswith("ORA") else 0)
    assert DRIVER.sort_of(oracledb.DatabaseError(detail)) is sort


def test_the_address_in_oracles_own_form() -> None:
    assert isinstance(DRIVER, OracleDriver)
    assert dsn(parse("oracle://u:p@h1,h2:1600/orders", 1521)) == "tcp://h1:1521,h2:1600/orders"
    assert dsn(parse("oracle://h1/orders?tls=true", 1521)) == "tcps://h1:1521/orders"
