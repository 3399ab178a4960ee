"""Files and directories that survive a crash: every new name is synced, every write is whole or undone."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress


def write_all(fd: int, data: bytes | memoryview, ends: int | None = None) -> None:
    """Write everything; the kernel may take less than it is given at a time.

    ``ends``: how long the file is then. A disk that has said that it took everything, and has not, is noticed while it
    can still be put right.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
    if ends is not None and os.fstat(fd).st_size != ends:
        raise OSError(errno.EIO, "the file did not grow by what was written")


def write_file(path: str, content: bytes | memoryview, sync: bool = False, like: str | None = None) -> None:
    """Create or overwrite a file: all of it is written, or an error is raised. Owner and mode as ``like`` has."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        write_all(fd, content, len(content))
        if like is not None:
            _give(fd, os.stat(like))
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def sync_path(path: str) -> None:
    """Make the content of a file, or the names in a directory, durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directories(path: str) -> None:
    """Like ``mkdir -p``, with each new name durable."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_directories(parent)
    os.makedirs(path, exist_ok=True)
    sync_path(parent)


def create_file(path: str, content: bytes | memoryview, temporary: str, like: str | None = None) -> None:
    """Create or replace a file at once and durably: nobody ever sees a part of it."""
    write_file(temporary, content, sync=True, like=like)
    os.rename(temporary, path)
    sync_path(os.path.dirname(path))


def _give(fd: int, owner: os.stat_result) -> None:
    with suppress(PermissionError):  # only root gives files away; others mostly own both
        os.fchown(fd, owner.st_uid, owner.st_gid)
    os.fchmod(fd, stat.S_IMODE(owner.st_mode))


def free_name(path: str) -> str:
    """This name, or a similar one that no file has yet."""
    number, found = 0, path
    while os.path.exists(found):
        number += 1
        found = f"{path}.{number}"
    return found
