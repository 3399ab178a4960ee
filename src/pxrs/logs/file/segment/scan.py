"""Walking a segment from header to header, and judging its end.

Reads with ``pread``, not through a map: a writer may cut a torn tail under a walking reader, and touching
mapped bytes that are gone would kill the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from pxrs.errors import Damaged
from pxrs.logs.formats.segment import (
    CONTINUATION,
    MAX_HEADER,
    PREFIX,
    Header,
    NotAHeader,
    contradicts_itself,
    header_size,
    read_header,
)

_STEP = 16_384
"""The number of bytes read at a time to find many small headers; of a large batch, more would be read in vain."""


class Tail(Enum):
    """The bytes after the last whole batch."""

    CLEAN = "nothing"
    PARTIAL = "the beginning of a batch: being written now, or torn by a crash"
    BROKEN = "a last batch that is not intact"


class ScanResult(NamedTuple):
    """The end of the last whole batch, as a byte and as an offset, and what follows it."""

    position: int
    end: int
    tail: Tail


Take = Callable[[int, Header], None]
"""The function that is called with each whole batch: its position and its header."""


class Window:
    """A file through a small buffer: many small headers cost one read, and of large bodies little is read."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.start = 0
        self.data = b""

    def header(self, position: int) -> bytes:
        """The bytes of the header at a position, as far as the file has them."""
        size = _size_of(self._at(position, PREFIX))
        return self._at(position, size)

    def _at(self, position: int, length: int) -> bytes:
        found = self.data[position - self.start : position - self.start + length]
        if len(found) < length:
            # The batch behind a large one is likely to be as large: only its header is needed.
            reach = _STEP if position > self.start + len(self.data) else MAX_HEADER
            self.data, self.start = os.pread(self._fd, max(reach, length), position), position
            found = self.data[:length]
        return found


def _size_of(prefix: bytes) -> int:
    try:
        return header_size(prefix)
    except NotAHeader:
        return PREFIX


def walk(fd: int, path: str, start: tuple[int, int], take: Take, limit: int | None = None) -> ScanResult:
    """Over all whole batches from the ``start`` (byte, offset) to the byte ``limit``."""
    position, expected = start
    size = os.fstat(fd).st_size
    if limit is not None:
        size = min(size, limit)
    window = Window(fd)
    while position < size:
        try:
            header = read_header(window.header(position))
        except NotAHeader:
            return ScanResult(position, expected, _judge(fd, path, position, expected))
        if header.base != expected:
            raise Damaged(f"{path}: the batch at byte {position} starts at offset {header.base}, not at {expected}")
        if position + header.length > size:
            return ScanResult(position, expected, Tail.PARTIAL)
        take(position, header)
        position += header.length
        expected = header.end
    return ScanResult(position, expected, Tail.CLEAN)


def _judge(fd: int, path: str, position: int, expected: int) -> Tail:
    """Decide what is in the place of an intact header. Damage before a good batch is an error."""
    data = os.pread(fd, MAX_HEADER, position)
    if _is_beginning(data) or _is_header(data):  # a writer may have finished it since: the next look takes it in
        return Tail.PARTIAL
    rest = _rest(fd, position)
    if not rest.strip(b"\0"):  # the file system gave the file its size, and lost power before its content
        return Tail.PARTIAL
    if _good_batch_in(rest):
        raise Damaged(f"{path}: the batch at byte {position}, offset {expected}, is damaged, and good ones follow")
    return Tail.BROKEN


def _is_beginning(data: bytes) -> bool:
    if len(data) < PREFIX:
        return CONTINUATION.startswith(data[:4])
    try:
        return header_size(data) > len(data) and not contradicts_itself(data)
    except NotAHeader:
        return False


def _rest(fd: int, position: int) -> bytes:
    size = os.fstat(fd).st_size - position
    parts = []
    while size > 0 and (part := os.pread(fd, size, position)):
        parts.append(part)
        position, size = position + len(part), size - len(part)
    return b"".join(parts)


def _good_batch_in(rest: bytes) -> bool:
    at = rest.find(CONTINUATION, 1)
    while at >= 0 and not _is_header(rest[at : at + MAX_HEADER]):
        at = rest.find(CONTINUATION, at + 1)
    return at >= 0


def _is_header(data: bytes) -> bool:
    try:
        read_header(data)
    except NotAHeader:
        return False
    return True
