"""Appending to one partition of a stream: dense offsets by compare-and-set, each stamped batch once.

A writer publishes on the condition that the last message of the subject is the one it knows. If it is not, it reads
what came since and tries again: so several writers in several processes share a partition, with no lock.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from pxrs.errors import Refused, Unavailable, WentBack
from pxrs.io.clock import SystemClock
from pxrs.io.nats.client import NobodyAnswers
from pxrs.logs.base import Stamp
from pxrs.logs.batches import refuse_forgotten, refuse_other_content, with_offsets
from pxrs.logs.formats.segment import encode
from pxrs.logs.jetstream.chunks import Outline, outlines
from pxrs.logs.jetstream.names import message_id
from pxrs.logs.jetstream.stream import ABOUT, CONTENT, Duplicate, StoredMessage, Stream, WrongLast, end_marker

LOOK_BACK = 64
"""A batch is recognised if it is among this many last messages of the stream, for each of its partitions."""
LOOK_BACK_AT_LEAST = 1_000
"""The least number of these messages."""
_REMEMBERED = 1_024
_CATCH_UP_MESSAGES, _CATCH_UP_BYTES = 64, 8_388_608
_PAUSE_SECONDS, _LONGER_PAUSE_SECONDS = 0.002, 0.2
_CLOCK = SystemClock()


def look_back(partitions: int) -> int:
    """The number of messages, back from the end of a partition, in which a retry is looked for."""
    return max(LOOK_BACK_AT_LEAST, LOOK_BACK * partitions)


class SubjectEnd(NamedTuple):
    """The last message of a subject, and the offset after it."""

    sequence: int
    end: int


class MessagePart(NamedTuple):
    """Some rows of a batch that fit into one message."""

    start: int
    rows: int


def parts_of(batch: pa.RecordBatch, limit: int, start: int = 0) -> list[MessagePart]:
    """The batch in pieces of at most ``limit`` bytes: the same ones each time, so that a retry is recognised."""
    rows = batch.num_rows
    if pa.ipc.get_record_batch_size(batch) + 8 * rows + 64 <= limit:
        return [MessagePart(start, rows)]
    if rows == 1:
        raise Refused(
            f"one message of {batch.nbytes} bytes is larger than the log takes ({limit}): "
            "that is max_payload in the server's configuration, and at most 1 MiB"
        )
    half = rows // 2
    return parts_of(batch.slice(0, half), limit, start) + parts_of(batch.slice(half), limit, start + half)


class Known(NamedTuple):
    """A batch that the writer knows by its stamp: its offset, and its content, if it says so."""

    base: int
    content: str


class _Unheard(Exception):
    """No server took the message: it certainly was not stored."""


class PartitionWriter:
    """Appends to one partition. Used in the loop only."""

    def __init__(self, stream: Stream, queue: str, number: int, back: int, compression: str) -> None:
        self._stream = stream
        self._queue = queue
        self._number = number
        self._compression = compression
        self._back = back
        self._lock = asyncio.Lock()
        self._tail: SubjectEnd | None = None
        self._current = False  # whether the tail is believed to be the last message
        self._stamps: OrderedDict[str, Known] = OrderedDict()
        self._known_from = 0  # the stamps of all batches from this offset on are known

    async def append(
        self, batch: pa.RecordBatch, parts: Sequence[MessagePart], stamp: Stamp | None, seconds: float
    ) -> tuple[int, SubjectEnd]:
        """The first offset of the batch, and the end of the partition as it is known then."""
        deadline = _CLOCK.monotonic() + seconds
        name = message_id(stamp, self._number, 0) if stamp else ""
        async with self._lock:
            while True:
                tail = await self._current_tail()
                if stamp and (known := self._known(stamp, name)) is not None:
                    return known, tail
                try:
                    return await self._publish(tail, batch, parts, stamp)
                except WrongLast:
                    pause, why = _PAUSE_SECONDS, "others write to it all the time; nothing was stored"
                except _Unheard:  # the stream is new, and its leader not known to every node
                    pause, why = _LONGER_PAUSE_SECONDS, "no node takes messages for it; nothing was stored"
                except Duplicate:
                    found = await self._find_in_window(name)
                    if stamp and found is not None:
                        refuse_other_content(self._queue, self._number, stamp, found.content)
                        return found.base, tail
                    pause = _LONGER_PAUSE_SECONDS
                    why = f"the server knows batch {name!r}, and does not have it: it was deleted, or is on its way"
                if _CLOCK.monotonic() >= deadline:
                    raise Unavailable(f"{self._where()}: {why}")
                await asyncio.sleep(random.random() * pause)

    async def check(self, stamp: Stamp) -> None:
        """Refuse a stamp under which something else is known to be stored."""
        async with self._lock:
            await self._current_tail()
            if known := self._stamps.get(message_id(stamp, self._number, 0)):
                refuse_other_content(self._queue, self._number, stamp, known.content)

    def _known(self, stamp: Stamp, name: str) -> int | None:
        """The offset of a batch that is stored already. Conflict if it may be further back than this writer knows."""
        known = self._stamps.get(name)
        if known is None:
            refuse_forgotten(self._queue, self._number, stamp, self._known_from)
            return None
        refuse_other_content(self._queue, self._number, stamp, known.content)
        return known.base

    def _where(self) -> str:
        return f"{self._stream.client.address}: stream {self._stream.name}, {self._stream.subject(self._number)}"

    async def _publish(
        self, tail: SubjectEnd, batch: pa.RecordBatch, parts: Sequence[MessagePart], stamp: Stamp | None
    ) -> tuple[int, SubjectEnd]:
        messages, headers = self._encode(tail, batch, parts, stamp)
        self._current = False  # until the answer is there
        try:
            ack = await self._stream.publish(self._number, messages, headers)
        except NobodyAnswers:
            raise _Unheard from None
        self._current = True
        if ack.duplicate:
            return await self._base_of(ack.sequence, batch.num_rows, stamp), tail
        self._tail = SubjectEnd(ack.sequence, tail.end + batch.num_rows)
        if stamp:
            self._remember(message_id(stamp, self._number, 0), Known(tail.end, stamp.content))
        return tail.end, self._tail

    def _encode(
        self, tail: SubjectEnd, batch: pa.RecordBatch, parts: Sequence[MessagePart], stamp: Stamp | None
    ) -> tuple[list[bytes], list[dict[str, str]]]:
        messages, headers = [], []
        for number, part in enumerate(parts):
            rows = with_offsets(batch.slice(part.start, part.rows), tail.end + part.start)
            message, header = encode(rows, stamp, self._compression)
            messages.append(bytes(message))
            headers.append({ABOUT: f"{header.base} {header.rows} {header.last_us}"})
            if stamp:
                headers[-1]["Nats-Msg-Id"] = message_id(stamp, self._number, number)
                if stamp.content:
                    headers[-1][CONTENT] = stamp.content
        headers[0]["Nats-Expected-Last-Subject-Sequence"] = str(tail.sequence)
        return messages, headers

    async def _base_of(self, sequence: int, rows: int, stamp: Stamp | None) -> int:
        """The first offset of a batch that the server had already."""
        found = await self._stream.next(self._number, sequence)
        if found is not None and found.sequence == sequence:
            if stamp and found.stamp:
                refuse_other_content(self._queue, self._number, stamp, found.stamp.content)
            return found.base
        # It was stored and has been deleted since, and its offset with it. This is the last that it can have had.
        return max(0, (0 if found is None else found.base) - rows)

    async def _find_in_window(self, name: str) -> Outline | None:
        """Find a batch that the server recognises, and that is further back than what was read."""
        found: list[Outline] = []

        def take(page: list[Outline]) -> bool:
            found.extend(outline for outline in page if outline.id == name)
            return not found

        await outlines(self._stream, self._number, await self._stream.window_start(), take)
        return found[0] if found else None

    # --- the end of the partition

    async def _current_tail(self) -> SubjectEnd:
        if self._tail is None:
            self._tail = await self._first_look()
        elif not self._current:
            self._tail = await self._catch_up(self._tail)
        self._current = True
        return self._tail

    async def _first_look(self) -> SubjectEnd:
        """Find the end, and the batches before it: one of them may be what is sent again now."""
        last = await self._stream.last(self._number)
        if last is None:
            return SubjectEnd(0, 0)
        await self._look_back(last, last.sequence - self._back, None)
        return SubjectEnd(last.sequence, last.end)

    async def _look_back(self, last: StoredMessage, sequence: int, reached: SubjectEnd | None) -> None:
        """Take in the messages from a sequence on; ``reached`` is how far everything was taken in before."""
        found: list[Outline] = []

        def take(page: list[Outline]) -> bool:
            found.extend(page)
            return True

        await outlines(self._stream, self._number, sequence, take)
        first = next((outline.base for outline in found if not outline.is_later_part), last.base)
        # The messages in between are not known, nor what was deleted.
        if reached is None or sequence > reached.sequence + 1 or first > reached.end:
            self._known_from = first
        self._remember_all(found)
        self._remember_stamps([last])

    async def _catch_up(self, tail: SubjectEnd) -> SubjectEnd:
        """Take in what others, or a try of our own without an answer, have appended since."""
        found, more = await self._stream.run(self._number, tail.sequence + 1, _CATCH_UP_MESSAGES, _CATCH_UP_BYTES)
        self._remember_stamps(found)
        if found and found[0].base > tail.end:  # what was appended in between is deleted, and was never seen here
            self._known_from = found[0].base
        reached = SubjectEnd(found[-1].sequence, found[-1].end) if found else tail
        if not more and found and self._stream.replicas == 1:
            return reached
        last = await self._stream.last(self._number)
        if (last.sequence if last else 0) < reached.sequence:
            raise WentBack(f"{self._where()} ends before sequence {reached.sequence}, which it has had before")
        if last is None:
            return reached  # still empty: a first try that got no answer stored nothing
        if last.sequence > reached.sequence:
            sequence = max(reached.sequence + 1, last.sequence - self._back)
            await self._look_back(last, sequence, reached)
        return SubjectEnd(last.sequence, last.end)

    def _remember_all(self, found: Iterable[Outline]) -> None:
        for outline in found:
            if outline.id:
                self._remember(outline.id, Known(outline.base, outline.content))

    def _remember_stamps(self, found: Iterable[StoredMessage]) -> None:
        for stored in found:
            if stored.stamp:
                self._remember(message_id(stored.stamp, self._number, 0), Known(stored.base, stored.stamp.content))

    def _remember(self, name: str, known: Known) -> None:
        self._stamps[name] = min(known, self._stamps.get(name, known))  # of several parts the first one counts
        if len(self._stamps) > _REMEMBERED:
            _, forgotten = self._stamps.popitem(last=False)
            self._known_from = max(self._known_from, forgotten.base + 1)

    # --- trimming

    async def publish_end(self, end: int) -> int | None:
        """Publish a marker that holds this end of the partition; its sequence, or None if the partition has grown."""
        async with self._lock:
            tail = await self._current_tail()
            if tail.end != end:
                return None
            self._current = False
            expected = {"Nats-Expected-Last-Subject-Sequence": str(tail.sequence)}
            try:
                ack = await self._stream.publish(self._number, [end_marker(end)], [expected])
            except WrongLast:
                return None
            self._tail, self._current = SubjectEnd(ack.sequence, end), True
            return ack.sequence
