"""The memory log: the contract of a log without a disk, for tests, demos and single processes."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from pxrs.drivers import split_url
from pxrs.errors import Closed, NotFound, Refused, masked_url
from pxrs.io.signals import call_each
from pxrs.logs.base import DEAD_LETTERS, Chunk, Log, LogIdentity, OpenOptions, OwnRegistry, Piece, Stamp, agree
from pxrs.logs.batches import (
    check_entries,
    check_partition,
    first_at,
    refuse_offset,
    refuse_other_content,
    times,
    with_offsets,
)
from pxrs.model import check_name
from pxrs.settings import Settings


class _PartitionLog:
    """The batches of one partition, the stamps they came with, and who wants to know of new ones."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.bases: list[int] = []
        self.start = 0
        self.end = 0
        self.stamps: dict[Stamp, int] = {}
        self.contents: dict[Stamp, str] = {}
        self.subscribers: dict[object, Callable[[], None]] = {}

    def append(self, batch: pa.RecordBatch, stamp: Stamp | None) -> int:
        known = self.stamps.get(stamp) if stamp else None
        if known is not None or not batch.num_rows:
            return self.end if known is None else known
        first = self.end
        self.batches.append(with_offsets(batch, first))
        self.bases.append(first)
        self.end = first + batch.num_rows
        if stamp:
            self.stamps[stamp], self.contents[stamp] = first, stamp.content
        return first

    def trim(self, offset: int) -> None:
        while self.batches and self.bases[0] + self.batches[0].num_rows <= offset:
            self.start = self.bases.pop(0) + self.batches.pop(0).num_rows


class _Content:
    """The content that all openers of one name share."""

    def __init__(self, identity: LogIdentity) -> None:
        self.identity = identity
        self.lock = threading.Lock()
        self.partitions = [_PartitionLog() for _ in range(identity.partitions)]
        self.siblings: dict[str, _Content] = {}
        self.registry = OwnRegistry()


_named: dict[str, _Content] = {}
_named_lock = threading.Lock()


class MemoryLog(Log):
    """``memory:`` is a new log each time; ``memory:NAME`` is shared by name and lives as long as the process.

    Every stamp is remembered: a retry is recognised however late it comes.
    """

    outlives_process = False

    def __init__(self, content: _Content) -> None:
        self.identity = content.identity
        self._content = content
        self._closed = False

    @classmethod
    def open(cls, url: str, options: OpenOptions, settings: Settings, create: bool) -> MemoryLog:  # noqa: ARG003 - the driver's signature
        _, place = split_url(url)
        name = check_name("queue", place) if place else ""
        with _named_lock:
            content = _named.get(name)
            if content is None and not create:
                raise NotFound(f"there is no log {masked_url(url)!r} in this process: open it with create=True")
            if content is None:
                content = _Content(agree(name or "memory", options, None))
                if name:
                    _named[name] = content
        agree(name, options, content.identity)
        return cls(content)

    def _partition(self, number: int) -> _PartitionLog:
        if self._closed:
            raise Closed(f"the log of queue {self.identity.name!r} is closed")
        check_partition(self.identity.name, number, self.identity.partitions)
        return self._content.partitions[number]

    def append(
        self, batches: Mapping[int, pa.RecordBatch], stamps: Mapping[int, Stamp] | None = None
    ) -> dict[int, int]:
        partitions = {number: self._partition(number) for number in sorted(batches)}
        for batch in batches.values():
            check_entries(batch)
        with self._content.lock:
            for number, stamp in (stamps or {}).items():  # what is refused in one is stored in none
                stored = self._partition(number).contents.get(stamp, "")
                refuse_other_content(self.identity.name, number, stamp, stored)
            given = {
                number: partition.append(batches[number], (stamps or {}).get(number))
                for number, partition in partitions.items()
            }
            waiting = [notify for partition in partitions.values() for notify in partition.subscribers.values()]
        call_each(waiting)
        return given

    def read(self, partition: int, offset: int, max_rows: int = 10_000) -> pa.RecordBatch | None:
        found = self._partition(partition)
        with self._content.lock:
            if offset == found.end:
                return None
            if not found.start <= offset < found.end:
                refuse_offset(self.identity.name, partition, offset, (found.start, found.end))
            number = bisect_right(found.bases, offset) - 1
            return found.batches[number].slice(offset - found.bases[number], max_rows)

    def bounds(self, partition: int) -> tuple[int, int]:
        found = self._partition(partition)
        with self._content.lock:
            return found.start, found.end

    def offset_at(self, partition: int, timestamp_us: int) -> int:
        found = self._partition(partition)
        with self._content.lock:
            batches, end = list(found.batches), found.end
        hits = (first_at(batch, timestamp_us) for batch in batches)
        return next((hit for hit in hits if hit is not None), end)

    def pieces(self, partition: int, start: int, end: int) -> Sequence[Piece]:  # noqa: ARG002 - the port's signature
        self._partition(partition)
        raise Refused(f"queue {self.identity.name!r} lives in this process's memory: no other process can read it")

    def chunks(self, partition: int) -> Sequence[Chunk]:
        found = self._partition(partition)
        with self._content.lock:
            batches = list(zip(found.bases, found.batches, strict=True))
        return [
            Chunk("memory", "", base, base + batch.num_rows, batch.nbytes, int(times(batch).max()))
            for base, batch in batches
        ]

    def trim(self, partition: int, offset: int) -> int:
        found = self._partition(partition)
        with self._content.lock:
            if offset > found.end:
                refuse_offset(self.identity.name, partition, offset, (found.start, found.end))
            found.trim(offset)
            return found.start

    def subscribe(self, partition: int, notify: Callable[[], None]) -> Callable[[], None]:
        subscribers = self._partition(partition).subscribers
        token = object()
        with self._content.lock:
            subscribers[token] = notify

        def cancel() -> None:
            with self._content.lock:
                subscribers.pop(token, None)

        return cancel

    def sibling(self, name: str, partitions: int, create: bool) -> MemoryLog | None:
        parts = [check_name("sibling", part) for part in name.split("/")]
        with self._content.lock:
            found = self._content.siblings.get(name)
            if found is None and not create:
                return None
            options = OpenOptions(partitions, self.identity.hash, self.identity.reduce)
            if found is None:
                found = self._content.siblings[name] = _Content(agree(parts[-1], options, None))
        agree(name, options, found.identity)
        return MemoryLog(found)

    def registry(self) -> OwnRegistry:
        return self._content.registry

    def set_registry(self, wanted: OwnRegistry, instead_of: str | None = "") -> OwnRegistry:
        with self._content.lock:
            if instead_of in (None, self._content.registry.id):
                self._content.registry = wanted
            return self._content.registry

    def groups_seen(self) -> Sequence[str]:
        with self._content.lock:
            names = sorted(self._content.siblings)
        return [name.removeprefix(DEAD_LETTERS) for name in names if name.startswith(DEAD_LETTERS)]

    def close(self) -> None:
        self._closed = True
