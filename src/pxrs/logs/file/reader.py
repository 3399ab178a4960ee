"""Reads one partition of a file log: its history of sealed files, its segments, mapped batches.

Nothing here writes. Segments may be sealed under a reader: a file that is gone is looked for in the history. The
index of a segment is built by walking headers, only as far as it is needed, and extended when the file has grown; an
incomplete end is simply not there yet. Of the segments only three keep their index: the active one, the one before it
(retries are looked for there), and the full one that was read last.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from pxrs.errors import Damaged, Unavailable
from pxrs.logs.base import Chunk, Piece, Row, Stamp
from pxrs.logs.batches import first_at, refuse_forgotten, refuse_offset, refuse_other_content, refuse_other_rows
from pxrs.logs.file.durable_mark import Mark, read_mark
from pxrs.logs.file.sealed_files import History, Listing
from pxrs.logs.file.segment.file import Replaced, Segment, close_segment, segment_path
from pxrs.logs.file.segment.scan import Tail
from pxrs.logs.formats.segment import Header

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def _guarded(
    method: Callable[Concatenate[PartitionFiles, _Given], _Result],
) -> Callable[Concatenate[PartitionFiles, _Given], _Result]:
    """Hold the lock. Look again for files that were sealed or trimmed; turn system errors into those of PXRS."""

    @wraps(method)
    def guarded(self: PartitionFiles, /, *args: _Given.args, **more: _Given.kwargs) -> _Result:
        try:
            while True:
                try:
                    with self.lock:
                        return method(self, *args, **more)
                except Replaced:
                    self.forget()
                except FileNotFoundError:
                    if not self.look_again():
                        raise
        except FileNotFoundError as error:
            self.forget()  # once it is put right, by whomever, nothing that was known before counts
            raise Damaged(f"a part of the log is gone: {error}; put it back from a copy of the queue") from error
        except OSError as error:
            raise Unavailable(f"the log cannot be read: {error}") from error

    return guarded


class PartitionFiles:
    """The segments of one partition. Its methods are safe to call from several threads."""

    def __init__(self, queue: str, number: int, directory: str) -> None:
        self.queue = queue
        self.number = number
        self.directory = directory
        self.lock = threading.RLock()
        self.history = History(directory)
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
        return self._segments[-1].end if self._segments else self.history.summary.sealed_end

    @property
    def segments(self) -> Sequence[Segment]:
        return self._segments

    def forget(self) -> None:
        """Build the index anew at the next use."""
        with self.lock:
            self._segments, self._durable, self._latest, self._in_use = [], 0, None, None

    def look_again(self) -> bool:
        """See what was sealed or trimmed, by whomever; says whether anything was."""
        with self.lock:
            if not self.history.refresh():
                return False
            sealed_end = self.history.summary.sealed_end
            kept = [segment for segment in self._segments if segment.base >= sealed_end]
            if kept and kept[0].base == sealed_end:
                self._segments = kept
            else:  # the directory is listed again, which names a gap
                self.forget()
            return True

    def refresh(self) -> None:
        """See what has been made durable, by whomever."""
        with self.lock:
            self.look_again()
            while not self._see_durable() and self.look_again():
                pass  # what was sealed in between was not the end of the log

    def _see_durable(self) -> bool:
        """Read the durable mark. Says whether this is surely the end: what a mark names is not sealed."""
        mark = read_mark(self.directory)
        self._extend(mark)
        if mark is None:  # the first writer of this boot leaves one before it writes, and that may have been meanwhile
            mark = read_mark(self.directory)
        if mark is None:
            self._durable = self.end
            return False
        is_end = self._ends_in(mark)
        self._durable = self._segments[-1].end_at(mark.position) if is_end else self._end_at(mark)
        return is_end

    def _ends_in(self, mark: Mark | None) -> bool:
        return mark is not None and bool(self._segments) and self._segments[-1].base == mark.base

    @_guarded
    def refresh_all(self, mark: Mark | None = None) -> None:
        """Take in everything in the files: for a writer, which holds the lock and has read the mark in it."""
        self.look_again()
        self._extend(None)
        while not self._ends_in(mark) and self.look_again():  # a segment that is gone was not the end of the log
            self._extend(None)

    def ends_at(self, mark: Mark | None) -> bool:
        """Whether nobody has written since this process knew all there is: for a writer, as ``refresh_all``."""
        with self.lock:
            active = self.active
            return (
                active is not None
                and mark == (active.base, active.position)
                and active.is_whole()
                and not os.access(segment_path(self.directory, active.end), os.F_OK)  # raises nothing, which is cheaper
            )

    def published(self) -> None:
        """Note that everything written is durable now."""
        with self.lock:
            self._durable = self.end

    def _extend(self, mark: Mark | None) -> None:
        try:
            self._take_in(mark)
        except Replaced:  # the process that cut it may have changed other segments as well
            self.forget()
            self._take_in(mark)

    def _take_in(self, mark: Mark | None) -> None:
        if not self._segments:
            self._list()
        while self._segments:
            active = self._segments[-1]
            if mark is None or active.base <= mark.base:
                active.refresh(mark.position if mark is not None and mark.base == active.base else None)
            if self._ends_in(mark):
                return  # readers go no further
            if active.end == active.base or not os.path.exists(segment_path(self.directory, active.end)):
                return
            close_segment(active, active.end)
            self._segments.append(Segment(self.directory, active.end))
            self._drop_indexes(self._segments[-3:-2])

    def _end_at(self, mark: Mark) -> int:
        number = self._number_of(mark.base)
        if number < 0:
            return self.history.summary.sealed_end
        segment = self._indexed(number)
        return segment.end_at(mark.position) if segment.base == mark.base else segment.end

    def _list(self) -> None:
        found = Listing(self.directory)
        while self.history.refresh():  # what was sealed while the directory was read may be missing in the list
            found = Listing(self.directory)
        found.refuse_unlisted(self.history.summary)
        self._segments = [Segment(self.directory, base) for base in found.segments(self.history.summary)]

    def appended(self, active: Segment, position: int, header: Header) -> None:
        """Take in a batch that this process has just written, unless a reading thread was quicker."""
        with self.lock:
            if active.position == position:
                active.add(position, header)

    def _number_of(self, offset: int) -> int:
        """The index of the segment that holds this offset."""
        return bisect_right(self._segments, offset, key=lambda segment: segment.base) - 1

    def _indexed(self, number: int) -> Segment:
        """A segment with its whole index; all but the last one never change again."""
        segment = self._segments[number]
        if number < len(self._segments) - 1 and segment.position == 0:
            try:
                segment.refresh()
                close_segment(segment, self._segments[number + 1].base)
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

    @_guarded
    def bounds(self) -> tuple[int, int]:
        self.refresh()
        active = self.active
        if active is not None and active.tail is Tail.BROKEN:
            raise Damaged(f"{active.path}: the last batch, at byte {active.position}, offset {active.end}, is damaged")
        return self._start(), self._durable

    def _start(self) -> int:
        summary = self.history.summary
        if summary.start < summary.sealed_end or not self._segments:
            return summary.start
        return self._segments[0].base

    @_guarded
    def read(self, offset: int, max_rows: int) -> pa.RecordBatch | None:
        return self._read(offset, max_rows) if self._find(offset) else None

    @_guarded
    def read_rows(self, offset: int, max_rows: int) -> pa.RecordBatch | list[Row] | None:
        """Read likewise; a few messages at the end are no batch but rows, which is quicker."""
        if not self._find(offset):
            return None
        active = self._segments[-1] if self._segments else None
        if active is not None and offset >= active.base:
            number = active.index.number_of(offset)
            if active.index.bases[number] == offset and active.end_of(number) - offset <= max_rows:
                few = active.few(number, self.number)
                if few is not None:
                    return few
        return self._read(offset, max_rows)

    def _read(self, offset: int, max_rows: int) -> pa.RecordBatch:
        if offset < self.history.summary.sealed_end:
            return self.history.read(offset, max_rows)
        base, batch = self._load(offset)
        whole = offset == base and batch.num_rows <= max_rows
        return batch if whole else batch.slice(offset - base, max_rows)

    def _find(self, offset: int) -> bool:
        """Whether there is a message at this offset; False at the end."""
        if offset == self._durable and self._at_end():
            return False
        if not self._start() <= offset < self._durable:
            start, end = self.bounds()
            if offset == end:
                return False
            if not start <= offset < end:
                refuse_offset(self.queue, self.number, offset, (start, end))
        return True

    def _at_end(self) -> bool:
        """Whether it is sure that nothing more is durable than was known. A reader that keeps up asks very often: it
        does not have to know what was sealed or trimmed behind it.
        """
        known = self._durable
        if not known or not self._segments or not self._see_durable():
            return False
        return self._durable == known and self._segments[-1].tail is not Tail.BROKEN

    def _load(self, offset: int) -> tuple[int, pa.RecordBatch]:
        latest = self._latest
        if latest is None or not 0 <= offset - latest[0] < latest[1].num_rows:
            segment = self._segments[-1]  # where a reader that keeps up is
            if offset < segment.base:
                segment = self._used(self._number_of(offset))
            number = segment.index.number_of(offset)
            latest = self._latest = segment.index.bases[number], segment.load(number)
        return latest

    @_guarded
    def offset_at(self, timestamp_us: int) -> int:
        end = self.bounds()[1]
        sealed = self.history.offset_at(timestamp_us)
        if sealed is not None:
            return sealed
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

    @_guarded
    def pieces(self, start: int, end: int) -> list[Piece]:
        bounds = self.bounds()
        for offset in (start, end):
            if not bounds[0] <= offset <= bounds[1]:
                refuse_offset(self.queue, self.number, offset, bounds)
        found = (self._piece(index, start, end) for index in range(len(self._segments)))
        return [*self.history.pieces(start, end), *(piece for piece in found if piece is not None)]

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

    @_guarded
    def chunks(self) -> list[Chunk]:
        self.bounds()
        return [*self.history.chunks(), *(self._chunk(index) for index in range(len(self._segments)))]

    def _chunk(self, index: int) -> Chunk:
        segment, is_last = self._used(index), index + 1 == len(self._segments)
        end = self._durable if is_last else self._segments[index + 1].base
        newest = max(segment.index.last_us, default=None) if is_last else segment.newest_us
        size = os.path.getsize(segment.path)
        return Chunk("arrow", os.path.abspath(segment.path), segment.base, end, size, newest)

    @_guarded
    def find_stamp(self, stamp: Stamp, rows: int) -> int | None:
        """The first offset of the batch that carries this stamp, in the active segment or the one before it.

        Raises Conflict if it may be further back than that, as far as the stamp says.
        """
        found = self._stamped(stamp)
        if found is None:
            known_from = self._segments[-2:][0].base if self._segments else self.end
            refuse_forgotten(self.queue, self.number, stamp, known_from)
            return None
        segment, number = found
        before = segment.end_of(number) - segment.index.bases[number]
        refuse_other_rows(self.queue, self.number, stamp, before, rows)
        return segment.index.bases[number]

    @_guarded
    def check_stamp(self, stamp: Stamp) -> None:
        """Refuse a stamp under which something else is stored here; for a partition that gets nothing itself."""
        self.refresh()
        self._stamped(stamp)

    def _stamped(self, stamp: Stamp) -> tuple[Segment, int] | None:
        """The batch with this stamp: its segment, and its number there."""
        for index in range(max(0, len(self._segments) - 2), len(self._segments)):
            segment = self._indexed(index)
            if (base := segment.index.find(stamp)) is None:
                continue
            number = segment.index.number_of(base)
            stored = segment.stamp_of(number) if stamp.content else None
            refuse_other_content(self.queue, self.number, stamp, stored.content if stored else "")
            return segment, number
        return None
