"""One partition of a file log, as a reader sees it: its segments, an index in memory, mapped batches.

Nothing here writes. The index is built by walking headers, only as far as it is needed, and extended when
the files have grown; an incomplete end is simply not there yet.
"""

from __future__ import annotations

import os
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

import pyarrow as pa

from pxrs.errors import Damaged, Unavailable
from pxrs.logs.base import Piece, Stamp
from pxrs.logs.mark import Mark, read_mark
from pxrs.logs.records import first_at, refuse_offset
from pxrs.logs.segment import SCHEMA_MESSAGE, Header, check_schema, read_batch
from pxrs.logs.walk import Found, Tail, walk

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
        self.end = base
        self.position = 0
        self.tail = Tail.CLEAN
        self.batches: list[Found] = []
        self.stamps: dict[Stamp, int] = {}
        self._bases: list[int] = []
        self._map: pa.Buffer | None = None
        self._verified: set[int] = set()

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
            if self.position == 0:
                self.position = check_schema(os.pread(fd, 4 * len(SCHEMA_MESSAGE), 0), self.path)
            seen = walk(fd, self.path, self.position, self.end, limit)
        finally:
            os.close(fd)
        for found in seen.found:
            self.add(found)
        self.position, self.tail = seen.position, seen.tail

    def add(self, found: Found) -> None:
        self.batches.append(found)
        self._bases.append(found.header.base)
        self.end = found.header.end
        self.tail = Tail.CLEAN
        self.position = found.position + found.header.length
        if found.header.stamp is not None:
            self.stamps[found.header.stamp] = found.header.base

    def end_at(self, position: int) -> int:
        """The offset behind the last batch that ends at or before this position."""
        for found in reversed(self.batches):
            if found.position + found.header.length <= position:
                return found.header.end
        return self.base

    def number_of(self, offset: int) -> int:
        """Which of the batches holds this offset."""
        return bisect_right(self._bases, offset) - 1

    def load(self, number: int) -> pa.RecordBatch:
        """A batch, mapped; its checksum is verified the first time."""
        position, header = self.batches[number]
        if self._map is None or self._map.size < position + header.length:
            with pa.memory_map(self.path) as file:
                self._map = file.read_buffer()
        batch = read_batch(self._map, position, header, self.path, verify=number not in self._verified)
        self._verified.add(number)
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
        self._latest: tuple[Header, pa.RecordBatch] | None = None

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
            self._segments, self._durable, self._latest = [], 0, None

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
            _check_sealed(active)
            self._segments.append(Segment(self.directory, active.end))

    def _end_at(self, mark: Mark) -> int:
        for segment in reversed(self._segments):
            if segment.base <= mark.base:
                return segment.end_at(mark.position) if segment.base == mark.base else segment.end
        return 0

    def _list(self) -> None:
        bases = sorted(int(m[1]) for name in os.listdir(self.directory) if (m := _SEGMENT.fullmatch(name)))
        self._segments = [Segment(self.directory, base) for base in bases]

    def appended(self, active: Segment, found: Found) -> None:
        """Take in a batch that this process has just written, unless a reading thread was quicker."""
        with self.lock:
            if active.position == found.position:
                active.add(found)

    def _sealed(self, number: int) -> Segment:
        """A segment with its whole index; all but the last one never change again."""
        segment = self._segments[number]
        if number < len(self._segments) - 1 and segment.position == 0:
            segment.refresh()
            _check_sealed(segment, self._segments[number + 1].base)
        return segment

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
            header, batch = self._load(offset)
            return batch.slice(offset - header.base, max_rows)

    def _load(self, offset: int) -> tuple[Header, pa.RecordBatch]:
        latest = self._latest
        if latest is None or not latest[0].base <= offset < latest[0].end:
            bases = [segment.base for segment in self._segments]
            segment = self._sealed(bisect_right(bases, offset) - 1)
            number = segment.number_of(offset)
            latest = self._latest = segment.batches[number].header, segment.load(number)
        return latest

    @_explained
    def offset_at(self, timestamp_us: int) -> int:
        with self.lock:
            end = self.bounds()[1]
            for segment, number in self._batches():
                if segment.batches[number].header.last_us >= timestamp_us:
                    found = first_at(segment.load(number), timestamp_us)
                    if found is not None:
                        return min(found, end)
            return end

    def _batches(self) -> Iterator[tuple[Segment, int]]:
        for index in range(len(self._segments)):
            segment = self._sealed(index)
            for number in range(len(segment.batches)):
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
        segment = self._sealed(index)
        first = segment.batches[max(0, segment.number_of(start))]
        last = segment.batches[segment.number_of(end - 1)]
        length = last.position + last.header.length - first.position
        path = os.path.abspath(segment.path)
        return Piece("arrow", path, first.header.base, last.header.end, first.position, length)

    def find_stamp(self, stamp: Stamp) -> int | None:
        """The first offset of the batch that carries this stamp, in the active segment or the one before it."""
        with self.lock:
            for index in range(max(0, len(self._segments) - 2), len(self._segments)):
                found = self._sealed(index).stamps.get(stamp)
                if found is not None:
                    return found
            return None


def _check_sealed(segment: Segment, next_base: int | None = None) -> None:
    if segment.tail is not Tail.CLEAN:
        raise Damaged(f"{segment.path}: the batch at byte {segment.position}, offset {segment.end}, is damaged")
    if next_base is not None and segment.end != next_base:
        raise Damaged(f"{segment.path} ends at offset {segment.end}, and the next segment starts at {next_base}")
