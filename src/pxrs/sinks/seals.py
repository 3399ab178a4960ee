"""The seal of a staged batch: which files it has, how large they are, and their checksums.

    ROOT/BATCH/_seal.json   {"files": {"part-BATCH-00000.parquet": [SIZE, CHECKSUM], ...}}

The checksum of the seal itself stands in the note. So whoever shows the batch knows that it is what was committed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable

import xxhash

from pxrs.errors import Damaged
from pxrs.logs.durable import write_all

FILE = "_seal.json"
_PIECE = 1 << 20


def write_seal(data: str, paths: Iterable[str]) -> str:
    """Make these files of a batch durable, and say what they are. Returns the checksum of that; "" for no files."""
    files = {os.path.relpath(path, data): _synced(path) for path in paths}
    if not files:
        return ""
    content = json.dumps({"format": 1, "files": files}).encode()
    fd = os.open(os.path.join(data, FILE), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        write_all(fd, content)
        os.fsync(fd)
    finally:
        os.close(fd)
    return xxhash.xxh3_64_hexdigest(content)


def check_seal(data: str, seal: str, is_shown: Callable[[str], bool]) -> None:
    """Refuse a batch whose files are not those that were committed. ``is_shown``: whether one was moved on already."""
    for name, (size, checksum) in _files_in(data, seal).items():
        path = os.path.join(data, name)
        try:
            found = _measured(path)
        except FileNotFoundError:
            if is_shown(name) or not os.path.lexists(data):  # in this order: others may be about to finish the batch
                continue
            raise _damaged(path, "is gone", data) from None
        if found[0] != size:
            raise _damaged(path, f"has {found[0]} bytes, and {size} were written", data)
        if found[1] != checksum:
            raise _damaged(path, "has another checksum than when it was written", data)


def _files_in(data: str, seal: str) -> dict[str, tuple[int, str]]:
    path = os.path.join(data, FILE)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        if not os.path.lexists(data):  # somebody else has just finished it
            return {}
        raise _damaged(path, "is gone", data) from None
    if xxhash.xxh3_64_hexdigest(content) != seal:
        raise _damaged(path, "has another checksum than when it was written", data)
    found: dict[str, tuple[int, str]] = json.loads(content)["files"]
    return found


def _damaged(path: str, what: str, data: str) -> Damaged:
    return Damaged(
        f"{path}, which is committed and not shown yet, {what}: it is not published. Bring the file back; or, if its "
        f"rows may be lost, delete the directory {data}"
    )


def _synced(path: str) -> tuple[int, str]:
    """Make durable what somebody else wrote, as Spark's tasks and Arrow do. Returns its size and checksum."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return _measured(path)


def _measured(path: str) -> tuple[int, str]:
    size, checksum, piece = 0, xxhash.xxh3_64(), memoryview(bytearray(_PIECE))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(piece):
            checksum.update(piece[:count])
            size += count
    return size, checksum.hexdigest()
