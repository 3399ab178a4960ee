"""Files and directories that survive a crash: every new name is synced, every write is whole or undone."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write everything; the kernel may take less than it is given at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def check_size(fd: int, size: int) -> None:
    """A disk that has said that it took everything, and has not, is noticed while it can still be put right."""
    if os.fstat(fd).st_size != size:
        raise OSError(errno.EIO, "the file did not grow by what was written")


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
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
    sync_directory(parent)


def create_file(path: str, content: bytes | memoryview, temporary: str, like: str | None = None) -> None:
    """Create or replace a file at once and durably: nobody ever sees a part of it. Owner and mode as ``like`` has."""
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        write_all(fd, content)
        check_size(fd, len(content))
        if like is not None:
            _give(fd, os.stat(like))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)
    sync_directory(os.path.dirname(path))


def _give(fd: int, owner: os.stat_result) -> None:
    with suppress(PermissionError):  # only root gives files away; others mostly own both
        os.fchown(fd, owner.st_uid, owner.st_gid)
    os.fchmod(fd, stat.S_IMODE(owner.st_mode))


def free_name(path: str) -> str:
    """This name, or one like it that nobody has."""
    number, found = 0, path
    while os.path.exists(found):
        number += 1
        found = f"{path}.{number}"
    return found
