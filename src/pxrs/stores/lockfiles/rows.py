"""Row files: a line that says which version it is and whose process it depends on, then the bytes of the row.

# version 4611686018427387 process 4711 started 88127 boot 48a5... namespace 4026531836
{"v":1,"inc":"6f0c...","beat":12,"state":"active",...}
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from pxrs.errors import Damaged, Refused
from pxrs.stores.base import encoded_key
from pxrs.stores.lockfiles.process import ProcessIdentity

SUFFIX = ".row"
LONGEST_NAME = 200
"""A longer part of a key is cut into several names, one directory in the other."""
LONGEST_PATH = 3_000
"""Linux takes paths of 4,096 bytes; the rest is for the directory that the user names."""


class FileRow(NamedTuple):
    """The content of a row's file. A row with a ``life`` is void when that process has ended."""

    version: int
    value: bytes
    life: ProcessIdentity | None = None

    def as_bytes(self) -> bytes:
        process = f" {self.life}" if self.life else ""
        return f"# version {self.version}{process}\n".encode() + self.value


class RowFiles:
    """The directory of rows. Its reader and its writer hold the mutex."""

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


# ---- names of files -------------------------------------------------------------------------------------------------
# ``/pxrs/orders/billing/partition/00003`` is ``pxrs/orders/billing/partition/00003.row``: readable, reversible, and
# never longer than a name may be. What is no plain letter is percent-encoded; a key that does not begin with a slash
# is in the directory ``%``.


# A percent sign is followed by two digits wherever it encodes something: these names can mean nothing else.
_WITHOUT_SLASH, _EMPTY, _GOES_ON = "%", "%empty", "%+"


@lru_cache(maxsize=16_384)  # asked several times in each write, and a registry's keys are few
def file_of(key: str) -> str:
    """The path of the key's file, below the directory of rows."""
    above, last = _split(key)
    path = "/".join([*above, *_names(last)]) + SUFFIX
    if len(path) > LONGEST_PATH:
        raise Refused(f"key {key[:60]!r}... is too long for a file name: {len(path)} characters")
    return path


def directory_of(prefix: str) -> str:
    """The directory that holds every key with this prefix, below the directory of rows."""
    return "/".join(_split(prefix)[0]) if prefix else ""


def key_of(names: Sequence[str]) -> str:
    """The key whose file has this path below the directory of rows; the last name without its suffix."""
    without_slash = names[0] == _WITHOUT_SLASH
    parts: list[str] = []
    begun = ""
    for name in names[without_slash:]:
        if name.endswith(_GOES_ON):
            begun += name.removesuffix(_GOES_ON)
        else:
            parts.append("" if name == _EMPTY else unquote(begun + name))
            begun = ""
    return ("" if without_slash else "/") + "/".join(parts)


def _split(key: str) -> tuple[list[str], str]:
    """The names of the directories, and the last part of the key."""
    encoded_key(key)
    *above, last = key.removeprefix("/").split("/")
    names = [name for part in above for name in _directory_names(part)]
    return (names if key.startswith("/") else [_WITHOUT_SLASH, *names]), last


def _directory_names(part: str) -> list[str]:
    *first, last = _names(part)
    if last.endswith(SUFFIX):  # the name of a row's file may be the same
        last = last.removesuffix(SUFFIX) + "%2E" + SUFFIX[1:]
    return [*first, last]


def _names(part: str) -> list[str]:
    text = quote(part, safe="") or _EMPTY
    if text.startswith("."):  # "." and ".." are directories already, and other such files are hidden
        text = "%2E" + text[1:]
    if len(text) <= LONGEST_NAME:
        return [text]
    text = text.replace(".", "%2E")
    pieces = [text[start : start + LONGEST_NAME] for start in range(0, len(text), LONGEST_NAME)]
    return [*(piece + _GOES_ON for piece in pieces[:-1]), pieces[-1]]
