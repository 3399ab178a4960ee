"""A user's table: its columns, how Arrow columns are fitted to them by name, type and value, and how rows get in.

What does not fit is refused when the output is written aside: after the commit of the checkpoints it would be too late.
A column or a type that does not fit is Refused. A value that does not fit is the message's fault: HandlerFailed.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import xxhash
from sqlalchemy import Column, Connection, MetaData, Table, UniqueConstraint, insert, inspect
from sqlalchemy import types as sql
from sqlalchemy.dialects.mysql import DATETIME, LONGBLOB, LONGTEXT
from sqlalchemy.dialects.mysql import TIME as MYSQL_TIME
from sqlalchemy.exc import NoSuchTableError

from pxrs.errors import Damaged, HandlerFailed, Refused

_IS = pa.types
_INTEGERS = {"TINYINT": "int8", "SMALLINT": "int16", "MEDIUMINT": "int32", "INTEGER": "int32", "BIGINT": "int64"}
_FLOATS = ("FLOAT", "DOUBLE", "DOUBLE_PRECISION", "REAL", "BINARY_FLOAT", "BINARY_DOUBLE")
_DECIMALS = ("NUMERIC", "DECIMAL", "NUMBER")
_TEXTS = ("VARCHAR", "CHAR", "TEXT", "TINYTEXT", "MEDIUMTEXT", "LONGTEXT", "NVARCHAR", "NCHAR", "CLOB", "NCLOB")
_BYTES = ("BYTEA", "BLOB", "TINYBLOB", "MEDIUMBLOB", "LONGBLOB", "VARBINARY", "BINARY", "RAW")
_TIMES = {"DATE": pa.date32(), "TIME": pa.time64("us")}
_MOST_BYTES = {"TINY": 255, "": 65_535, "MEDIUM": 16_777_215}
"""MariaDB's texts and blobs, which have their size in their name."""


class TargetTable(NamedTuple):
    """A table to write to. ``is_delicate``: it can refuse rows for reasons that only the server knows."""

    table: Table
    dialect: str
    is_delicate: bool

    @property
    def shape(self) -> dict[str, str]:
        """The known shape of its columns."""
        return {column.name: f"{column.type!r} {column.nullable}" for column in self.table.c}

    def fitted(self, output: pa.Table) -> pa.Table:
        """The output with the table's types; raises if one column or value does not fit."""
        self.check_names(output.column_names)
        columns = {name: _fit(self.table.c[name], output.column(name), self.dialect) for name in output.column_names}
        return pa.table(columns)

    def check_names(self, names: Sequence[str]) -> None:
        there, twice = list(self.table.c.keys()), sorted({name for name in names if list(names).count(name) > 1})
        if twice:
            raise Refused(f"the output has several columns named {twice}")
        if unknown := [name for name in names if name not in there]:
            raise Refused(f"table {self.table.fullname} has no column {unknown[0]!r}; there are {', '.join(there)}")
        missing = [c.name for c in self.table.c if c.name not in names and not _can_be_left_out(c)]
        if missing:
            raise Refused(f"the output has no column {missing[0]!r}, which table {self.table.fullname} needs")


def _can_be_left_out(column: Column[Any]) -> bool:
    has_value = column.server_default is not None or column.identity is not None or column.computed is not None
    counts = column.primary_key and column.autoincrement is True
    return bool(column.nullable) or has_value or counts


def find_target(connection: Connection, name: str, schema: str | None) -> TargetTable | None:
    """Read the table as it is now; None if there is none."""
    try:
        table = Table(name, MetaData(), schema=schema, autoload_with=connection)
    except NoSuchTableError:
        return None
    dialect = connection.dialect.name
    return TargetTable(table, dialect, _has_rules(connection, table) or any(_is_opaque(c, dialect) for c in table.c))


def _has_rules(connection: Connection, table: Table) -> bool:
    """Keys, foreign keys and conditions. A key that the server counts by itself is none.

    PostgreSQL tells of UNIQUE as a constraint, and MariaDB as an index.
    """
    keys = [c for c in table.primary_key.columns if not _can_be_left_out(c)]
    unique = any(index.unique for index in table.indexes)
    unique = unique or any(isinstance(rule, UniqueConstraint) for rule in table.constraints)
    checks = inspect(connection).get_check_constraints(table.name, schema=table.schema)
    return bool(keys or unique or table.foreign_key_constraints or checks)


def _is_opaque(column: Column[Any], dialect: str) -> bool:
    """Whether only the server knows which values fit."""
    name = _kind(column)
    bounded = name == "MEDIUMINT" or (name == "TIMESTAMP" and dialect == "mysql")
    return bounded or _arrow_type(column, dialect) is None


# ---- fitting --------------------------------------------------------------------------------------------------------


def _kind(column: Column[Any]) -> str:
    return str(column.type.__visit_name__).upper()


def _arrow_type(column: Column[Any], dialect: str) -> pa.DataType | None:
    """The type whose values a column can hold; None where it is for the server to say."""
    kind, of = _kind(column), column.type
    if kind in _INTEGERS:
        return pa.type_for_alias(("u" if getattr(of, "unsigned", False) else "") + _INTEGERS[kind])
    if kind in _DECIMALS:
        precision, scale = getattr(of, "precision", None), getattr(of, "scale", None)
        return None if precision is None or precision > 76 else pa.decimal256(precision, scale or 0)
    if kind in ("TIMESTAMP", "DATETIME") or (kind == "DATE" and dialect == "oracle"):
        return pa.timestamp("us", "UTC" if getattr(of, "timezone", False) else None)
    for kinds, found in ((_FLOATS, pa.float64()), (_TEXTS, pa.large_string()), (_BYTES, pa.large_binary())):
        if kind in kinds:
            return found
    return pa.bool_() if kind == "BOOLEAN" else _TIMES.get(kind)


def _fit(column: Column[Any], values: pa.ChunkedArray, dialect: str) -> pa.ChunkedArray:
    wanted, given = _arrow_type(column, dialect), values.type
    if _IS.is_dictionary(given):
        values = values.cast(given.value_type)
        given = values.type
    if not _is_convertible(given, wanted):
        raise Refused(f"column {column.name!r}: {given} does not go into {_kind(column)}{_hint(given)}")
    try:
        fitted = values.cast(pa.large_string() if wanted is None else wanted, safe=not _IS.is_timestamp(given))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise HandlerFailed(f"column {column.name!r}: a value does not fit into {_kind(column)}: {error}") from error
    if reason := _misfit(column, fitted, dialect):
        raise HandlerFailed(f"column {column.name!r}: {reason}")
    return fitted


def _hint(given: pa.DataType) -> str:
    return "; write it as JSON text, or in columns of its own" if _IS.is_nested(given) else ": cast it"


def _is_convertible(given: pa.DataType, wanted: pa.DataType | None) -> bool:
    texts = _is_text(given) or _is_bytes(given)
    if _IS.is_null(given) or given == wanted:
        return True
    if wanted is None or _is_text(wanted) or _is_bytes(wanted):
        return texts
    if _IS.is_integer(wanted):
        return bool(_IS.is_integer(given) or (_IS.is_boolean(given) and wanted.bit_width == 8))
    if _IS.is_floating(wanted):
        return bool(_IS.is_floating(given) or _IS.is_integer(given))
    if _IS.is_decimal(wanted):
        return bool(_IS.is_decimal(given) or _IS.is_integer(given))
    if _IS.is_timestamp(wanted):
        return bool(_IS.is_timestamp(given) or _IS.is_date(given))
    return any(same(given) and same(wanted) for same in (_IS.is_date, _IS.is_time))


def _is_text(of: pa.DataType) -> bool:
    return bool(_IS.is_string(of) or _IS.is_large_string(of) or _IS.is_string_view(of))


def _is_bytes(of: pa.DataType) -> bool:
    return bool(_IS.is_binary(of) or _IS.is_large_binary(of) or _IS.is_fixed_size_binary(of) or _IS.is_binary_view(of))


def _misfit(column: Column[Any], values: pa.ChunkedArray, dialect: str) -> str:
    """Why one of the values cannot be stored; "" if all can."""
    is_text = _IS.is_large_string(values.type)
    if values.null_count and not column.nullable:
        return "NULL, where the table takes none"
    if _IS.is_floating(values.type) and dialect == "mysql" and pc.all(pc.is_finite(values)).as_py() is False:
        return "a number that is not finite, which MariaDB and MySQL cannot store"
    if is_text and dialect == "postgresql" and pc.any(pc.match_substring(values, "\0")).as_py():
        return "a text with the character NUL, which PostgreSQL cannot store"
    return _too_long(column, values, dialect) if is_text or _IS.is_large_binary(values.type) else ""


def _too_long(column: Column[Any], values: pa.ChunkedArray, dialect: str) -> str:
    kind, most = _kind(column), getattr(column.type, "length", None)
    counted = pc.utf8_length if _IS.is_large_string(values.type) else pc.binary_length
    if dialect == "mysql" and kind.endswith(("TEXT", "BLOB")):
        most, counted = _MOST_BYTES.get(kind[:-4]), pc.binary_length
    longest = pc.max(counted(values)).as_py() or 0
    return f"a value of length {longest}, where {kind} takes {most}" if most is not None and longest > most else ""


# ---- creating -------------------------------------------------------------------------------------------------------


def create_target(connection: Connection, name: str, schema: str | None, columns: pa.Schema) -> None:
    """Make a table that holds what these Arrow columns hold. Harmless if it is there."""
    metadata = MetaData()
    Table(name, metadata, *(Column(f.name, _sql_type(f)) for f in columns), schema=schema)
    metadata.create_all(connection)


def _sql_type(field: pa.Field) -> sql.TypeEngine[Any]:
    of = field.type.value_type if _IS.is_dictionary(field.type) else field.type
    if _IS.is_decimal(of):
        return sql.Numeric(of.precision, of.scale)
    if _IS.is_uint64(of):
        return sql.Numeric(20, 0)
    for fits, found in _CREATED:
        if fits(of):
            return found
    if _is_text(of):
        return sql.Text().with_variant(LONGTEXT(), "mysql")
    if _is_bytes(of):
        return sql.LargeBinary().with_variant(LONGBLOB(), "mysql")
    raise Refused(f"column {field.name!r}: there is no type of SQL for {of}{_hint(of)}")


_CREATED: tuple[tuple[Any, sql.TypeEngine[Any]], ...] = (
    (_IS.is_boolean, sql.Boolean()),
    (lambda of: _IS.is_integer(of) and (of.bit_width < 16 or _IS.is_int16(of)), sql.SmallInteger()),
    (lambda of: _IS.is_int32(of) or _IS.is_uint16(of), sql.Integer()),
    (_IS.is_integer, sql.BigInteger()),
    (_IS.is_floating, sql.Double()),
    (_IS.is_date, sql.Date()),
    (_IS.is_timestamp, sql.DateTime(timezone=True).with_variant(DATETIME(fsp=6), "mysql")),
    (_IS.is_time, sql.Time().with_variant(MYSQL_TIME(fsp=6), "mysql")),
)


# ---- inserting -----------------------------------------------------------------------------------------------------
# PostgreSQL gets many rows by COPY, the others in statements of many rows.


_CSV = pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid")
"""The quoting of values; what is not quoted is NULL."""
_END_OF_COPY = "\n\\."
"""Servers before 18 take a line that begins so for the end of all rows, even in quotes."""


def insert_rows(connection: Connection, table: Table, chunks: Iterable[pa.Table]) -> None:
    """Add rows whose columns have been fitted to the table's, in the transaction that is open."""
    if connection.dialect.name == "postgresql":
        _copy(connection, table, chunks)
        # Rules that wait for the COMMIT (DEFERRABLE) are checked now, while it is known who broke them.
        connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
    else:
        for chunk in chunks:
            _insert(connection, table, chunk)


def _insert(connection: Connection, table: Table, chunk: pa.Table) -> None:
    statement = insert(table).compile(dialect=connection.dialect, column_keys=chunk.column_names)
    if statement.positional:
        columns = [chunk.column(name).to_pylist() for name in statement.positiontup or ()]
        connection.exec_driver_sql(str(statement), list(zip(*columns, strict=True)))
    else:
        connection.execute(insert(table), chunk.to_pylist())


def _copy(connection: Connection, table: Table, chunks: Iterable[pa.Table]) -> None:
    """Copy by way of a table of this session: a process that is stopped in the middle of a COPY, out of reach of time
    limits, then holds nothing that others wait for.
    """
    rest = iter(chunks)
    first = next(rest, None)
    if first is None:
        return
    target, columns = _names(connection, table, first.column_names)
    cursor = connection.connection.cursor()
    aside = f"pxrs_{xxhash.xxh3_64_hexdigest(f'{target} {columns} {first.schema}'.encode())}"
    made = f"CREATE TEMPORARY TABLE IF NOT EXISTS {aside} ON COMMIT DELETE ROWS"
    cursor.execute(f"{made} AS SELECT {columns} FROM {target} WITH NO DATA", ())
    sent, odd = 0, []
    for chunk in chain([first], rest):
        if _looks_like_an_end(chunk):
            odd.append(chunk)
            continue
        text = _as_csv(chunk)
        with cursor.copy(f"COPY {aside} FROM STDIN (FORMAT csv)") as copy:
            copy.write(text)
        sent += chunk.num_rows
    cursor.execute(f"INSERT INTO {target} ({columns}) SELECT {columns} FROM {aside}", ())
    if cursor.rowcount != sent:
        raise Damaged(f"{table.fullname}: of {sent} rows {cursor.rowcount} have arrived")
    for chunk in odd:
        _insert(connection, table, chunk)


def _names(connection: Connection, table: Table, columns: Sequence[str]) -> tuple[str, str]:
    """The table and its columns, quoted: names are the user's. A "%" is written twice, as in statements with values."""
    quoting = connection.dialect.identifier_preparer
    return quoting.format_table(table), ", ".join(quoting.quote(name) for name in columns)


def _looks_like_an_end(chunk: pa.Table) -> bool:
    texts = [column for column in chunk.columns if pa.types.is_large_string(column.type)]
    return any(pc.any(pc.match_substring(column, _END_OF_COPY)).as_py() for column in texts)


def _as_csv(chunk: pa.Table) -> bytes:
    for at, field in enumerate(chunk.schema):
        if pa.types.is_large_binary(field.type):
            chunk = chunk.set_column(at, field.name, _hexadecimal(chunk.column(at)))
    text = io.BytesIO()
    pyarrow.csv.write_csv(chunk, text, _CSV)
    return text.getvalue()


def _hexadecimal(column: pa.ChunkedArray) -> pa.Array:
    """Bytes as the server reads them. One conversion for all of them: a byte is two digits, so offsets double."""
    whole = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.large_binary())
    whole = pa.concat_arrays([whole.slice(0, 0), whole])  # begins at offset 0, whatever it was cut from
    _, offsets, data = whole.buffers()
    ends = pa.Array.from_buffers(pa.int64(), len(whole) + 1, [None, offsets])
    doubled = pc.multiply(pc.subtract(ends, ends[0]), 2)
    start, end = ends[0].as_py(), ends[-1].as_py()
    digits = pa.py_buffer((data[start:end].to_pybytes() if data is not None else b"").hex().encode())
    valid = pc.is_valid(whole)
    text = pa.LargeStringArray.from_buffers(len(whole), doubled.buffers()[1], digits)
    marked = pc.binary_join_element_wise(pa.scalar("\\x", pa.large_string()), text, pa.scalar("", pa.large_string()))
    return pc.if_else(valid, marked, pa.scalar(None, pa.large_string()))
