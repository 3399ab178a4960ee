"""Many rows into a table at once. PostgreSQL gets them by COPY, the others in statements of many rows."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import xxhash
from sqlalchemy import Connection, Table, insert

from pxrs.errors import Damaged

CHUNK_ROWS = 10_000
CHUNK_BYTES = 1_000_000
_CSV = pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid")
"""What has a value is quoted; what is not quoted is NULL."""
_END_OF_COPY = "\n\\."
"""Servers before 18 take a line that begins so for the end of all rows, even in quotes."""


def insert_rows(connection: Connection, table: Table, chunks: Iterable[pa.Table]) -> None:
    """Add rows whose columns have been fitted to the table's, in the transaction that is open."""
    if connection.dialect.name == "postgresql":
        _copy(connection, table, chunks)
        # Rules that wait for the COMMIT (DEFERRABLE) are checked now, while it can be told who broke them.
        connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
    else:
        for chunk in chunks:
            _insert(connection, table, chunk)


def sliced(table: pa.Table) -> Iterable[pa.Table]:
    """In pieces of some rows and bytes each."""
    per_row = max(1, table.nbytes // max(1, table.num_rows))
    rows = max(1, min(CHUNK_ROWS, CHUNK_BYTES // per_row))
    return (table.slice(start, rows) for start in range(0, table.num_rows, rows))


def _insert(connection: Connection, table: Table, chunk: pa.Table) -> None:
    statement = insert(table).compile(dialect=connection.dialect, column_keys=chunk.column_names)
    if statement.positional:
        columns = [chunk.column(name).to_pylist() for name in statement.positiontup or ()]
        connection.exec_driver_sql(str(statement), list(zip(*columns, strict=True)))
    else:
        connection.execute(insert(table), chunk.to_pylist())


# ---- PostgreSQL -----------------------------------------------------------------------------------------------------


def _copy(connection: Connection, table: Table, chunks: Iterable[pa.Table]) -> None:
    """By way of a table of this session: who is stopped in the middle of a COPY, where no time limit reaches it, then
    holds nothing that others wait for."""
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
