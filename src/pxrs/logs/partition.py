"""One partition of a file log, as a reader sees it: its segments, an index in memory, mapped batches.

Nothing here writes. The index is built by walking headers, only as far as it is needed, and extended when
the files have grown; an incomplete end is simply not there yet. Of the segments only three keep their index:
the active one, the one before it (retries are looked for there), and the full one that was read last.
"""

from __future__ import annotations

import os
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

import pyarrow as pa

from pxrs.errors import Damaged, Unavailable
from pxrs.logs.base import Piece, Stamp
from pxrs.logs.index import BatchIndex
from pxrs.logs.mark import Mark, read_mark
from pxrs.logs.records import first_at, refuse_offset
from pxrs.logs.segment import SCHEMA_MESSAGE, Header, Place, check_schema, read_batch
from pxrs.logs.walk import Tail, walk

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

_SEGMENT = re.compile(r"(\d{20})\.arrow")


def segment_path(directory: str, base: int) -> str:
    return os.path.join(directory, f"{base:020d}.arrow")


class Segment:
    """One file of batches and what is known of it so far."""

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
        try:
            seen = walk(fd, self.path, (start, self.end), self.index.add, limit)
        except BaseException:  # what was not seen to its end is not known: the next look must fail as well
            self.index.cut(known)
            raise
        self.position, self.end, self.tail = seen

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


def _explained(method: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Say in the words of ``pxrs.errors`` what the operating system refuses."""

    @wraps(method)
    def explained(*args: _Given.args, **more: _Given.kwargs) -> _Result:
        try:
            return method(*args, **more)
        except FileNotFoundError as error:
            raise Damaged(f"a part of the log is gone: {error}") from error
        except OSError as error:
            raise Unavailable(f"the log cannot be read: {error}") from error

    return explained


class PartitionFiles:
    """The segments of one partition. Its methods are safe to call from several threads."""

    def __init__(self, queue: str, number: int, directory: str) -> None:
        self.queue = queue
        self.number = number
        self.directory = directory
        self.lock = threading.RLock()
        self._segments: list[Segment] = []
        self._durable = 0
        self._latest: tuple[int, pa.RecordBatch] | None = None
        self._in_use: Segment | None = None

    @property
    def active(self) -> Segment | None:
        return self._segments[-1] if self._segments else None

    @property
    def end(self) -> int:
        """The next offset to write; readers go only as far as what is durable."""
        return self._segments[-1].end if self._segments else 0

    def forget(self) -> None:
        """Build the index anew at the next use."""
        with self.lock:
            self._segments, self._durable, self._latest, self._in_use = [], 0, None, None

    def refresh(self) -> None:
        """See what has been made durable, by whomever."""
        with self.lock:
            mark = read_mark(self.directory)
            self._extend(mark)
            self._durable = self.end if mark is None else self._end_at(mark)

    def refresh_all(self) -> None:
        """See everything that stands in the files: for a writer, which holds the lock."""
        with self.lock:
            self._extend(None)

    def published(self) -> None:
        """All that is written is durable now."""
        with self.lock:
            self._durable = self.end

    def _extend(self, mark: Mark | None) -> None:
        if not self._segments:
            self._list()
        while self._segments:
            active = self._segments[-1]
            if mark is None or active.base <= mark.base:
                active.refresh(mark.position if mark is not None and mark.base == active.base else None)
            if active.end == active.base or not os.path.exists(segment_path(self.directory, active.end)):
                return
            _seal(active, active.end)
            self._segments.append(Segment(self.directory, active.end))
            self._drop_indexes(self._segments[-3:-2])

    def _end_at(self, mark: Mark) -> int:
        number = self._number_of(mark.base)
        if number < 0:
            return 0
        segment = self._indexed(number)
        return segment.end_at(mark.position) if segment.base == mark.base else segment.end

    def _list(self) -> None:
        bases = sorted(int(m[1]) for name in os.listdir(self.directory) if (m := _SEGMENT.fullmatch(name)))
        self._segments = [Segment(self.directory, base) for base in bases]

    def appended(self, active: Segment, position: int, header: Header) -> None:
        """Take in a batch that this process has just written, unless a reading thread was quicker."""
        with self.lock:
            if active.position == position:
                active.add(position, header)

    def _number_of(self, offset: int) -> int:
        """Which of the segments holds this offset."""
        return bisect_right(self._segments, offset, key=lambda segment: segment.base) - 1

    def _indexed(self, number: int) -> Segment:
        """A segment with its whole index; all but the last one never change again."""
        segment = self._segments[number]
        if number < len(self._segments) - 1 and segment.position == 0:
            try:
                segment.refresh()
                _seal(segment, self._segments[number + 1].base)
            except Damaged:  # half an index would pass for a whole one at the next use
                segment.drop_index()
                raise
        return segment

    def _used(self, number: int) -> Segment:
        """A segment to read from, with its index; the one that was read from before gives its own away."""
        segment = self._indexed(number)
        if number < len(self._segments) - 1 and segment is not self._in_use:
            before, self._in_use = self._in_use, segment
            self._drop_indexes([] if before is None else [before])
        return segment

    def _drop_indexes(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            if segment is not self._in_use and segment not in self._segments[-2:]:
                segment.drop_index()

    @_explained
    def bounds(self) -> tuple[int, int]:
        with self.lock:
            self.refresh()
            self._refuse_broken()
            return self._start(), self._durable

    def _start(self) -> int:
        return self._segments[0].base if self._segments else 0

    def _refuse_broken(self) -> None:
        active = self.active
        if active is not None and active.tail is Tail.BROKEN:
            raise Damaged(f"{active.path}: the last batch, at byte {active.position}, offset {active.end}, is damaged")

    @_explained
    def read(self, offset: int, max_rows: int) -> pa.RecordBatch | None:
        with self.lock:
            if not self._start() <= offset < self._durable:
                start, end = self.bounds()
                if offset == end:
                    return None
                if not start <= offset < end:
                    refuse_offset(self.queue, self.number, offset, (start, end))
            base, batch = self._load(offset)
            return batch.slice(offset - base, max_rows)

    def _load(self, offset: int) -> tuple[int, pa.RecordBatch]:
        latest = self._latest
        if latest is None or not 0 <= offset - latest[0] < latest[1].num_rows:
            segment = self._used(self._number_of(offset))
            number = segment.index.number_of(offset)
            latest = self._latest = segment.index.bases[number], segment.load(number)
        return latest

    @_explained
    def offset_at(self, timestamp_us: int) -> int:
        with self.lock:
            end = self.bounds()[1]
            for segment, number in self._batches_at(timestamp_us):
                found = first_at(segment.load(number), timestamp_us)
                if found is not None:
                    return min(found, end)
            return end

    def _batches_at(self, timestamp_us: int) -> Iterator[tuple[Segment, int]]:
        """The batches that hold a message of this time or a later one."""
        for at, known in enumerate(self._segments):
            if known.newest_us is not None and known.newest_us < timestamp_us:
                continue
            segment = self._used(at)
            for number, last_us in enumerate(segment.index.last_us):
                if last_us >= timestamp_us:
                    yield segment, number

    @_explained
    def pieces(self, start: int, end: int) -> list[Piece]:
        with self.lock:
            bounds = self.bounds()
            for offset in (start, end):
                if not bounds[0] <= offset <= bounds[1]:
                    refuse_offset(self.queue, self.number, offset, bounds)
            found = (self._piece(index, start, end) for index in range(len(self._segments)))
            return [piece for piece in found if piece is not None]

    def _piece(self, index: int, start: int, end: int) -> Piece | None:
        limit = self._segments[index + 1].base if index + 1 < len(self._segments) else self.end
        if max(start, self._segments[index].base) >= min(end, limit):
            return None
        segment = self._used(index)
        number = segment.index.number_of(end - 1)
        first, last = segment.place(max(0, segment.index.number_of(start))), segment.place(number)
        length = last.position + last.length - first.position
        path = os.path.abspath(segment.path)
        return Piece("arrow", path, first.base, segment.end_of(number), first.position, length)

    def find_stamp(self, stamp: Stamp) -> int | None:
        """The first offset of the batch that carries this stamp, in the active segment or the one before it."""
        with self.lock:
            for index in range(max(0, len(self._segments) - 2), len(self._segments)):
                found = self._indexed(index).index.find(stamp)
                if found is not None:
                    return found
            return None


def _seal(segment: Segment, next_base: int) -> None:
    """Check that a segment, whose index is built, is complete, and note what stays known of it."""
    if segment.tail is not Tail.CLEAN:
        raise Damaged(f"{segment.path}: the batch at byte {segment.position}, offset {segment.end}, is damaged")
    if segment.end != next_base:
        raise Damaged(f"{segment.path} ends at offset {segment.end}, and the next segment starts at {next_base}")
    segment.newest_us = max(segment.index.last_us, default=None)
