"""Logs that are broken on purpose: how they share, wake, keep and delete. ``broken_logs`` has the table."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pxrs.errors import BadName, Expired, Mismatch
from pxrs.logs.base import Chunk, Piece, Stamp
from pxrs.logs.batches import check_entries, refuse_offset, times, with_offsets
from pxrs.logs.memory import MemoryLog
from tests.logs.broken.messages import Batches, Stamps

# ---- several who use it ---------------------------------------------------------------------------------------------


class AcknowledgesFirst(MemoryLog):
    """Acknowledges a batch and stores it with the next one, or when its own reader asks."""

    _waiting: tuple[Batches, Stamps] = ({}, None)

    def append(self, batches: Batches, stamps: Stamps = None) -> dict[int, int]:
        ends = {number: self.bounds(number)[1] for number in batches}
        self._waiting = (batches, stamps)
        return ends

    def bounds(self, partition: int) -> tuple[int, int]:
        self._store()
        return super().bounds(partition)

    def read(self, partition: int, offset: int, max_rows: int = 10_000) -> pa.RecordBatch | None:
        self._store()
        return super().read(partition, offset, max_rows)

    def _store(self) -> None:
        (batches, stamps), self._waiting = self._waiting, ({}, None)
        super().append(batches, stamps)


class _StoresItself(MemoryLog):
    """Stores one batch in steps of its own; whatever else there is goes the sound way."""

    def append(self, batches: Batches, stamps: Stamps = None) -> dict[int, int]:
        known = any(stamp in self._partition(number).stamps for number, stamp in (stamps or {}).items())
        if len(batches) != 1 or known or not all(batch.num_rows for batch in batches.values()):
            return super().append(batches, stamps)
        [(number, batch)] = batches.items()
        check_entries(batch)
        return {number: self.store(number, batch, (stamps or {}).get(number))}

    def store(self, number: int, batch: pa.RecordBatch, stamp: Stamp | None) -> int:
        raise NotImplementedError

    def wake(self, number: int) -> None:
        for notify in list(self._partition(number).subscribers.values()):
            with suppress(Exception):
                notify()


class LooksThenWrites(_StoresItself):
    """Reads the end and writes there in two steps: two writers get the same offsets."""

    def store(self, number: int, batch: pa.RecordBatch, stamp: Stamp | None) -> int:
        found = self._partition(number)
        first = found.end
        time.sleep(0.0002)  # the window in which another thread reads the same end
        with self._content.lock:
            found.batches.append(with_offsets(batch, first))
            found.bases.append(first)
            found.end = first + batch.num_rows
            if stamp:
                found.stamps[stamp] = first
        self.wake(number)
        return first


class HalfBatches(_StoresItself):
    """Shows the first half of a batch before the second is stored."""

    def store(self, number: int, batch: pa.RecordBatch, stamp: Stamp | None) -> int:
        found, half = self._partition(number), (batch.num_rows + 1) // 2
        with self._content.lock:
            first = found.append(batch.slice(0, half), stamp)
        time.sleep(0.001)  # long enough for a reader to come by
        with self._content.lock:
            found.append(batch.slice(half), None)
        self.wake(number)
        return first


class WakesBeforeStoring(_StoresItself):
    """Tells its subscribers first and stores then: who looks at once finds nothing, and is not told again."""

    def store(self, number: int, batch: pa.RecordBatch, stamp: Stamp | None) -> int:
        self.wake(number)
        time.sleep(0.002)  # long enough for a subscriber to look
        with self._content.lock:
            return self._partition(number).append(batch, stamp)


class WakesItsOwnOnly(MemoryLog):
    """Tells those who subscribed through the object that appends."""

    def subscribe(self, partition: int, notify: Callable[[], None]) -> Callable[[], None]:
        self._partition(partition)
        own, token = self.__dict__.setdefault("_own", {}), object()
        own[token] = (partition, notify)
        return lambda: own.pop(token, None)

    def append(self, batches: Batches, stamps: Stamps = None) -> dict[int, int]:
        given = super().append(batches, stamps)
        for partition, notify in list(self.__dict__.get("_own", {}).values()):
            if partition in batches:
                self.tell(notify)
        return given

    def tell(self, notify: Callable[[], None]) -> None:
        with suppress(Exception):
            notify()


class FailsWithItsSubscriber(WakesItsOwnOnly):
    """Lets the error of a subscriber reach who appends."""

    def tell(self, notify: Callable[[], None]) -> None:
        notify()


class NeverCancels(MemoryLog):
    """Goes on to tell who has cancelled."""

    def subscribe(self, partition: int, notify: Callable[[], None]) -> Callable[[], None]:
        super().subscribe(partition, notify)
        return lambda: None


# ---- chunks, trims, seals, pieces -----------------------------------------------------------------------------------


class ChunksWithoutTheLast(MemoryLog):
    """Does not tell of the chunk that still grows."""

    def chunks(self, partition: int) -> Sequence[Chunk]:
        return super().chunks(partition)[:-1]


class ChunksWithoutSize(MemoryLog):
    """Says that its chunks take no room."""

    def chunks(self, partition: int) -> Sequence[Chunk]:
        return [chunk._replace(bytes=0) for chunk in super().chunks(partition)]


class ChunksWithTheLastTime(MemoryLog):
    """Takes the time of the last message of a chunk for its newest."""

    def chunks(self, partition: int) -> Sequence[Chunk]:
        last = [int(times(batch)[-1]) for batch in self._partition(partition).batches]
        return [chunk._replace(last_us=us) for chunk, us in zip(super().chunks(partition), last, strict=True)]


class TrimsTooMuch(MemoryLog):
    """Deletes the chunk that the offset stands in, too."""

    def trim(self, partition: int, offset: int) -> int:
        inside = [chunk.end for chunk in self.chunks(partition) if chunk.start < offset < chunk.end]
        return super().trim(partition, *inside or [offset])


class EndGoesBackToZero(MemoryLog):
    """Starts again at offset 0 when everything was trimmed."""

    def trim(self, partition: int, offset: int) -> int:
        start = super().trim(partition, offset)
        found = self._partition(partition)
        if found.batches:
            return start
        found.start = found.end = 0
        return 0


class GapAfterATrim(MemoryLog):
    """Leaves out an offset at the first append after a trim."""

    _trimmed = False

    def trim(self, partition: int, offset: int) -> int:
        self._trimmed = super().trim(partition, offset) > 0
        return super().trim(partition, offset)

    def append(self, batches: Batches, stamps: Stamps = None) -> dict[int, int]:
        for number in batches:
            self._partition(number).end += self._trimmed
        self._trimmed = False
        return super().append(batches, stamps)


class TrimsBeyondTheEnd(MemoryLog):
    """Takes an offset beyond the end for the end."""

    def trim(self, partition: int, offset: int) -> int:
        return super().trim(partition, min(offset, self.bounds(partition)[1]))


class TrimsEveryPartition(MemoryLog):
    """Trims all partitions to the offset of one."""

    def trim(self, partition: int, offset: int) -> int:
        for number in set(range(self.identity.partitions)) - {partition}:
            super().trim(number, min(offset, self.bounds(number)[1]))
        return super().trim(partition, offset)


class AnswersWithWhatWasAsked(MemoryLog):
    """Says that it starts where it was told to start, even further back."""

    def trim(self, partition: int, offset: int) -> int:
        super().trim(partition, offset)
        return offset


class ForgetsTrims(MemoryLog):
    """Keeps the start in the object that trimmed, and not in the log."""

    def _start(self, partition: int) -> int:
        return int(self.__dict__.setdefault("_starts", {}).get(partition, 0))

    def bounds(self, partition: int) -> tuple[int, int]:
        return self._start(partition), super().bounds(partition)[1]

    def chunks(self, partition: int) -> Sequence[Chunk]:
        return [chunk for chunk in super().chunks(partition) if chunk.start >= self._start(partition)]

    def trim(self, partition: int, offset: int) -> int:
        if offset > self.bounds(partition)[1]:
            refuse_offset(self.identity.name, partition, offset, self.bounds(partition))
        ends = [chunk.end for chunk in self.chunks(partition) if chunk.end <= offset]
        self.__dict__.setdefault("_starts", {})[partition] = max([self._start(partition), *ends])
        return self._start(partition)

    def read(self, partition: int, offset: int, max_rows: int = 10_000) -> pa.RecordBatch | None:
        if offset < self._start(partition):
            refuse_offset(self.identity.name, partition, offset, self.bounds(partition))
        return super().read(partition, offset, max_rows)

    def offset_at(self, partition: int, timestamp_us: int) -> int:
        return max(self._start(partition), super().offset_at(partition, timestamp_us))


class ExpiredWithoutTheGap(MemoryLog):
    """Says that something is gone, but not what."""

    def read(self, partition: int, offset: int, max_rows: int = 10_000) -> pa.RecordBatch | None:
        try:
            return super().read(partition, offset, max_rows)
        except Expired as error:
            raise Expired("these messages are no longer stored") from error


class SealTurnsRound(MemoryLog):
    """Writes the messages of what it seals in another order."""

    def seal(self, partition: int, min_age_ms: int = 0) -> Sequence[Chunk]:
        found = self._partition(partition)
        for number, batch in enumerate(found.batches[:1]):
            turned = batch.take(pa.array(range(batch.num_rows - 1, -1, -1), pa.int64()))
            found.batches[number] = with_offsets(turned.drop_columns(["offset"]), found.bases[number])
        return ()


class SealForgetsStamps(MemoryLog):
    """Does not find the stamps of what was stored before a seal."""

    def seal(self, partition: int, min_age_ms: int = 0) -> Sequence[Chunk]:
        self._partition(partition).stamps.clear()
        return ()


class SealTellsEverything(MemoryLog):
    """Answers a seal with all chunks that there are, whether it made them now or before."""

    def seal(self, partition: int, min_age_ms: int = 0) -> Sequence[Chunk]:
        return self.chunks(partition)


class PiecesThatAreNotThere(MemoryLog):
    """Names a file that nobody has written."""

    def pieces(self, partition: int, start: int, end: int) -> Sequence[Piece]:
        self._partition(partition)
        return [Piece("arrow", "nowhere.arrow", start, end, 0, 1)]


# ---- names and the end ----------------------------------------------------------------------------------------------


class OneForAllSiblings(MemoryLog):
    """Has one sibling under all names."""

    def sibling(self, name: str, partitions: int, create: bool) -> MemoryLog | None:
        super().sibling(name, partitions, create=False)
        return super().sibling("shared", partitions, create)


class AnySiblingName(MemoryLog):
    """Takes every name of a sibling, as one that makes a path of it would."""

    def sibling(self, name: str, partitions: int, create: bool) -> MemoryLog | None:
        try:
            return super().sibling(name, partitions, create)
        except BadName:
            return super().sibling("odd", partitions, create)


class AnyCountOfASibling(MemoryLog):
    """Opens a sibling with another number of partitions than it was created with."""

    def sibling(self, name: str, partitions: int, create: bool) -> MemoryLog | None:
        try:
            return super().sibling(name, partitions, create)
        except Mismatch:
            return super().sibling(name, self._content.siblings[name].identity.partitions, create)


class ANewIdEachTime(MemoryLog):
    """Makes up an id when it is opened, instead of recording one."""

    def __init__(self, content: Any) -> None:
        super().__init__(content)
        self.identity = replace(self.identity, id=secrets.token_hex(8))


class WorksWhenClosed(MemoryLog):
    """Goes on after it was closed."""

    def close(self) -> None:
        pass
