"""Appending to one partition: one writer at a time, whole batches or nothing, poisoned by a failed sync."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa

from pxrs.clock import SystemClock
from pxrs.errors import Damaged, Unavailable
from pxrs.logs.base import Stamp
from pxrs.logs.durable import check_size, create_file, sync_directory, write_all
from pxrs.logs.locks import close_held, open_held, try_lock
from pxrs.logs.mark import Mark, mark_in, write_mark
from pxrs.logs.partition import PartitionFiles
from pxrs.logs.records import with_offsets
from pxrs.logs.segment import SCHEMA_MESSAGE, encode
from pxrs.logs.segmentfile import Segment, index_path, segment_path
from pxrs.logs.walk import Tail
from pxrs.settings import Settings

logger = logging.getLogger(__name__)

_CLOCK = SystemClock()
# Seconds between two looks at a lock that another holds. They grow slowly: the lock of a busy partition is free only
# for moments, and who looks seldom misses them; it takes half a second to come to the longest.
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.0005, 0.01, 1.02


class PartitionWriter:
    """Writes batches to the active segment. Descriptors are open only while the partition is locked."""

    def __init__(self, files: PartitionFiles, settings: Settings) -> None:
        self._files = files
        self._segment_bytes = settings.segment_bytes
        self._compression = settings.compression
        self._wait_ms = settings.send_timeout_ms
        self._unfinished = os.path.join(files.directory, "new-segment.tmp")
        self._thread_lock = threading.Lock()  # a file lock does not hold threads of one process apart
        self._recovered = False
        self._poison: str | None = None
        self._fd = -1
        self._lock_fd = -1
        self._written_from = -1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only writer: wait for the others, take in what they wrote, cut what a dead one left half done."""
        deadline = _CLOCK.monotonic() + self._wait_ms / 1000
        with self._alone_in_process():
            if self._poison:
                raise Damaged(self._poison)
            lock = open_held(os.path.join(self._files.directory, "lock"), os.O_RDWR | os.O_CREAT)
            try:
                self._wait_for(lock, deadline)
                self._lock_fd = lock
                self._files.refresh_all()
                self._recover()
                self._vouch()
                yield
            finally:
                self._close_segment()
                self._lock_fd = -1
                close_held(lock)  # frees the lock

    @contextmanager
    def _alone_in_process(self) -> Iterator[None]:
        if not self._thread_lock.acquire(timeout=self._wait_ms / 1000):
            raise self._still_locked("another thread of this process")
        try:
            yield
        finally:
            self._thread_lock.release()

    def _wait_for(self, lock: int, deadline: float) -> None:
        """Take the file lock. The kernel would wait for ever, also for a holder that is stopped and never goes on."""
        pause = _FIRST_PAUSE
        while not try_lock(lock):
            if _CLOCK.monotonic() >= deadline:
                raise self._still_locked("another producer")
            time.sleep(pause)
            pause = min(_GROWTH * pause, _LONGEST_PAUSE)

    def _still_locked(self, holder: str) -> Unavailable:
        return Unavailable(
            f"queue {self._files.queue!r}, partition {self._files.number}: {holder} holds the lock in "
            f"{self._files.directory}, also after {self._wait_ms} ms (send_timeout_ms); nothing was stored"
        )

    @property
    def file(self) -> int:
        """The descriptor of what was written and is not yet durable; -1 if there is none."""
        return self._fd

    def _close_segment(self) -> None:
        if self._fd >= 0:
            close_held(self._fd)
        self._fd = self._written_from = -1

    # --- what readers may see

    def _vouch(self) -> None:
        """Before the first byte that is not durable, a mark of this boot must say how far everything is.

        What a writer left that was killed before its sync is made durable here, the name of a new segment as well.
        """
        if mark_in(self._lock_fd) != self._written():
            self._open_active()
            self.sync()
            if self._files.active is not None:
                sync_directory(self._files.directory)
            self._close_segment()
            self.publish()

    def publish(self) -> None:
        """Let readers see what is written; called when it is durable."""
        write_mark(self._lock_fd, self._written())
        self._files.published()
        self._save_index(full=False)

    def _save_index(self, full: bool) -> None:
        """It can be done without: what cannot be saved is found by a walk."""
        if self._files.active is not None:
            with suppress(OSError):
                self._files.active.save_index(full)

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
            self._cut(active, active.position, keep=active.tail is Tail.BROKEN)
        elif not self._recovered and len(active.index):
            self._check_last(active)
        self._recovered = True

    def _check_last(self, active: Segment) -> None:
        """After a power loss the last batch may have its length but not its content."""
        last = len(active.index) - 1
        try:
            active.load(last)
        except Damaged:
            self._cut(active, active.place(last).position, keep=True)

    def _cut(self, active: Segment, position: int, keep: bool) -> None:
        """Cut the file back to its last good batch. What might have been acknowledged once is kept aside."""
        fd = os.open(active.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            torn = os.fstat(fd).st_size - position
            with suppress(FileNotFoundError):
                os.unlink(index_path(active.path))
            if keep:
                aside = f"{active.path}.cut-{position}"
                create_file(aside, os.pread(fd, torn, position), aside + ".tmp")
            os.ftruncate(fd, position)  # durable with the next batch; until then it would be cut again
        finally:
            os.close(fd)
        logger.warning("%s: cut %d bytes of an unfinished batch at byte %d", active.path, torn, position)
        self._files.forget()
        self._files.refresh_all()

    # --- appending

    def write(self, batch: pa.RecordBatch, stamp: Stamp | None) -> int:
        """Append the batch, unless its stamp is known; returns its first offset. Not durable before ``sync``."""
        known = self._files.find_stamp(stamp) if stamp else None
        if known is not None or not batch.num_rows:
            self._open_active()  # the first try may have died before its sync: this one vouches for it
            return self._files.end if known is None else known
        active = self._segment_for_append()
        message, header = encode(with_offsets(batch, active.end), stamp, self._compression)
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
            self._roll(active)
        self._open_active()
        active = self._files.active
        assert active is not None
        return active

    def _roll(self, active: Segment | None) -> None:
        directory, base = self._files.directory, self._files.end
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
            raise Unavailable(f"{directory}: no new segment could be made: {error}") from error
        self._files.refresh_all()

    def _append(self, active: Segment, message: memoryview) -> None:
        self._written_from = active.position
        try:
            write_all(self._fd, message)
            check_size(self._fd, active.position + len(message))
        except OSError as error:
            self._undo(f"a batch could not be written: {error}")
            raise Unavailable(f"{active.path}: a batch could not be written: {error}; nothing was stored") from error

    def _undo(self, why: str) -> None:
        """Take back what is not acknowledged; a writer that cannot even do that must never write again."""
        if self._written_from < 0:
            return
        try:
            os.ftruncate(self._fd, self._written_from)
        except OSError as error:
            self._set_poison(f"{why}, nor taken back: {error}")

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
