"""One segment file that is not sealed, and what this process knows of it so far."""

from __future__ import annotations

import os
from bisect import bisect_right
from contextlib import suppress

import pyarrow as pa

from pxrs.errors import Damaged
from pxrs.io.durable import create_file, free_name
from pxrs.logs.base import Row, Stamp
from pxrs.logs.file.segment import index as indexfile
from pxrs.logs.file.segment.index import BatchIndex
from pxrs.logs.file.segment.scan import Tail, walk
from pxrs.logs.formats import few_rows
from pxrs.logs.formats.segment import (
    MAX_HEADER,
    SCHEMA_MESSAGE,
    BatchPosition,
    Header,
    NotAHeader,
    check_schema,
    intact,
    message_at,
    read_batch,
    read_header,
)

_SMALL = 65_536
"""Bytes up to which a file is read: that costs less than to map it anew."""


def segment_path(directory: str, base: int) -> str:
    return os.path.join(directory, f"{base:020d}.arrow")


def index_path(segment: str) -> str:
    """The path of a segment's index file."""
    return segment.removesuffix(".arrow") + ".index"


class Replaced(Exception):
    """The file is another one than before: it was cut. Nothing that was known of it counts any more."""


class Segment:
    """One file of batches, and what is known of it so far."""

    def __init__(self, directory: str, base: int) -> None:
        self.path = segment_path(directory, base)
        self.base = base
        self.newest_us: int | None = None  # known once it is full and was walked
        self.drop_index()

    def drop_index(self) -> None:
        """Know no batch, as at first; only the newest time stays, which spares a search by time most walks."""
        self.index = BatchIndex()
        self.end = self.base
        self.position = 0
        self.saved = 0
        self.tail = Tail.CLEAN
        self._inode: int | None = None
        self._map: pa.Buffer | None = None

    def refresh(self, limit: int | None = None) -> None:
        """Take in what was appended since the last look, up to ``limit``."""
        found = os.stat(self.path)
        size = found.st_size
        if self._inode not in (None, found.st_ino):
            raise Replaced(self.path)
        self._inode = found.st_ino
        if size == 0:  # it was complete before it got its name
            raise Damaged(f"{self.path} is empty: what was in it, from offset {self.base} on, is gone")
        if limit is not None and limit <= min(size, self.position):
            return
        if size == self.position:
            self.tail = Tail.CLEAN
            return
        if size < self.position:
            raise Damaged(
                f"{self.path} has shrunk from {self.position} to {size} bytes: batches that were read are gone"
            )
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._walk(fd, size if limit is None else min(size, limit))
        finally:
            os.close(fd)

    def is_whole(self) -> bool:
        """Whether the file ends where the last known batch does."""
        if self.tail is not Tail.CLEAN:
            return False
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return False
        return (found.st_size, found.st_ino) == (self.position, self._inode)

    def _walk(self, fd: int, limit: int) -> None:
        known, start = len(self.index), self.position
        if known and not _ends_at(fd, self.index, start, self.end):  # its number was given to another file
            raise Replaced(self.path)
        if start == 0:
            start = check_schema(os.pread(fd, 4 * len(SCHEMA_MESSAGE), 0), self.path)
            start = self._load_index(fd) or start
        try:
            seen = walk(fd, self.path, (start, self.end), self.index.add, limit)
        except BaseException:  # what was not seen to its end is not known: the next look must fail as well
            if self.position:
                self.index.cut(known)
            else:  # nor is what the index file said
                self.drop_index()
            raise
        self.position, self.end, self.tail = seen

    def _load_index(self, fd: int) -> int:
        """Take in the index file, if its last batch is in the segment; returns where that ends."""
        index = BatchIndex()
        saved = indexfile.load(index_path(self.path), index)
        if not saved.batches or not _ends_at(fd, index, saved.position, saved.end):
            return 0
        self.index, self.end, self.saved = index, saved.end, saved.batches
        return saved.position

    def save_index(self, full: bool = False) -> None:
        """Write down the batches that are new, once they are many, or all when the segment is full. For the writer."""
        if len(self.index) - self.saved >= (1 if full else indexfile.BLOCK):
            self.saved = indexfile.save(index_path(self.path), self.index, self.position, self.end).batches

    def add(self, position: int, header: Header) -> None:
        """Take in a batch that was just written."""
        self.index.add(position, header)
        self.position, self.end, self.tail = position + header.length, header.end, Tail.CLEAN

    def end_at(self, position: int) -> int:
        """The offset behind the last batch that ends at or before this position."""
        if position >= self.position:
            return self.end
        number = bisect_right(self.index.positions, position) - 1
        return self.index.bases[number] if number >= 0 else self.base

    def place(self, number: int) -> BatchPosition:
        """The position of a batch; it ends where the next one starts."""
        index, after = self.index, number + 1
        position = index.positions[number]
        end = index.positions[after] if after < len(index) else self.position
        return BatchPosition(index.bases[number], position, end - position)

    def end_of(self, number: int) -> int:
        """The offset behind a batch."""
        return self.index.bases[number + 1] if number + 1 < len(self.index) else self.end

    def stamp_of(self, number: int) -> Stamp | None:
        """The stamp of a batch, with all that its header says of it."""
        place = self.place(number)
        return message_at(self._bytes(place), 0, self.path).header.stamp

    def load(self, number: int) -> pa.RecordBatch:
        """A batch, mapped; its checksum is verified the first time."""
        place = self.place(number)
        batch = read_batch(self._bytes(place), place, self.path, None if self.index.verified[number] else intact)
        self.index.verified[number] = True
        return batch

    def few(self, number: int, partition: int) -> list[Row] | None:
        """The rows of a small batch at the end; None if it is for Arrow, which also names what is wrong with it."""
        place = self.place(number)
        if not few_rows.is_on or place.length > _SMALL or place.position + place.length != self.position:
            return None
        message = self._tail(place)
        if not self.index.verified[number] and not intact(message):
            return None
        self.index.verified[number] = True
        return few_rows.decode_rows(message, partition)

    def _bytes(self, place: BatchPosition) -> pa.Buffer:
        end = place.position + place.length
        if self._map is None or self._map.size < end:
            if end == self.position and place.length <= _SMALL:
                return pa.py_buffer(self._tail(place))
            with pa.memory_map(self.path) as file:
                self._map = file.read_buffer()
            self._refuse_replaced(os.stat(self.path))
        return self._map.slice(place.position, place.length)

    def _refuse_replaced(self, found: os.stat_result) -> None:
        if found.st_ino != self._inode:
            raise Replaced(self.path)

    def _tail(self, place: BatchPosition) -> bytes:
        """A small batch at the end. A reader that keeps up would map the file anew for each of them."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._refuse_replaced(os.fstat(fd))
            return os.pread(fd, place.length, place.position)
        finally:
            os.close(fd)


def _ends_at(fd: int, index: BatchIndex, end_position: int, end: int) -> bool:
    """Whether the last batch of an index is in the segment, where the index says."""
    position = index.positions[-1]
    try:
        header = read_header(os.pread(fd, MAX_HEADER, position))
    except NotAHeader:
        return False
    return (header.base, header.last_us, position + header.length, header.end) == (
        index.bases[-1], index.last_us[-1], end_position, end,
    ) and end_position <= os.fstat(fd).st_size  # fmt: skip


def close_segment(segment: Segment, next_base: int) -> None:
    """Check that a segment, whose index is built, is complete, and note what stays known of it."""
    if segment.tail is not Tail.CLEAN:
        raise Damaged(f"{segment.path}: the batch at byte {segment.position}, offset {segment.end}, is damaged")
    if segment.end != next_base:
        raise Damaged(f"{segment.path} ends at offset {segment.end}, and the next segment starts at {next_base}")
    segment.newest_us = max(segment.index.last_us, default=None)


def cut_segment(path: str, position: int, keep: bool) -> str | None:
    """End a segment at this byte; returns where the rest is kept, if it is to be. For who holds the writer's lock.

    It becomes another file: other processes may know batches behind that byte, and must see that they are gone, also
    when the file has grown again. And what they have mapped stays as it is.
    """
    with suppress(FileNotFoundError):
        os.unlink(index_path(path))
    with pa.memory_map(path) as file:
        stored = memoryview(file.read_buffer())
    aside = free_name(f"{path}.cut-{position}") if keep else None
    if aside is not None:
        create_file(aside, stored[position:], aside + ".tmp")
    create_file(path, stored[:position], path + ".tmp", like=path)
    return aside
