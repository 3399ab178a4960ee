"""Reads messages to send or import: lines, JSON lines, whole files, Arrow and Parquet tables."""

from __future__ import annotations

import io
import json
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, NamedTuple

from pxrs.apps.cli.options import WrongUsage
from pxrs.errors import Refused
from pxrs.io.signals import SLICE_SECONDS

STDIN = "-"

IsOver = Callable[[], bool]
"""Whether no more is to be read."""


def _never() -> bool:
    return False


class _Patient(io.RawIOBase):
    """Reads what comes, and looks from time to time whether the command is to end."""

    def __init__(self, file: int, is_over: IsOver) -> None:
        self._file = file
        self._is_over = is_over

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._is_over():
            if select.select([self._file], [], [], SLICE_SECONDS)[0]:
                return self._read(buffer)
        return 0

    def _read(self, buffer: Any) -> int:
        try:
            return os.readv(self._file, [buffer])
        except OSError as error:
            raise Refused(f"cannot read stdin: {error.strerror}") from error


class Entry(NamedTuple):
    """One message to send: ``size`` is the number of bytes it took in the source, for the progress bar."""

    key: str | bytes | None
    value: bytes
    size: int


@dataclass(frozen=True)
class LineFormat:
    """The way in which lines become messages."""

    json: bool = False
    key: str | None = None
    key_field: str | None = None
    key_separator: str | None = None

    def __post_init__(self) -> None:
        if sum(part is not None for part in (self.key, self.key_field, self.key_separator)) > 1:
            raise WrongUsage("a key comes from one place: --key, --key-field or --key-separator")
        if self.key_field is not None and not self.json:
            raise WrongUsage("--key-field names a field of JSON messages: add --format json")
        if self.key_separator == "":
            raise WrongUsage("--key-separator must not be empty")

    def entry(self, line: bytes, where: str) -> Entry | None:
        """The message of one line; None for an empty line between JSON documents."""
        value = line.removesuffix(b"\n").removesuffix(b"\r") if self.json else line.removesuffix(b"\n")
        if self.json:
            if not value.strip():
                return None
            return Entry(self._json_key(value, where), value, len(line))
        if self.key_separator is not None:
            key, found, rest = value.partition(self.key_separator.encode())
            if not found:
                raise Refused(f"{where} has no key separator {self.key_separator!r}")
            return Entry(key, rest, len(line))
        return Entry(self.key, value, len(line))

    def _json_key(self, value: bytes, where: str) -> str | None:
        try:
            document = json.loads(value)
        except ValueError as error:
            raise Refused(f"{where} is not JSON: {error}") from error
        return self.key if self.key_field is None else field_of(document, self.key_field, where)


def field_of(document: Any, path: str, where: str) -> str:
    """The field ``a.b`` of a JSON document, as a key: text as it is, numbers and the like as JSON writes them."""
    found = document
    for name in path.split("."):
        if not isinstance(found, dict) or name not in found:
            raise Refused(f"{where} has no field {path!r} to take the key from")
        found = found[name]
    if found is None or isinstance(found, (dict, list)):
        raise Refused(f"{where}: field {path!r} is {json.dumps(found)[:40]}, which is no key")
    return found if isinstance(found, str) else json.dumps(found)


def entries(paths: Sequence[str], reading: LineFormat, is_over: IsOver = _never) -> Iterator[Entry]:
    """The messages of these files (``-`` or none: stdin), one for each line. The last one may be cut short by
    ``is_over``.
    """
    for path in paths or [STDIN]:
        with _open(path, is_over) as file:
            shown = "stdin" if path == STDIN else path
            for number, line in enumerate(file, 1):
                entry = reading.entry(line, f"{shown}, line {number}")
                if entry is not None:
                    yield entry


def whole_files(paths: Sequence[str], key: str | None) -> Iterator[Entry]:
    """Make a message of each file; its key is the file's name, if no other is given."""
    for path in paths:
        with _open(path) as file:
            value = file.read()
        yield Entry(os.path.basename(path) if key is None else key, value, len(value))


def total_size(paths: Sequence[str]) -> int | None:
    """The bytes of all these files; None where that cannot be known before."""
    if not paths or STDIN in paths:
        return None
    check_readable(paths)
    return sum(os.path.getsize(path) for path in paths)


def check_readable(paths: Sequence[str]) -> None:
    """Refuse a file that cannot be read, before anything is sent."""
    for path in paths:
        with _open(path):
            pass


@contextmanager
def _open(path: str, is_over: IsOver = _never) -> Iterator[IO[bytes]]:
    if path == STDIN:
        yield _stdin(is_over)
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below; only the opening is guarded here
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error
    with file:
        yield file


def _stdin(is_over: IsOver) -> IO[bytes]:
    try:
        return io.BufferedReader(_Patient(sys.stdin.fileno(), is_over))
    except io.UnsupportedOperation:  # there is text, and no file behind it
        return sys.stdin.buffer


# ---- tables ---------------------------------------------------------------------------------------------------------

_COLUMNS = ("key", "value", "headers", "timestamp", "tenant")


def tables(path: str, form: str, key_field: str | None) -> Iterator[Any]:
    """The batches of an Arrow or Parquet file, in the columns that ``send_batch`` takes."""
    import pyarrow as pa

    for number, batch in enumerate(_batches(path, form)):
        yield _as_messages(pa.Table.from_batches([batch]), key_field, f"{path}, batch {number}")


def _batches(path: str, form: str) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    readers: dict[str, Callable[[], Iterator[Any]]] = {
        "arrow": lambda: _arrow_batches(path),
        "parquet": lambda: pq.ParquetFile(path).iter_batches(batch_size=10_000),
    }
    check_readable([path])
    try:
        yield from readers[form]()
    except pa.ArrowInvalid as error:
        raise Refused(f"{path} is not readable as {form}: {error}") from error


def _arrow_batches(path: str) -> Iterator[Any]:
    import pyarrow as pa

    with pa.memory_map(path) as file:
        try:
            reader: Any = pa.ipc.open_file(file)
        except pa.ArrowInvalid:
            file.seek(0)
            yield from pa.ipc.open_stream(file)
            return
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def _as_messages(table: Any, key_field: str | None, where: str) -> Any:
    """Columns that are messages already go through; other rows become JSON documents."""
    import pyarrow as pa

    if "value" in table.column_names:
        kept = [name for name in _COLUMNS if name in table.column_names]
        found = _unmarked(table.select(kept))
        if key_field is not None:
            keys = [field_of(row, key_field, where) for row in table.to_pylist()]
            found = found.drop_columns(["key"]) if "key" in kept else found
            found = found.append_column("key", pa.array(keys, pa.string()))
        return found if "key" in found.column_names else found.append_column("key", pa.nulls(len(table), pa.binary()))
    rows = table.to_pylist()
    found_keys = [None if key_field is None else field_of(row, key_field, where) for row in rows]
    values = [json.dumps(row, default=str).encode() for row in rows]
    return pa.table({"key": pa.array(found_keys, pa.string()), "value": pa.array(values, pa.binary())})


def _unmarked(table: Any) -> Any:
    """Headers without the mark of one group: a message that is imported is for all groups here."""
    from pxrs.rules.addressing import without_mark

    if "headers" not in table.column_names:
        return table
    return table.set_column(table.schema.get_field_index("headers"), "headers", without_mark(table.column("headers")))


def packed(found: Iterator[Entry], rows: int = 10_000) -> Iterator[Any]:
    """Single messages in tables of some size."""
    import pyarrow as pa

    while part := list(islice(found, rows)):
        keys = [entry.key.encode() if isinstance(entry.key, str) else entry.key for entry in part]
        values = [entry.value for entry in part]
        yield pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
