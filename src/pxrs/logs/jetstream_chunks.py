"""What one partition of a stream stores, in chunks: batches that retention deletes together.

Retention always leaves the last two chunks of a partition. So that this leaves all batches among which a retry is
looked for, a chunk reaches as far as a writer looks back, unless it is full of bytes before that.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from pxrs.logs.base import Chunk
from pxrs.logs.jetstream_outlines import Outline, outlines
from pxrs.logs.jetstream_stream import Stored, Stream
from pxrs.logs.records import first_at


class ChunkSize(NamedTuple):
    """A chunk with so many bytes, or that reaches over so many messages of the stream, is full."""

    bytes: int
    messages: int


class Group(NamedTuple):
    """The batches of one chunk: sequences from ``first`` to ``last``, offsets from ``start`` to before ``end``."""

    first: int
    last: int
    start: int
    end: int
    bytes: int
    last_us: int

    def and_also(self, more: Outline) -> Group:
        newest = max(self.last_us, more.last_us)
        return Group(self.first, more.sequence, self.start, more.end, self.bytes + more.bytes, newest)


class PartitionChunks:
    """The chunks of a partition, remembered: only what is new is asked for. Used in the loop only."""

    def __init__(self, stream: Stream, number: int, size: ChunkSize) -> None:
        self._stream = stream
        self._number = number
        self._size = size
        self._lock = asyncio.Lock()
        self._groups: list[Group] = []
        self._reached = 0  # everything up to this sequence is in the groups

    async def chunks(self) -> list[Chunk]:
        path = f"{self._stream.name}/{self._stream.subject(self._number)}"
        return [
            Chunk("messages", f"{path}/{group.first}-{group.last}", group.start, group.end, group.bytes, group.last_us)
            for group in await self.groups()
        ]

    async def groups(self) -> list[Group]:
        async with self._lock:
            first, last = await asyncio.gather(self._stream.next(self._number, 1), self._stream.last(self._number))
            if first is None or last is None:
                return []
            self._forget_before(first)
            if self._reached < last.sequence:
                await outlines(self._stream, self._number, self._reached + 1, self._take)
                self._reached = max(self._reached, last.sequence)  # also if that is a mark
            return list(self._groups)

    def _forget_before(self, first: Stored) -> None:
        self._groups = [group for group in self._groups if group.last >= first.sequence]
        if self._groups and self._groups[0].first < first.sequence:  # deleted by somebody whose chunks are others
            self._groups, self._reached = [], 0  # count again
        self._reached = max(self._reached, first.sequence - 1)

    def _take(self, page: list[Outline]) -> bool:
        for found in page:
            if found.sequence <= self._reached:
                continue  # a replica that is behind starts before what it was asked for
            if self._groups and (found.is_later_part or not self._is_full(self._groups[-1], found.sequence)):
                self._groups[-1] = self._groups[-1].and_also(found)
            else:
                group = Group(found.sequence, found.sequence, found.base, found.end, found.bytes, found.last_us)
                self._groups.append(group)
            self._reached = found.sequence
        return True

    def _is_full(self, group: Group, sequence: int) -> bool:
        return group.bytes >= self._size.bytes or sequence - group.first >= self._size.messages

    async def deleted_up_to(self, offset: int) -> int | None:
        """The sequence after the chunks that end at or before this offset; None if there are none."""
        ended = [group.last + 1 for group in await self.groups() if group.end <= offset]
        return ended[-1] if ended else None

    # --- by time

    async def offset_at(self, timestamp_us: int) -> int | None:
        """The first message that is as new as that; None if there is none."""
        for group in await self.groups():
            if group.last_us >= timestamp_us:
                hit = await self._first_in(group, timestamp_us)
                if hit is not None:
                    return hit
        return None

    async def _first_in(self, group: Group, timestamp_us: int) -> int | None:
        sequence = group.first
        while (candidate := await self._candidate(sequence, group.last, timestamp_us)) is not None:
            stored = await self._stream.next(self._number, candidate)
            if stored is None:
                return None
            hit = first_at(self._stream.batch(self._number, stored), timestamp_us) if stored.rows else None
            if hit is not None:
                return hit
            sequence = stored.sequence + 1  # the one we meant has been deleted meanwhile
        return None

    async def _candidate(self, sequence: int, last: int, timestamp_us: int) -> int | None:
        """The first batch in this range of sequences that has a message as new as that."""
        fitting: list[int] = []

        def take(page: list[Outline]) -> bool:
            fitting.extend(found.sequence for found in page if found.last_us >= timestamp_us)
            return not fitting and not (page and page[-1].sequence >= last)

        await outlines(self._stream, self._number, sequence, take)
        return fitting[0] if fitting and fitting[0] <= last else None
