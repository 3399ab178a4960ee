"""The chunks of one partition of a stream: batches that retention deletes together.

Retention always leaves the last two chunks of a partition. So that this leaves all batches among which a retry is
looked for, a chunk reaches as far as a writer looks back, unless it is full of bytes before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from nats.aio.msg import Msg

from pxrs.errors import Unavailable
from pxrs.io.clock import SystemClock
from pxrs.io.nats.client import ApiError, status_of
from pxrs.logs.base import Chunk
from pxrs.logs.batches import first_at
from pxrs.logs.jetstream.names import message_id
from pxrs.logs.jetstream.stream import ABOUT, CONTENT, READY_SECONDS, StoredMessage, Stream


class ChunkSize(NamedTuple):
    """The size at which a chunk is full: this many bytes, or messages of the stream."""

    bytes: int
    messages: int


class ChunkRange(NamedTuple):
    """The batches of one chunk: sequences from ``first`` to ``last``, offsets from ``start`` to before ``end``."""

    first: int
    last: int
    start: int
    end: int
    bytes: int
    last_us: int

    def and_also(self, more: Outline) -> ChunkRange:
        newest = max(self.last_us, more.last_us)
        return ChunkRange(self.first, more.sequence, self.start, more.end, self.bytes + more.bytes, newest)


class PartitionChunks:
    """The chunks of a partition, remembered: only what is new is asked for. Used in the loop only."""

    def __init__(self, stream: Stream, number: int, size: ChunkSize) -> None:
        self._stream = stream
        self._number = number
        self._size = size
        self._lock = asyncio.Lock()
        self._groups: list[ChunkRange] = []
        self._reached = 0  # everything up to this sequence is in the groups

    async def chunks(self) -> list[Chunk]:
        path = f"{self._stream.name}/{self._stream.subject(self._number)}"
        return [
            Chunk("messages", f"{path}/{group.first}-{group.last}", group.start, group.end, group.bytes, group.last_us)
            for group in await self.groups()
        ]

    async def groups(self) -> list[ChunkRange]:
        async with self._lock:
            first, last = await asyncio.gather(self._stream.next(self._number, 1), self._stream.last(self._number))
            if first is None or last is None:
                return []
            self._forget_before(first)
            if self._reached < last.sequence:
                await outlines(self._stream, self._number, self._reached + 1, self._take)
                self._reached = max(self._reached, last.sequence)  # also if that is an end marker
            return list(self._groups)

    def _forget_before(self, first: StoredMessage) -> None:
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
                group = ChunkRange(found.sequence, found.sequence, found.base, found.end, found.bytes, found.last_us)
                self._groups.append(group)
            self._reached = found.sequence
        return True

    def _is_full(self, group: ChunkRange, sequence: int) -> bool:
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

    async def _first_in(self, group: ChunkRange, timestamp_us: int) -> int | None:
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


# ---- headers without messages ---------------------------------------------------------------------------------------
# This needs a consumer of the server's, for as long as it takes. Nothing depends on what it remembers.


PAGE = 2_000
_NO_MORE, _NOBODY_ANSWERS = ("404", "408"), "503"
_PAUSE_SECONDS = 0.02
_CLOCK = SystemClock()


class Outline(NamedTuple):
    """A batch, or a part of one, without its content."""

    sequence: int
    base: int
    rows: int
    bytes: int
    last_us: int
    id: str | None
    content: str = ""

    @property
    def end(self) -> int:
        return self.base + self.rows

    @property
    def is_later_part(self) -> bool:
        """Whether it is a later part of the batch whose first part is before it."""
        return self.id is not None and self.id.count(":") == 3


Take = Callable[[list[Outline]], bool]
"""Gets what is stored, some at a time and in order; says whether it wants more."""


class _Looker(NamedTuple):
    """A consumer of the server's, and the sequence it starts at."""

    name: str
    start: int


async def outlines(stream: Stream, partition: int, start: int | datetime, take: Take) -> None:
    """Hand over all batches of a partition from a sequence, or from the time they were stored at, on."""
    looker = await _begin(stream, partition, start)
    reached = looker.start if isinstance(start, datetime) else max(start, looker.start)
    try:
        while page := await _page(stream, looker.name):
            reached = page[-1].metadata.sequence.stream + 1
            if not take([found for found in map(_outline, page) if found is not None]):
                return
            if page[-1].metadata.num_pending == 0:
                break
    finally:
        await _end(stream, looker.name)
    if stream.replicas > 1:  # it may have run where the stream is behind
        await _late(stream, partition, reached, take)


async def _late(stream: Stream, partition: int, sequence: int, take: Take) -> None:
    """The messages that the leader has from a sequence on."""
    while (stored := await stream.next(partition, sequence)) is not None:
        sequence = stored.sequence + 1
        if stored.last_us is None:
            continue  # an end marker
        name, content = (message_id(stored.stamp, partition, 0), stored.stamp.content) if stored.stamp else (None, "")
        found = Outline(stored.sequence, stored.base, stored.rows, len(stored.data), stored.last_us, name, content)
        if not take([found]):
            return


async def _begin(stream: Stream, partition: int, start: int | datetime) -> _Looker:
    config = {
        **_from(start),
        "filter_subject": stream.subject(partition),
        "ack_policy": "none",
        "headers_only": True,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": 30_000_000_000,
    }
    try:
        body = {"stream_name": stream.name, "config": config}
        made = await stream.client.api(f"CONSUMER.CREATE.{stream.name}", body)
    except ApiError as error:
        raise stream.refused(error) from None
    return _Looker(str(made["name"]), int(made["delivered"]["stream_seq"]) + 1)


def _from(start: int | datetime) -> dict[str, Any]:
    if isinstance(start, datetime):
        return {"deliver_policy": "by_start_time", "opt_start_time": start.isoformat()}
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, start)}


async def _page(stream: Stream, consumer: str) -> list[Msg]:
    """The next messages; none at the end. Anything else that ends a list, as the loss of a server, is an error."""
    deadline = _CLOCK.monotonic() + READY_SECONDS
    while True:
        answers = await _ask_page(stream, consumer)
        status = status_of(answers[-1])
        if status is None or status in _NO_MORE:
            return [answer for answer in answers if status_of(answer) is None]
        if status != _NOBODY_ANSWERS or _CLOCK.monotonic() >= deadline:
            where = f"{stream.client.address}: stream {stream.name!r}"
            raise Unavailable(f"{where}: the list of what it holds broke off (status {status})")
        await asyncio.sleep(_PAUSE_SECONDS)  # in a cluster a new consumer is not known everywhere at once


async def _ask_page(stream: Stream, consumer: str) -> list[Msg]:
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream.name}.{consumer}"
    body = {"batch": PAGE, "no_wait": True}
    return await stream.client.collect(lambda inbox: stream.client.ask(subject, body, inbox), PAGE)


async def _end(stream: Stream, consumer: str) -> None:
    try:
        await stream.client.api(f"CONSUMER.DELETE.{stream.name}.{consumer}")
    except (ApiError, Unavailable):
        return  # it ends by itself when nobody asks it for a while


def _outline(message: Msg) -> Outline | None:
    headers = message.headers or {}
    words = headers.get(ABOUT, "").split()
    if len(words) != 3:
        return None  # an end marker holds no messages
    base, rows, last_us = map(int, words)
    size = int(headers.get("Nats-Msg-Size", "0"))
    name, content = headers.get("Nats-Msg-Id"), headers.get(CONTENT, "")
    return Outline(message.metadata.sequence.stream, base, rows, size, last_us, name, content)
