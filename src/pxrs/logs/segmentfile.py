"""One segment file that is not sealed, and what is known of it so far."""

from __future__ import annotations

import os
from bisect import bisect_right

import pyarrow as pa

from pxrs.errors import Damaged
from pxrs.logs import indexfile
from pxrs.logs.index import BatchIndex
from pxrs.logs.segment import (
    MAX_HEADER,
    SCHEMA_MESSAGE,
    Header,
    NotAHeader,
    Place,
    check_schema,
    read_batch,
    read_header,
)
from pxrs.logs.walk import Tail, walk


def segment_path(directory: str, base: int) -> str:
    return os.path.join(directory, f"{base:020d}.arrow")


def index_path(segment: str) -> str:
    """Where the index of a segment stands."""
    return segment.removesuffix(".arrow") + ".index"


class Segment:
    """One file of batches and what is known of it so far."""

    def __init__(self, directory: str, base: int) -> None:
        self.path = segment_path(directory, base)
        self.base = base
        self.newest_us: int | None = None  # known once it is full and was walked
        self.saved = 0
        self.drop_index()

    def drop_index(self) -> None:
        """Know no batch, as at first; only the newest time stays, which spares a search by time most walks."""
        self.index = BatchIndex()
        self.end = self.base
        self.position = 0
        self.tail = Tail.CLEAN
        self._map: pa.Buffer | None = None

    def refresh(self, limit: int | None = None) -> None:
        """Take in what was appended since the last look, up to ``limit``."""
        size = os.stat(self.path).st_size
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
            self._walk(fd, limit)
        finally:
            os.close(fd)

    def _walk(self, fd: int, limit: int | None) -> None:
        known, start = len(self.index), self.position
        if start == 0:
            start = check_schema(os.pread(fd, 4 * len(SCHEMA_MESSAGE), 0), self.path)
            start = self._load_index(fd) or start
        try:
            seen = walk(fd, self.path, (start, self.end), self.index.add, limit)
        except BaseException:  # what was not seen to its end is not known: the next look must fail as well
            self.index.cut(known)
            raise
        self.position, self.end, self.tail = seen

    def _load_index(self, fd: int) -> int:
        """Take in the index file, if its last batch is the one that stands in the segment; returns where that ends."""
        index = BatchIndex()
        saved = indexfile.load(index_path(self.path), index)
        if not saved.batches or not _ends_at(fd, index, saved):
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

    def place(self, number: int) -> Place:
        """Where a batch stands; it ends where the next one starts."""
        index, after = self.index, number + 1
        position = index.positions[number]
        end = index.positions[after] if after < len(index) else self.position
        return Place(index.bases[number], position, end - position)

    def end_of(self, number: int) -> int:
        """The offset behind a batch."""
        return self.index.bases[number + 1] if number + 1 < len(self.index) else self.end

    def load(self, number: int) -> pa.RecordBatch:
        """A batch, mapped; its checksum is verified the first time."""
        place = self.place(number)
        if self._map is None or self._map.size < place.position + place.length:
            with pa.memory_map(self.path) as file:
                self._map = file.read_buffer()
        batch = read_batch(self._map, place, self.path, verify=not self.index.verified[number])
        self.index.verified[number] = True
        return batch


def _ends_at(fd: int, index: BatchIndex, saved: indexfile.Saved) -> bool:
    """Whether the last batch of an index stands in the segment as the index says."""
    position = index.positions[-1]
    try:
        header = read_header(os.pread(fd, MAX_HEADER, position))
    except NotAHeader:
        return False
    return (header.base, header.last_us, position + header.length, header.end) == (
        index.bases[-1], index.last_us[-1], saved.position, saved.end,
    ) and saved.position <= os.fstat(fd).st_size  # fmt: skip


def close_segment(segment: Segment, next_base: int) -> None:
    """Check that a segment, whose index is built, is complete, and note what stays known of it."""
    if segment.tail is not Tail.CLEAN:
        raise Damaged(f"{segment.path}: the batch at byte {segment.position}, offset {segment.end}, is damaged")
    if segment.end != next_base:
        raise Damaged(f"{segment.path} ends at offset {segment.end}, and the next segment starts at {next_base}")
    segment.newest_us = max(segment.index.last_us, default=None)
