"""Appending to one partition: one writer at a time, whole batches or nothing, poisoned by a failed sync."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from pxrs.errors import Damaged, Unavailable, disk_text
from pxrs.io.clock import SystemClock
from pxrs.io.durable import create_file, sync_path, write_all
from pxrs.io.locks import close_held, open_held, wait_for_lock
from pxrs.logs.base import FewRows, Stamp
from pxrs.logs.batches import with_offsets
from pxrs.logs.file.durable_mark import Mark, is_marked, mark_in, refuse_shorter, write_mark
from pxrs.logs.file.reader import PartitionFiles
from pxrs.logs.file.sealed_files import NEW_SEGMENT
from pxrs.logs.file.segment.file import Segment, cut_segment, segment_path
from pxrs.logs.file.segment.scan import Tail
from pxrs.logs.formats.few_rows import encode_rows
from pxrs.logs.formats.segment import SCHEMA_MESSAGE, Room, encode
from pxrs.settings import Settings

logger = logging.getLogger(__name__)

_CLOCK = SystemClock()

Entries: TypeAlias = pa.RecordBatch | FewRows
"""The rows or batch to append to one partition."""


def _rows(batch: Entries) -> int:
    return len(batch.values) if isinstance(batch, FewRows) else batch.num_rows


class Cut(NamedTuple):
    """Bytes that were cut off a file because they were no whole batch; ``kept``: their file, if they might be one."""

    path: str
    size: int
    kept: str | None


class PartitionWriter:
    """Writes batches to the active segment. Descriptors are open only while the partition is locked."""

    def __init__(self, files: PartitionFiles, settings: Settings) -> None:
        self._files = files
        self._segment_bytes = settings.segment_bytes
        self._compression = settings.compression
        self._wait_ms = settings.send_timeout_ms
        self._unfinished = os.path.join(files.directory, NEW_SEGMENT)
        self._lock_path = os.path.join(files.directory, "lock")
        self._thread_lock = threading.Lock()  # a file lock does not hold threads of one process apart
        self._recovered = False
        self._own_mark: tuple[Mark, bytes] | None = None
        self._poison: str | None = None
        self.cuts: list[Cut] = []
        self._fd = -1
        self._lock_fd = -1
        self._written_from = -1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only writer: wait for the others, take in what they wrote, cut what a dead one left half done."""
        deadline = _CLOCK.monotonic() + self._wait_ms / 1000
        if not self._thread_lock.acquire(timeout=self._wait_ms / 1000):
            raise self._still_locked("another thread of this process")
        try:
            self._lock_file(deadline)
            self._take_over()
            yield
        finally:
            self._free()

    def _lock_file(self, deadline: float) -> None:
        if self._poison:
            raise Damaged(self._poison)
        self._lock_fd = open_held(self._lock_path, os.O_RDWR | os.O_CREAT)
        if not wait_for_lock(self._lock_fd, deadline):
            raise self._still_locked("another producer")

    def _free(self) -> None:
        lock, self._lock_fd = self._lock_fd, -1
        try:
            self._close_segment()
        finally:  # whatever the disk says to that, others must be able to write
            if lock >= 0:
                close_held(lock)  # frees the lock
            self._thread_lock.release()

    def _take_over(self) -> None:
        own = self._own_mark
        if own is not None and is_marked(self._lock_fd, own[1]) and self._files.ends_at(own[0]):
            return  # the last one to write was this writer
        mark = mark_in(self._lock_fd)
        try:
            self._files.refresh_all(mark)
            self._recover()
            self._vouch(mark)
        except BaseException:  # it may know batches that nobody has vouched for, and that another will take back
            self._files.forget()
            raise

    def _still_locked(self, holder: str) -> Unavailable:
        return Unavailable(
            f"queue {self._files.queue!r}, partition {self._files.number}: {holder} holds the lock in "
            f"{self._files.directory}, also after {self._wait_ms} ms (send_timeout_ms); nothing was stored"
        )

    def _close_segment(self) -> None:
        fd, self._fd, self._written_from = self._fd, -1, -1
        if fd >= 0:
            close_held(fd)

    # --- what readers may see

    def _vouch(self, mark: Mark | None) -> None:
        """Write a mark of this boot that says how far everything is durable, before the first byte that is not.

        What a writer left that was killed before its sync is made durable here, the name of a new segment as well.
        """
        written = self._written()
        if mark is not None:
            refuse_shorter(self._files.directory, mark, written)
        if mark != written:
            self._open_active()
            self.sync()
            if self._files.active is not None:
                sync_path(self._files.directory)
            self._close_segment()
            self.publish()

    def publish(self) -> None:
        """Let readers see what is written; called when it is durable."""
        mark = self._written()
        data = write_mark(self._lock_fd, mark)
        self._own_mark = None if data is None else (mark, data)
        self._files.published()
        self._save_index(full=False)

    def _save_index(self, full: bool) -> None:
        """Save the index. A failure is no error: batches that are not saved are found by a scan."""
        active = self._files.active
        if active is not None:
            with suppress(OSError):
                active.save_index(full)

    def _written(self) -> Mark:
        active = self._files.active
        return Mark(0, 0) if active is None else Mark(active.base, active.position)

    # --- what an earlier writer left behind

    def _recover(self) -> None:
        if not self._recovered:
            with suppress(FileNotFoundError):
                os.unlink(self._unfinished)
        active = self._files.active
        if active is None:
            return
        if active.tail is not Tail.CLEAN:
            self._cut(active, Mark(active.base, active.position), active.end, keep=active.tail is Tail.BROKEN)
        elif not self._recovered and len(active.index):
            self._check_last(active)
        self._recovered = True

    def _check_last(self, active: Segment) -> None:
        """Check the last batch: after a power loss it may have its length but not its content."""
        last = len(active.index) - 1
        try:
            active.load(last)
        except Damaged:
            place = active.place(last)
            self._cut(active, Mark(active.base, place.position), place.base, keep=True)

    def _cut(self, active: Segment, at: Mark, offset: int, keep: bool) -> None:
        """Cut the file back to its last good batch. What might have been acknowledged once is kept aside.

        What was acknowledged for sure is not cut: before this boot's mark nothing was left unfinished by a crash.
        """
        mark = mark_in(self._lock_fd)
        if mark is not None and mark > at:
            raise Damaged(
                f"{active.path}: the batch at byte {at.position}, offset {offset}, is damaged, and was acknowledged; "
                "pxrs log repair --cut-damaged would end the partition before it"
            )
        torn = os.path.getsize(active.path) - at.position
        self.cuts.append(Cut(active.path, torn, cut_segment(active.path, at.position, keep)))
        logger.warning("%s: cut %d bytes of an unfinished batch at byte %d", active.path, torn, at.position)
        self._files.forget()
        self._files.refresh_all()

    # --- appending

    def find(self, batch: Entries, stamp: Stamp | None) -> int | None:
        """Find the batch if it was stored before; Refused if another one has its stamp."""
        return self._files.find_stamp(stamp, _rows(batch)) if stamp else None

    def write(self, batch: Entries, stamp: Stamp | None, known: int | None, room: Room) -> int:
        """Append the batch, unless it is known; returns its first offset. Not durable before ``sync``."""
        if known is not None or not _rows(batch):
            self._open_active()  # the first try may have died before its sync: this one vouches for it
            return self._files.end if known is None else known
        active = self._segment_for_append()
        message: memoryview | bytes
        if isinstance(batch, FewRows):
            message, header = encode_rows(batch, active.end, stamp)
        else:
            message, header = encode(with_offsets(batch, active.end), stamp, self._compression, room)
        self._append(active, message)
        self._files.appended(active, self._written_from, header)
        return header.base

    def _open_active(self) -> None:
        active = self._files.active
        if active is not None and self._fd < 0:
            self._fd = open_held(active.path, os.O_WRONLY | os.O_APPEND)

    def _segment_for_append(self) -> Segment:
        active = self._files.active
        if active is None or (len(active.index) and active.position >= self._segment_bytes):
            active = self._roll(active)
        self._open_active()
        return active

    def _roll(self, active: Segment | None) -> Segment:
        directory, base = self._files.directory, self._files.end
        if os.path.lexists(segment_path(directory, base)):
            raise Damaged(f"{segment_path(directory, base)} exists already, and does not belong to the log before it")
        try:
            if active is not None:  # the last batch of a writer that was killed may not be on the disk yet
                self._open_active()
                self.sync()
                self._close_segment()
                self._save_index(full=True)
            create_file(segment_path(directory, base), SCHEMA_MESSAGE, self._unfinished)
        except OSError as error:
            with suppress(OSError):  # its name may never come to the disk
                os.unlink(segment_path(directory, base))
            raise Unavailable(f"{directory}: no new segment could be made: {disk_text(error, directory)}") from error
        self._files.refresh_all()
        assert self._files.active is not None
        return self._files.active

    def _append(self, active: Segment, message: memoryview | bytes) -> None:
        self._written_from = active.position
        try:
            write_all(self._fd, message, active.position + len(message))
        except OSError as error:
            self._undo(f"a batch could not be written: {error}")
            why = disk_text(error, active.path)
            raise Unavailable(f"{active.path}: a batch could not be written: {why}; nothing was stored") from error

    def _undo(self, why: str) -> None:
        """Take back what is not acknowledged; a writer that cannot even do that must never write again."""
        try:
            end = self._written_from if self._written_from >= 0 else self._marked()
            if end < os.fstat(self._fd).st_size:
                os.ftruncate(self._fd, end)
        except OSError as error:
            self._set_poison(f"{why}, nor taken back: {error}")

    def _marked(self) -> int:
        """The bytes of the active segment that are known to be durable. Bytes behind them were left by a writer that
        died, and a sync that has failed once must not be believed later: neither by this writer nor by another.
        """
        mark, active = mark_in(self._lock_fd), self._files.active
        if mark is None or active is None or mark.base > active.base:
            return sys.maxsize
        first = active.index.positions[0] if len(active.index) else active.position
        return max(first, mark.position) if mark.base == active.base else first

    def _set_poison(self, why: str) -> None:
        self._poison = (
            f"queue {self._files.queue!r}, partition {self._files.number}: {why}. This writer will not write "
            "again: look at the disk, then open the queue anew"
        )

    def sync(self) -> None:
        """Make what was written durable. A failure is final: the kernel may already have dropped the data."""
        if self._fd < 0:
            return
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self._set_poison(f"its data could not be made durable: {error}")
            self._undo("its data could not be made durable")
            self._files.forget()
            raise Damaged(str(self._poison)) from error
