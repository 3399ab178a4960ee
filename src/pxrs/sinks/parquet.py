"""Writes a directory of Parquet files in which each message's output is once, for readers without PXRS.

Output waits beside the directory, not in it: readers find committed files only, whichever names they skip, and no
directory vanishes while they list.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pxrs.errors import BadSetting, HandlerFailed, Refused
from pxrs.io.durable import create_file, make_directories, sync_path
from pxrs.model import Batch
from pxrs.runtime.ports.sink import Sink
from pxrs.sinks.hive_names import check_frame, check_table, split_table
from pxrs.sinks.local_files import is_missing, local_directory, staging_in, visible_files
from pxrs.sinks.output import write_frame
from pxrs.sinks.staged import Note, StagedSink
from pxrs.sinks.staging import Staging

_COMPRESSIONS = ("snappy", "zstd", "gzip", "none")
_PLAIN = {"store_schema": False, "coerce_timestamps": "us", "allow_truncated_timestamps": True}
"""Files as Spark writes them, by any writer: no Arrow types beside Parquet's, no nanoseconds (Spark reads none)."""


Types = dict[str, pa.DataType]
"""The columns of a file; ``null`` where no value has shown the type."""


class ParquetSink(StagedSink):
    """Output as Parquet files below a local directory, in Hive directories if ``partition_by`` names columns.

    ``pyarrow.dataset`` and ``spark.read.parquet`` of the directory see committed batches only, each once. The files of
    one batch appear one after the other, within moments. The columns must keep their types: a change is refused. A
    column in which all was None gets the type of its first values, also in the files that are there.
    Output waits for its commit in ``_NAME.staging`` beside the directory, or in ``staging``, on the same file system.
    ``instead_of`` is the sink that the group used before: it shows what it may have committed last.
    """

    kind = "parquet"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        partition_by: str | Sequence[str] = (),
        compression: str = "snappy",
        staging: str | os.PathLike[str] | None = None,
        instead_of: Sink | None = None,
    ) -> None:
        shown = local_directory(directory)
        super().__init__(shown, _beside(shown) if staging is None else staging_in(staging), instead_of)
        self._partition_by = _columns(partition_by)
        for column in self._partition_by:
            if not column or column.startswith(("_", ".")):
                raise BadSetting(f"partition_by = {column!r}: readers skip directories whose names begin like that")
        if compression not in _COMPRESSIONS:
            raise BadSetting(f"compression = {compression!r}: one of {', '.join(_COMPRESSIONS)}")
        self._compression = compression
        self._lock = threading.Lock()
        self._shown = _ShownTypes(self.target)
        self._types: Types | None = None
        self._is_first = False  # the types are those of this sink's own output, and nothing of it is shown yet

    def __repr__(self) -> str:
        by = f", partition_by={self._partition_by!r}" if self._partition_by else ""
        return f"ParquetSink({self.target!r}{by})"

    def _write(self, batch: Batch, output: Any, data: str) -> None:
        self._check_columns(output.column_names if isinstance(output, pa.Table) else output.columns)
        make_directories(self.target)
        _check_movable(os.path.dirname(data), self.target)
        if isinstance(output, pa.Table):
            output = self._with_types(output)
        if not isinstance(output, pa.Table):
            check_frame(output, self._partition_by)
            write_frame(output, data, self._compression, self._partition_by)
        else:
            with _explained():
                self._write_table(output, data, f"part-{batch.name}-00000.parquet")
        self._check_files(data)

    def _with_types(self, output: pa.Table) -> pa.Table:
        """A column in which all is None has no type: it gets that of what is in the directory."""
        return output if _is_known(_types_in(output.schema)) else _with_types(output, self._first_types() or {})

    def _check_empty(self, output: pa.Table) -> None:
        self._check_columns(output.column_names)
        check_table(output, self._partition_by)
        file = pa.BufferOutputStream()
        with _explained():
            self._write_file(output.drop_columns(self._partition_by), file)
        if first := self._first_types():
            self._check_types(first, _types_of(pq.read_metadata(pa.BufferReader(file.getvalue()))))

    def _check_columns(self, columns: Sequence[str]) -> None:
        twice = sorted({column for column in columns if list(columns).count(column) > 1})
        if twice:
            raise Refused(f"the output has several columns named {twice}: no reader could tell them apart")
        for column in self._partition_by:
            if column not in columns:
                raise Refused(f"the output has no column {column!r} to partition by; there are {list(columns)}")
        if set(columns) <= set(self._partition_by):
            raise Refused(f"the output has no column but those of partition_by: {self._partition_by}")

    def _write_table(self, table: pa.Table, data: str, name: str) -> None:
        os.mkdir(data)
        if not self._partition_by:
            self._write_file(table, os.path.join(data, name))
            return
        for folder, rows in split_table(table, self._partition_by):
            try:
                os.makedirs(os.path.join(data, folder))
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                raise HandlerFailed(f"the values of partition_by make a path that is too long: {folder}") from error
            self._write_file(rows, os.path.join(data, folder, name))

    def _write_file(self, table: pa.Table, file: Any) -> None:
        pq.write_table(table, file, compression=self._compression, **_PLAIN)

    def _check_files(self, data: str) -> None:
        """Drop empty files, as Spark writes them for empty tasks, and refuse other types than were written before."""
        for path in list(visible_files(data)):
            footer = pq.read_metadata(path)
            types = _types_of(footer)
            if first := self._first_types(types if footer.num_rows else None):
                self._check_types(first, types)
                if footer.num_rows and _filled(first, types) != first:
                    self._learn(types)
            if not footer.num_rows:
                os.unlink(path)

    def _first_types(self, types: Types | None = None) -> Types | None:
        """The types of the first output, which all others must have; those given, if there was none."""
        with self._lock:
            if self._types is None or not _is_known(self._types):
                self._types = self._shown.learn(self._types)
            if self._types is None and types is not None:
                self._types, self._is_first = types, True
            return self._types

    def _learn(self, types: Types) -> None:
        """The first values of columns in which all was None so far: what is shown without their types gets them."""
        with self._lock:
            self._types = known = _filled(self._types or types, types)
        self._shown.give(known, self._write_file)

    def _check_types(self, first: Types, types: Types) -> None:
        before, now = _changed(first, types)
        if before or now:
            raise Refused(
                f"the columns of the output have changed from {before} to {now}: readers of {self.target} would "
                "fail or lose columns. Cast them, or write to another directory"
            )

    def _is_shown(self, note: Note, file: str) -> bool:
        return os.path.lexists(os.path.join(note.target, file))

    def _show(self, staging: Staging, note: Note) -> None:
        moved: list[str] = []
        while files := staging.files(note.batch):
            folders = {note.target}
            for path in files:
                shown = os.path.join(note.target, os.path.relpath(path, staging.data(note.batch)))
                folders.add(os.path.dirname(shown))
                _move(path, shown)
                moved.append(shown)
            for folder in folders:  # also of files that another moved: it may not have come to this point
                sync_path(folder)
        if note.target == self.target:
            self._give_types(moved)

    def _give_types(self, moved: Sequence[str]) -> None:
        """Others may have shown columns with a type, or without one, since the output was written aside."""
        if not all(_is_known(_types_of(pq.read_metadata(path))) for path in moved if not is_missing(path)):
            if types := self._first_types():
                for path in moved:
                    with suppress(FileNotFoundError):
                        _give_types(path, types, self._write_file)
        elif self._is_first and moved and self._types is not None:
            self._is_first = False
            self._shown.give(self._types, self._write_file)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise Refused(f"the output cannot be written as Parquet: {error}") from error


def _columns(partition_by: object) -> list[str]:
    named = [partition_by] if isinstance(partition_by, str) else partition_by
    if not isinstance(named, Sequence) or not all(isinstance(column, str) for column in named):
        raise BadSetting(f"partition_by = {partition_by!r}: must be the name of a column, or a list of names")
    return list(named)


def _beside(directory: str) -> str:
    parent, name = os.path.split(directory)
    if not name:
        raise BadSetting(f"directory = {directory!r}: name a directory below it")
    return os.path.join(parent, f"_{name}.staging")


def _check_movable(source: str, target: str) -> None:
    """Refuse before the commit what could not be shown after it: files are moved, never copied."""
    try:
        os.rename(os.path.join(source, "_nothing"), os.path.join(target, "_nothing"))
    except FileNotFoundError:
        movable = os.stat(source).st_dev == os.stat(target).st_dev
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        movable = False
    if not movable:
        raise BadSetting(f"{source} is on another file system than {target}: give staging=DIR on the same one")


def _move(path: str, shown: str) -> None:
    make_directories(os.path.dirname(shown))
    try:
        os.rename(path, shown)
    except FileNotFoundError:
        if not is_missing(path):
            raise


# ---- columns without a type -----------------------------------------------------------------------------------------
# A column whose values were all None has no type yet. Such a file is read like any other as long as it is alone.
# Beside one that has values in this column readers would fail: they take the types from one file for all. So the first
# type that is known is given to the others, too: a file without it is written again, with the same rows.


def _types_in(schema: pa.Schema) -> Types:
    return {field.name: field.type for field in schema}


def _types_of(footer: pq.FileMetaData) -> Types:
    return _types_in(footer.schema.to_arrow_schema())


def _is_known(types: Types) -> bool:
    """Whether all columns have a type."""
    return not _is_open(*types.values())


def _changed(first: Types, types: Types) -> tuple[dict[str, str], dict[str, str]]:
    """The columns because of which two files cannot be in one directory, as they were and as they are now."""
    names = [name for name in {**first, **types} if not _is_same(first.get(name), types.get(name))]
    before, now = ({name: str(of[name]) for name in names if name in of} for of in (first, types))
    return before, now


def _is_same(one: pa.DataType | None, other: pa.DataType | None) -> bool:
    return one is not None and other is not None and (one == other or _is_open(one, other))


def _is_open(*kinds: pa.DataType) -> bool:
    return any(map(pa.types.is_null, kinds))


def _filled(first: Types, types: Types) -> Types:
    """The first ones; where these do not know a type, that of the others."""
    return {name: types.get(name, kind) if _is_open(kind) else kind for name, kind in first.items()}


def _with_types(table: pa.Table, types: Types) -> pa.Table:
    """The table, with a type for each column that has none and is known here."""
    for number, field in enumerate(table.schema):
        if _is_open(field.type) and not _is_open(kind := types.get(field.name, field.type)):
            table = table.set_column(number, field.name, pa.nulls(table.num_rows, kind))
    return table


class _ShownTypes:
    """The column types in the files of a directory. A file without new facts is looked at once."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._looked: set[tuple[str, int]] = set()

    def learn(self, known: Types | None) -> Types | None:
        """The known types and those of other files; None if there is neither."""
        for path in self._files():
            if known is not None and _is_known(known):
                break
            with suppress(FileNotFoundError):  # somebody has removed it meanwhile
                known = self._look(path, known)
        return known

    def _look(self, path: str, known: Types | None) -> Types:
        seen = path, os.stat(path).st_ino  # one that is written again is another one
        if known is not None and seen in self._looked:
            return known
        found = _types_of(pq.read_metadata(path))
        self._looked.add(seen)
        return found if known is None else _filled(known, found)

    def give(self, types: Types, write: Callable[[pa.Table, Any], None]) -> None:
        """Write the files again in which columns have no type, and should have one of these."""
        for path in list(self._files()):
            with suppress(FileNotFoundError):
                _give_types(path, types, write)

    def _files(self) -> Iterator[str]:
        return (path for path in visible_files(self._directory) if path.endswith(".parquet"))


def _give_types(path: str, types: Types, write: Callable[[pa.Table, Any], None]) -> None:
    """Give one file these types. Readers see the old one or the new one, and both have the same rows."""
    before = _types_of(pq.read_metadata(path))
    if _filled(before, types) == before:
        return
    content = pa.BufferOutputStream()
    with pq.ParquetFile(path) as file:
        write(_with_types(file.read(), types), content)
    folder, name = os.path.split(path)
    aside = os.path.join(folder, f".{name}.{secrets.token_hex(4)}")  # readers skip it
    create_file(path, memoryview(content.getvalue()), aside, like=path)


__all__ = ["ParquetSink"]
