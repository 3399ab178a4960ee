"""Reading one partition of a stream: by sequence, in runs of many batches, from wherever the caller wants to go on.

No consumer object of the server decides where that is. The offset comes from the caller; which sequence it is at
is remembered from the batch before it, or searched for.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from concurrent.futures import CancelledError, Future
from typing import NamedTuple

import pyarrow as pa

from pxrs.errors import Damaged, PxrsError, WentBack
from pxrs.io.clock import SystemClock
from pxrs.logs.batches import refuse_offset
from pxrs.logs.jetstream.chunks import ChunkSize, PartitionChunks
from pxrs.logs.jetstream.names import from_metadata
from pxrs.logs.jetstream.stream import StoredMessage, Stream

RUN_MESSAGES = 256
"""The most batches in one run."""
_REMEMBERED = 256
_LOOK_SECONDS = 1.0
_CLOCK = SystemClock()


class _Ahead(NamedTuple):
    """A batch that was read ahead of the caller."""

    stored: StoredMessage
    batch: pa.RecordBatch


class Run(NamedTuple):
    """Batches in order, and whether more are stored after them."""

    batches: list[StoredMessage]
    more: bool


NOTHING = Run([], False)


class State(NamedTuple):
    """Numbers that change whenever anything in a stream changes."""

    last_seq: int
    first_seq: int
    messages: int
    num_deleted: int


class Sizes(NamedTuple):
    """Limits: how much is read at once, and how much is deleted together."""

    run_bytes: int
    chunk: ChunkSize


class PartitionReader:
    """Reads one partition, as this process knows it. ``read`` is for threads; all coroutines are for the loop."""

    def __init__(self, stream: Stream, queue: str, queue_id: str, number: int, sizes: Sizes) -> None:
        self._stream = stream
        self._queue = queue
        self._queue_id = queue_id
        self._number = number
        self._run_bytes = sizes.run_bytes
        self.stored = PartitionChunks(stream, number, sizes.chunk)
        self._lock = threading.Lock()
        self._ahead: deque[StoredMessage] = deque()
        self._coming: tuple[int, Future[Run]] | None = None  # the run after it, from this offset on
        self._current: _Ahead | None = None
        self._places: OrderedDict[int, int] = OrderedDict()  # offset → the sequence from which it is found
        self._looked = 0.0
        self._bounds: tuple[State, tuple[int, int]] | None = None  # as they were in this state of the stream
        self._seen = 0  # the newest message seen, by its sequence

    # --- reading, in the caller's thread

    def read(self, offset: int, max_rows: int, seconds: float) -> pa.RecordBatch | None:
        with self._lock:
            found = self._take(offset)
            if found is None:
                self._load(offset, seconds)
                found = self._take(offset)
            if found is None:
                return None
            return self._slice(found, offset, max_rows)

    def _load(self, offset: int, seconds: float) -> None:
        """Get the run from this offset on; if there is more, the next one comes while the caller works."""
        client = self._stream.client
        run = self._come(offset, seconds)
        if not run.batches:
            run = client.run(self.fetch(offset), seconds)
        self._ahead = deque(run.batches)
        if run.more:
            after = run.batches[-1].end
            self._coming = after, client.start(self.fetch(after))

    def _come(self, offset: int, seconds: float) -> Run:
        """The run that was asked for ahead, if it is the one that is wanted."""
        coming, self._coming = self._coming, None
        if coming is None:
            return NOTHING
        start, future = coming
        if start != offset:
            future.cancel()
            return NOTHING
        try:
            return future.result(seconds)
        except (PxrsError, TimeoutError, CancelledError):
            future.cancel()
            return NOTHING  # it is asked for again, and the answer to that counts

    def close(self) -> None:
        with self._lock:
            if self._coming is not None:
                self._coming[1].cancel()
            self._coming = None

    def _take(self, offset: int) -> _Ahead | None:
        """Take the batch with this offset, if it was read ahead. Batches before it are dropped."""
        while self._current is None or not self._current.stored.base <= offset < self._current.stored.end:
            if not self._ahead or self._ahead[0].base > offset:
                return None
            stored = self._ahead.popleft()
            if offset < stored.end:
                self._current = _Ahead(stored, self._stream.batch(self._number, stored))
        return self._current

    def _slice(self, found: _Ahead, offset: int, max_rows: int) -> pa.RecordBatch:
        rows = found.batch.slice(offset - found.stored.base, max_rows)
        if offset + rows.num_rows == found.stored.end:
            self._current = None  # who asks for it again asks the server, which may have deleted it by then
        return rows

    # --- fetching, in the loop

    async def fetch(self, offset: int) -> Run:
        """Batches in order, of which the first holds this offset; none at the end."""
        sequence = self._places.get(offset)
        if sequence is None:
            sequence = await self.find(offset)
        found, more = await self._stream.run(self._number, sequence, RUN_MESSAGES, self._run_bytes)
        if not found and self._stream.replicas > 1:  # a replica that is behind may have answered
            late = await self._stream.next(self._number, sequence)
            found = [] if late is None else [late]
        batches = await self._fitting(offset, found)
        self._note(batches)
        if not batches:
            await self._look()
        return Run(batches, more and bool(batches))

    async def _fitting(self, offset: int, found: list[StoredMessage]) -> list[StoredMessage]:
        """The batches from this offset on. Where one is missing the list ends, or it is an error."""
        fitting: list[StoredMessage] = []
        expected = offset
        for stored in found:
            if stored.base > expected and not fitting:
                await self._refuse_gap(offset, stored)
            if stored.base > expected:
                break
            if stored.end > expected:
                fitting.append(stored)
                expected = stored.end
        return fitting

    async def _refuse_gap(self, offset: int, stored: StoredMessage) -> None:
        self._places.pop(offset, None)
        bounds = await self.bounds()
        if not bounds[0] <= offset < bounds[1]:
            refuse_offset(self._queue, self._number, offset, bounds)
        where = self._stream.place(self._number, stored.sequence)
        raise Damaged(f"{where}: offset {offset} is missing; this batch starts at {stored.base}")

    def _note(self, found: list[StoredMessage]) -> None:
        for stored in found:
            self._remember(stored.base, stored.sequence)
            self._remember(stored.end, stored.sequence + 1)
        if found:
            self.saw(found[-1].sequence)

    def _remember(self, offset: int, sequence: int) -> None:
        self._places[offset] = sequence
        self._places.move_to_end(offset)
        if len(self._places) > _REMEMBERED:
            self._places.popitem(last=False)

    def saw(self, sequence: int) -> None:
        """Note that a message has this sequence: the stream must never end before it."""
        self._seen = max(self._seen, sequence)

    async def _look(self) -> None:
        """Check now and then, at the end, that the stream is still the same one: else the reader would wait forever."""
        now = _CLOCK.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        await self._state()

    async def _state(self) -> State:
        """The state of the stream, which must be the one that was opened and must not have lost what was seen."""
        seen = self._seen  # it may grow until the answer is there
        info = await self._stream.info()
        where = f"{self._stream.client.address}: stream {self._stream.name!r}"
        if info is None:
            raise Damaged(f"{where} was deleted while it was in use")
        if from_metadata(self._stream.name, info["config"].get("metadata")).id != self._queue_id:
            raise Damaged(f"{where} was deleted and created anew while it was in use")
        state = State(*(int(info["state"].get(name, 0)) for name in State._fields))
        if state.last_seq < seen:
            raise WentBack(f"{where} ends at sequence {state.last_seq}; it has had {seen} before")
        return state

    # --- where things are

    async def bounds(self) -> tuple[int, int]:
        """Start and end. While nothing changes in the stream it costs one small question."""
        state = await self._state()
        if self._bounds is None or self._bounds[0] != state:
            self._bounds = state, await self._ask_bounds()
        return self._bounds[1]

    async def _ask_bounds(self) -> tuple[int, int]:
        first, last = await asyncio.gather(self._stream.next(self._number, 1), self._stream.last(self._number))
        if last is None:
            return 0, 0
        self.saw(last.sequence)
        return (0, last.end) if first is None else (first.base, max(first.end, last.end))

    async def find(self, offset: int) -> int:
        """Find the sequence of this offset; the next sequence if it is the end."""
        last = await self._stream.last(self._number)
        end = 0 if last is None else last.end
        if offset == end:
            self._remember(end, 1 if last is None else last.sequence + 1)
            return self._places[end]
        first = await self._stream.next(self._number, 1)
        if last is None or first is None or not first.base <= offset < end:
            refuse_offset(self._queue, self._number, offset, (first.base if first else 0, end))
        if last.base <= offset:
            return last.sequence
        return await self._search(offset, first, last)

    async def _search(self, offset: int, low: StoredMessage, high: StoredMessage) -> int:
        """Guess by proportion and halve in turn: few steps where batches are alike, never many."""
        top, top_base = high.sequence, high.base
        halve = False
        while not low.base <= offset < low.end:
            if low.end == offset:
                return low.sequence + 1
            share = 0.5 if halve else (offset - low.base) / max(1, top_base - low.base)
            guess = min(max(low.sequence + 1, low.sequence + int(share * (top - low.sequence))), top)
            found = await self._stream.next(self._number, guess)
            if found is None or (found.base > offset and guess == low.sequence + 1):
                return guess  # the message that should be here is gone: a read there finds out why
            if found.base > offset:
                top, top_base = guess - 1, found.base
            else:
                low = found
            halve = not halve
        return low.sequence

    async def offset_at(self, timestamp_us: int) -> int:
        found = await self.stored.offset_at(timestamp_us)
        return (await self.bounds())[1] if found is None else found
