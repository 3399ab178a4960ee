"""The two tables of a registry in SQL, and the steps that bring them to the present schema.

``<name>_rows(key, value, version)`` holds the rows, ``<name>_meta(name, value)`` the number of the schema. Keys are
bytes on every database (the UTF-8 of the key): compared exactly, whatever the collation, with no blanks added or
ignored, and with room for NUL.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, String, Table
from sqlalchemy.dialects.mysql import LONGBLOB, VARBINARY
from sqlalchemy.dialects.oracle import NUMBER, RAW
from sqlalchemy.schema import CreateTable

from pxrs.errors import BadUrl, NewerFormat, WentBack
from pxrs.io.address import Address
from pxrs.io.sql.connections import Driver, Sort

SCHEMA = 1
LONGEST_KEY = 2_000
"""In bytes: what an index of each database can hold. The longest key that PXRS makes has some 900."""

_NAME = re.compile(r"(?:[a-z][a-z0-9_]{0,29}\.)?[a-z][a-z0-9_]{0,24}")

_oracle_number: Any = NUMBER  # has no types for its constructor
_KEY = LargeBinary().with_variant(VARBINARY(LONGEST_KEY), "mysql").with_variant(RAW(LONGEST_KEY), "oracle")
_VALUE = LargeBinary().with_variant(LONGBLOB(), "mysql")
_NUMBER = BigInteger().with_variant(_oracle_number(precision=19, scale=0), "oracle")
_INNODB: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_row_format": "DYNAMIC"}


class Tables:
    """The tables of one registry. Names come from the URL, and are let through only if they are plain words."""

    def __init__(self, name: str, driver: Driver) -> None:
        if not _NAME.fullmatch(name):
            raise BadUrl(
                f"table={name!r}: write a lower-case word of at most 25 letters, digits and '_', "
                "with the name of a schema before it if need be: schema.word"
            )
        schema, _, word = name.rpartition(".")
        metadata = MetaData(schema=schema or None)
        # Oracle stores an empty value as NULL: there the column must take it, and a NULL is read as empty.
        may_be_null = driver.dialect.name == "oracle"
        self.name = name
        self.driver = driver
        self.rows = Table(
            f"{word}_rows",
            metadata,
            Column("key", _KEY, primary_key=True),
            Column("value", _VALUE, nullable=may_be_null),
            Column("version", _NUMBER, nullable=False),
            **_INNODB,
        )
        self.meta = Table(
            f"{word}_meta",
            metadata,
            Column("name", String(40), primary_key=True),
            Column("value", _NUMBER, nullable=False),
            **_INNODB,
        )
        self._schema = self._text(self.meta.select().with_only_columns(self.meta.c.value).where(self._of_schema()))

    def schema(self, cursor: Any) -> int | None:
        """The number of the stored schema; None if there is none."""
        cursor.execute(self._schema)
        found = cursor.fetchone()
        return None if found is None else int(found[0])

    def check(self, cursor: Any, address: Address) -> None:
        """Refuse a connection to tables that are gone, or that a later version has taken over."""
        found = self._number(cursor)
        if found == 0:
            raise WentBack(f"{address}: the registry {self.name!r} is gone: the database was wiped, or restored")
        _check_number(found, address)

    def prepare(self, cursor: Any, address: Address) -> None:
        """Bring the tables to the present schema. Many processes may do this at the same time."""
        found = self._number(cursor)
        _check_number(found, address)
        for number in range(found + 1, SCHEMA + 1):
            STEPS[number](self, cursor)
            self._record(cursor, number)
        cursor.execute(self._text(self.rows.select().where(self.rows.c.version == 0)))

    def _number(self, cursor: Any) -> int:
        try:
            return self.schema(cursor) or 0
        except self.driver.errors as error:
            if self.driver.sort_of(error) is not Sort.NO_TABLE:
                raise
            return 0

    def _record(self, cursor: Any, number: int) -> None:
        """Write the number last: where it exists, everything else does."""
        if number == 1:
            self.try_to(cursor, self.meta.insert().values(name="schema", value=1))
        else:
            before = self._of_schema() & (self.meta.c.value < number)
            self.try_to(cursor, self.meta.update().values(value=number).where(before))

    def try_to(self, cursor: Any, clause: Any) -> None:
        """Do it, unless another process has done it."""
        try:
            cursor.execute(self._text(clause))
        except self.driver.errors as error:
            if self.driver.sort_of(error) not in (Sort.EXISTS, Sort.DUPLICATE):
                raise

    def _of_schema(self) -> Any:
        return self.meta.c.name == "schema"

    def _text(self, clause: Any) -> str:
        """A statement with its constants written out: there is nothing of a user in them."""
        return str(clause.compile(dialect=self.driver.dialect, compile_kwargs={"literal_binds": True}))


def _create(tables: Tables, cursor: Any) -> None:
    tables.try_to(cursor, CreateTable(tables.rows))
    tables.try_to(cursor, CreateTable(tables.meta))


STEPS: dict[int, Callable[[Tables, Any], None]] = {1: _create}
"""The statements from each schema to the next. Each may be repeated, and may run in several processes at once.

The number is checked when a connection is made, not with every write. So a step after which an older version must
not write any more renames the table of rows: the older one's next write fails, and it finds out why.
"""


def _check_number(found: int, address: Address) -> None:
    if found > SCHEMA:
        raise NewerFormat(f"{address} has schema {found}; this version of PXRS knows up to {SCHEMA}")
