"""The file log: a queue is a directory, a partition a directory in it, a segment a file of Arrow batches.

``docs/log-format.md`` shows the layout. Safe for several processes and threads: writers of a partition take
turns by a file lock that the kernel frees when its holder dies; readers take no lock and write nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pyarrow as pa

from pxrs.errors import Closed, Damaged, Unavailable, disk_text
from pxrs.io.fork import renew_in_child
from pxrs.io.watch.inotify import watch_directory
from pxrs.logs.base import Chunk, FewRows, Log, LogIdentity, OpenOptions, OwnRegistry, Piece, Row, Stamp
from pxrs.logs.batches import check_entries, check_partition
from pxrs.logs.file.durable_mark import has_marks
from pxrs.logs.file.queue_file import (
    directory_of,
    groups_seen,
    open_directory,
    partition_directory,
    read_registry,
    sibling_directory,
    write_registry,
)
from pxrs.logs.file.reader import PartitionFiles
from pxrs.logs.file.sealing import seal, sweep_at_first_use, trim
from pxrs.logs.file.writer import Entries, PartitionWriter
from pxrs.logs.formats import few_rows
from pxrs.logs.formats.segment import Room
from pxrs.settings import Settings

_SYNCS_AT_ONCE = 16


class FileLog(Log):
    """A queue in a directory.

    A retry is recognised while its batch is in the active segment or the one before it; each object and
    each process sees the same window, because stamps are stored with the batches.
    """

    directory: str

    def __init__(self, directory: str, identity: LogIdentity, settings: Settings) -> None:
        self.identity = identity
        self.directory = directory
        self._settings = settings
        self._closed = False
        self._start()
        renew_in_child(self, FileLog._start)

    def _start(self) -> None:
        """Everything that belongs to this process alone; a forked child starts with its own."""
        self._lock = threading.Lock()
        self._partitions: dict[int, tuple[PartitionFiles, PartitionWriter]] = {}
        self._pool: ThreadPoolExecutor | None = None

    @classmethod
    def open(cls, url: str, options: OpenOptions, settings: Settings, create: bool) -> FileLog:
        directory, name = directory_of(url)
        return cls(directory, open_directory(directory, name, options, create), settings)

    def _partition(self, number: int) -> tuple[PartitionFiles, PartitionWriter]:
        if self._closed:
            raise Closed(f"the log of queue {self.identity.name!r} is closed")
        found = self._partitions.get(number)
        if found is None:
            check_partition(self.identity.name, number, self.identity.partitions)
            with self._lock:
                found = self._partitions.setdefault(number, self._new_partition(number))
        return found

    def _new_partition(self, number: int) -> tuple[PartitionFiles, PartitionWriter]:
        files = PartitionFiles(self.identity.name, number, partition_directory(self.directory, number))
        sweep_at_first_use(files.directory, self._settings.delete_delay_ms / 1000)
        return files, PartitionWriter(files, self._settings)

    # --- writing

    def append(
        self, batches: Mapping[int, pa.RecordBatch], stamps: Mapping[int, Stamp] | None = None
    ) -> dict[int, int]:
        for batch in batches.values():
            check_entries(batch)
        return self._store(batches, stamps or {})

    def append_rows(self, rows: Mapping[int, FewRows], stamps: Mapping[int, Stamp] | None = None) -> dict[int, int]:
        if not few_rows.is_on or self._settings.compression != "none":  # compressing is left to Arrow
            return super().append_rows(rows, stamps)
        return self._store(rows, stamps or {})

    def _store(self, batches: Mapping[int, Entries], stamps: Mapping[int, Stamp]) -> dict[int, int]:
        writers = {number: self._partition(number)[1] for number in sorted(batches)}
        for number, stamp in stamps.items():
            if stamp.content and number not in batches:
                self._partition(number)[0].check_stamp(stamp)
        try:
            with ExitStack() as locks:
                for writer in writers.values():  # in sorted order: two processes never wait for each other
                    locks.enter_context(writer.locked())
                known = {number: writer.find(batches[number], stamps.get(number)) for number, writer in writers.items()}
                room = Room()
                firsts = {  # only now: what is refused in one is written to none
                    number: writer.write(batches[number], stamps.get(number), known[number], room)
                    for number, writer in writers.items()
                }
                self._sync(list(writers.values()))
                for writer in writers.values():
                    writer.publish()
        except FileNotFoundError as error:
            raise Damaged(f"a part of the log is gone: {error}; put it back from a copy of the queue") from error
        except OSError as error:
            raise Unavailable(f"{self.directory}: {disk_text(error, self.directory)}") from error
        return firsts

    def _sync(self, writers: Sequence[PartitionWriter]) -> None:
        if self._settings.durability == "flush":
            return
        if len(writers) == 1:
            writers[0].sync()
            return
        shares = [writers[number::_SYNCS_AT_ONCE] for number in range(min(_SYNCS_AT_ONCE, len(writers)))]
        try:
            tasks = [self._threads().submit(_sync_all, share) for share in shares]
            errors = [task.result() for task in tasks]
        except RuntimeError:  # the program ends, and Python gives no more threads
            errors = [_sync_all(writers)]
        for error in filter(None, errors):
            raise error

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_SYNCS_AT_ONCE, thread_name_prefix="pxrs-sync")
            return self._pool

    # --- reading

    def read(self, partition: int, offset: int, max_rows: int = 10_000) -> pa.RecordBatch | None:
        return self._partition(partition)[0].read(offset, max_rows)

    def read_rows(self, partition: int, offset: int, max_rows: int = 10_000) -> pa.RecordBatch | list[Row] | None:
        return self._partition(partition)[0].read_rows(offset, max_rows)

    def bounds(self, partition: int) -> tuple[int, int]:
        return self._partition(partition)[0].bounds()

    def offset_at(self, partition: int, timestamp_us: int) -> int:
        return self._partition(partition)[0].offset_at(timestamp_us)

    def pieces(self, partition: int, start: int, end: int) -> Sequence[Piece]:
        return self._partition(partition)[0].pieces(start, end)

    def chunks(self, partition: int) -> Sequence[Chunk]:
        return self._partition(partition)[0].chunks()

    def subscribe(self, partition: int, notify: Callable[[], None]) -> Callable[[], None]:
        # What is written to a segment is there for readers when the mark in the lock file has moved.
        return watch_directory(self._partition(partition)[0].directory, notify, "lock" if has_marks() else None)

    # --- what is old

    def seal(self, partition: int, min_age_ms: int = 0) -> Sequence[Chunk]:
        return seal(self._partition(partition)[0], self._settings.seal_compression, min_age_ms / 1000)

    def trim(self, partition: int, offset: int) -> int:
        return trim(self._partition(partition)[0], offset, self._settings.delete_delay_ms / 1000)

    # --- the rest

    def sibling(self, name: str, partitions: int, create: bool) -> FileLog | None:
        directory = sibling_directory(self.directory, name)
        if not create and not os.path.exists(os.path.join(directory, "queue.json")):
            return None
        options = OpenOptions(partitions, self.identity.hash, self.identity.reduce)
        identity = open_directory(directory, os.path.basename(directory), options, create)
        return FileLog(directory, identity, self._settings)

    def registry(self) -> OwnRegistry | None:
        return read_registry(self.directory)

    def set_registry(self, wanted: OwnRegistry, instead_of: str | None = "") -> OwnRegistry:
        return write_registry(self.directory, wanted, instead_of)

    def groups_seen(self) -> Sequence[str]:
        return groups_seen(self.directory, self.identity.id)

    def close(self) -> None:
        self._closed = True
        with self._lock:
            pool, self._pool = self._pool, None
            self._partitions.clear()
        if pool is not None:
            pool.shutdown()


def _sync_all(writers: Iterable[PartitionWriter]) -> Exception | None:
    """Sync each of them, also after one that failed; returns the first error."""
    first: Exception | None = None
    for writer in writers:
        try:
            writer.sync()
        except Exception as error:
            first = first or error
    return first
