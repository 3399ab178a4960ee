"""Columns of Parquet files that have no type yet, because all their values were None.

Such a file is read like any other as long as it stands alone. Beside one that has values in this column readers would
fail: they take the types from one file for all. So the first type that is known is given to the others, too: a file
without it is written again, with the same rows.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pxrs.io.durable import create_file
from pxrs.sinks.staging.directory import visible_files

Types = dict[str, pa.DataType]
"""The columns of a file; ``null`` where no value has told the type."""


def types_in(schema: pa.Schema) -> Types:
    """The columns that a schema names."""
    return {field.name: field.type for field in schema}


def is_known(types: Types) -> bool:
    """Whether all columns have a type."""
    return not any(map(pa.types.is_null, types.values()))


def changed(first: Types, types: Types) -> tuple[dict[str, str], dict[str, str]]:
    """The columns because of which two files cannot stand in one directory, as they were and as they are now."""
    names = [name for name in {**first, **types} if not _is_same(first.get(name), types.get(name))]
    before, now = ({name: str(of[name]) for name in names if name in of} for of in (first, types))
    return before, now


def _is_same(one: pa.DataType | None, other: pa.DataType | None) -> bool:
    return one is not None and other is not None and (one == other or _is_open(one, other))


def _is_open(*kinds: pa.DataType) -> bool:
    return any(map(pa.types.is_null, kinds))


def filled(first: Types, types: Types) -> Types:
    """The first ones; where these do not know a type, that of the others."""
    return {name: types.get(name, kind) if _is_open(kind) else kind for name, kind in first.items()}


def with_types(table: pa.Table, types: Types) -> pa.Table:
    """The table, with a type for each column that has none and is known here."""
    for number, field in enumerate(table.schema):
        if _is_open(field.type) and not _is_open(kind := types.get(field.name, field.type)):
            table = table.set_column(number, field.name, pa.nulls(table.num_rows, kind))
    return table


class Shown:
    """What the files of a directory tell of their columns. A file that tells nothing new is looked at once."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._looked: set[tuple[str, int]] = set()

    def learn(self, known: Types | None) -> Types | None:
        """What is known and what files tell beyond it; None if there is neither."""
        for path in self._files():
            if known is not None and is_known(known):
                break
            with suppress(FileNotFoundError):  # somebody has removed it meanwhile
                known = self._look(path, known)
        return known

    def _look(self, path: str, known: Types | None) -> Types:
        seen = path, os.stat(path).st_ino  # one that is written again is another one
        if known is not None and seen in self._looked:
            return known
        found = types_in(pq.read_metadata(path).schema.to_arrow_schema())
        self._looked.add(seen)
        return found if known is None else filled(known, found)

    def give(self, types: Types, write: Callable[[pa.Table, Any], None]) -> None:
        """Write the files again in which columns have no type, and should have one of these."""
        for path in list(self._files()):
            with suppress(FileNotFoundError):
                give_types(path, types, write)

    def _files(self) -> Iterator[str]:
        return (path for path in visible_files(self._directory) if path.endswith(".parquet"))


def give_types(path: str, types: Types, write: Callable[[pa.Table, Any], None]) -> None:
    """The same for one file. Readers see the old one or the new one, and both have the same rows."""
    before = pq.read_metadata(path).schema.to_arrow_schema()
    if filled(types_in(before), types) == types_in(before):
        return
    content = pa.BufferOutputStream()
    with pq.ParquetFile(path) as file:
        write(with_types(file.read(), types), content)
    folder, name = os.path.split(path)
    aside = os.path.join(folder, f".{name}.{secrets.token_hex(4)}")  # readers skip it
    create_file(path, memoryview(content.getvalue()), aside, like=path)
