"""The durable mark: how far a partition is durable. It is in its lock file, and only the holder of the lock writes it.

A batch can be read from the page cache before it is on the disk. A consumer that committed past such a batch would,
after a power loss, skip whatever takes its offsets next. So readers stop at the mark. It names the boot in which it
was written: after a restart of the machine what can be read has come from the disk, and an old mark means nothing.
"""

from __future__ import annotations

import os
from functools import cache, lru_cache
from typing import NamedTuple

import xxhash

from pxrs.errors import Damaged
from pxrs.io.process import boot_id

_TEXT = 16 + 1 + 20 + 1 + 20
_SIZE = _TEXT + 1 + 16
_TRIES = 3


class Mark(NamedTuple):
    """Everything before ``position`` of the segment that starts at offset ``base`` is durable."""

    base: int
    position: int


@cache
def _boot() -> str | None:
    """The boot id of the machine; None where the system has none."""
    return xxhash.xxh3_64_hexdigest(f"{boot_id()}\n".encode()) if boot_id() else None  # the line as the system gives it


def has_marks() -> bool:
    """Whether this system can tell one boot from another: else there are no marks."""
    return _boot() is not None


def write_mark(fd: int, mark: Mark) -> bytes | None:
    """Put the mark into the open lock file. It needs no sync: it is valid for this boot only.

    Returns the bytes of the mark: a reader that finds the same bytes again need not look closer.
    """
    boot = _boot()
    if boot is None:
        return None
    text = f"{boot} {mark.base:020d} {mark.position:020d}".encode()
    data = text + b" " + xxhash.xxh3_64_hexdigest(text).encode()
    os.pwrite(fd, data, 0)
    return data


def is_marked(fd: int, data: bytes) -> bool:
    """Whether the mark is the one that was last written."""
    return os.pread(fd, _SIZE, 0) == data


def read_mark(directory: str) -> Mark | None:
    """Read the mark of this boot; None means that everything that can be read is durable."""
    try:
        fd = os.open(f"{directory}/lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return mark_in(fd)
    finally:
        os.close(fd)


def refuse_shorter(directory: str, mark: Mark, found: Mark) -> None:
    """Raise Damaged where the files end before the mark: stored messages, perhaps consumed ones, are gone. Appended
    messages would get their offsets, and groups would pass over them.
    """
    if found < mark:
        raise Damaged(
            f"{directory} ends at byte {found.position} of segment {found.base}, and was durable up to byte "
            f"{mark.position} of segment {mark.base}: a file was cut or deleted. Put it back from a copy, or let "
            "`pxrs log repair --cut-damaged` accept what is left"
        )


def mark_in(fd: int) -> Mark | None:
    for _ in range(_TRIES):  # a mark that is being written may be seen half; the next look sees it whole
        found = _parse(os.pread(fd, _SIZE, 0))
        if found is not None:
            boot, mark = found
            return mark if boot == _boot() else None
    return None


@lru_cache(1_024)  # readers that wait find the same again and again
def _parse(data: bytes) -> tuple[str, Mark] | None:
    """Parse a mark with its boot id; None if it is not whole."""
    text = data[:_TEXT]
    if xxhash.xxh3_64_hexdigest(text).encode() != data[_TEXT + 1 :]:
        return None
    return text[:16].decode(), Mark(int(text[17:37]), int(text[38:58]))
