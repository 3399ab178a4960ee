"""Row files: a line that says which version it is and whose process it depends on, then the bytes of the row.

# version 4611686018427387 process 4711 started 88127 boot 48a5... namespace 4026531836
{"v":1,"inc":"6f0c...","beat":12,"state":"active",...}
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from pxrs.errors import Damaged
from pxrs.stores.lockfiles.names import SUFFIX, directory_of, file_of, key_of
from pxrs.stores.lockfiles.process import ProcessIdentity


class FileRow(NamedTuple):
    """What a row's file holds. A row with a ``life`` is void when that process has ended."""

    version: int
    value: bytes
    life: ProcessIdentity | None = None

    def as_bytes(self) -> bytes:
        process = f" {self.life}" if self.life else ""
        return f"# version {self.version}{process}\n".encode() + self.value


class RowFiles:
    """The directory of rows. Whoever reads or writes here holds the mutex."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def path(self, key: str) -> str:
        return os.path.join(self.directory, file_of(key))

    def read(self, key: str) -> FileRow | None:
        return _read(self.path(key))

    def scan(self, prefix: str) -> Iterator[tuple[str, FileRow]]:
        """The rows whose keys begin with this, in no order."""
        below = directory_of(prefix)
        names = below.split("/") if below else []
        for key, path in _walk(os.path.join(self.directory, below), names):
            if key.startswith(prefix):
                stored = _read(path)
                if stored is not None:
                    yield key, stored


def _walk(directory: str, names: list[str]) -> Iterator[tuple[str, str]]:
    """The keys of all rows in a directory and below, each with its path."""
    try:
        entries = list(os.scandir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.name.endswith(SUFFIX):
            yield key_of([*names, entry.name.removesuffix(SUFFIX)]), entry.path
        elif entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, [*names, entry.name])


def _read(path: str) -> FileRow | None:
    try:
        with open(path, "rb", buffering=0) as file:
            content = file.readall()
    except (FileNotFoundError, NotADirectoryError):
        return None
    head, newline, value = content.partition(b"\n")
    try:
        mark, *words = head.decode("ascii").split(" ")
        told = dict(zip(words[::2], words[1::2], strict=True))
        life = _life(told) if "process" in told else None
        version = int(told["version"])
    except (ValueError, KeyError, UnicodeDecodeError):
        mark = ""
    if mark != "#" or not newline:
        raise Damaged(f"{path} is no row of ours, or a damaged one: it begins with {head[:40]!r}")
    return FileRow(version, value, life)


def _life(told: dict[str, str]) -> ProcessIdentity:
    return ProcessIdentity(int(told["process"]), int(told["started"]), told["boot"], told["namespace"])
