"""The log over NATS JetStream: a queue is a stream, a partition is a subject, a batch is a message.

The stream's metadata hold the queue's identity. Offsets are dense as in any log of PXRS; the server's sequences only
say where they are. Readers go on from their own checkpoints, so no state of a consumer on the server matters.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from nats.aio.msg import Msg

from pxrs.errors import Closed, Mismatch, NotFound, PxrsError, Refused, Unavailable
from pxrs.io.fork import renew_in_child
from pxrs.io.nats.client import Client, patiently
from pxrs.io.signals import call_each
from pxrs.logs.base import Chunk, Log, LogIdentity, OpenOptions, OwnRegistry, Piece, Stamp, agree
from pxrs.logs.batches import check_entries, check_partition, refuse_offset
from pxrs.logs.jetstream.chunks import ChunkSize
from pxrs.logs.jetstream.names import (
    DEFAULT_WINDOW_MS,
    StreamUrl,
    growth_subject,
    stream_of,
    target_of,
    url_without_password,
)
from pxrs.logs.jetstream.reader import PartitionReader, Sizes
from pxrs.logs.jetstream.stream import OVERHEAD, Stream, groups_seen, read_registry, write_registry
from pxrs.logs.jetstream.writer import MessagePart, PartitionWriter, look_back, parts_of
from pxrs.model import check_name
from pxrs.settings import Settings

T = TypeVar("T")

_MESSAGE_BYTES = 1_048_576
_RUN_BYTES = 2_097_152
_RUN_BYTES_OF_ALL = 67_108_864
_APPEND_SECONDS = 15.0
_SECONDS = 30.0
_ROOM_BYTES = 1_152
"""The size of a message beside its content: an Arrow batch of one row, and the header of a retry."""
_PATIENCE_SECONDS = 10.0


class _StreamLocation(NamedTuple):
    """The stream of a log, and how it is used: the names of a queue and of what belongs to it lead to its stream."""

    target: StreamUrl
    names: tuple[str, ...]
    settings: Settings


class JetStreamLog(Log):
    """``nats://host:port/queue``.

    A retry is recognised by the server within its duplicate window, and without a limit of time while the batch
    is among the last messages of the stream (``jetstream_writer.LOOK_BACK``).
    """

    def __init__(self, place: _StreamLocation, stream: Stream, identity: LogIdentity) -> None:
        self.identity = identity
        self._place = place
        self._stream = stream
        self._client = stream.client
        self._closed = False
        self._start()
        renew_in_child(self, JetStreamLog._start)

    def _start(self) -> None:
        """Everything that belongs to this process alone; a forked child starts with its own."""
        self._lock = threading.Lock()
        self._readers: dict[int, PartitionReader] = {}
        self._writers: dict[int, PartitionWriter] = {}
        self._growth = AppendSubscription(self._stream)
        self._limit = 0

    @classmethod
    def open(cls, url: str, options: OpenOptions, settings: Settings, create: bool) -> JetStreamLog:
        target = target_of(url)
        found = cls._open(_StreamLocation(target, (target.queue,), settings), options, create)
        if found is None:
            name = target.queue
            raise NotFound(f"there is no stream for queue {name!r} at {target.address}: open it with create=True")
        return found

    @classmethod
    def _open(cls, place: _StreamLocation, options: OpenOptions, create: bool) -> JetStreamLog | None:
        stream = Stream(Client(place.target.address), stream_of(*place.names))
        try:
            identity = stream.client.run(_identity(stream, place, options, create), _SECONDS)
        except BaseException:
            stream.client.close()
            raise
        if identity is None:
            stream.client.close()
            return None
        return cls(place, stream, identity)

    def _check(self, partition: int) -> None:
        if self._closed:
            raise Closed(f"the log of queue {self.identity.name!r} is closed")
        check_partition(self.identity.name, partition, self.identity.partitions)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._client.run(work, _SECONDS)

    def _reader(self, number: int) -> PartitionReader:
        self._check(number)
        with self._lock:
            if number not in self._readers:
                self._readers[number] = PartitionReader(
                    self._stream, self.identity.name, self.identity.id, number, self._sizes()
                )
            return self._readers[number]

    def _sizes(self) -> Sizes:
        partitions = self.identity.partitions
        run_bytes = min(_RUN_BYTES, max(_MESSAGE_BYTES, _RUN_BYTES_OF_ALL // partitions))
        return Sizes(run_bytes, ChunkSize(self._place.settings.segment_bytes, look_back(partitions)))

    def _writer(self, number: int) -> PartitionWriter:
        with self._lock:
            if number not in self._writers:
                back, compression = look_back(self.identity.partitions), self._place.settings.compression
                name = self.identity.name
                self._writers[number] = PartitionWriter(self._stream, name, number, back, compression)
            return self._writers[number]

    # --- writing

    def append(
        self, batches: Mapping[int, pa.RecordBatch], stamps: Mapping[int, Stamp] | None = None
    ) -> dict[int, int]:
        for number in batches.keys() | (stamps or {}).keys():
            self._check(number)
        for batch in batches.values():
            check_entries(batch)
        limit = self._message_limit()
        plans = {number: parts_of(batches[number], limit) for number in sorted(batches)}
        given = self._run(self._append_all(batches, plans, stamps or {}))
        return {number: given[number] for number in batches}

    @property
    def largest_message(self) -> int:
        """The server's max_payload. Batches are kept to 1 MiB, and so is one message."""
        return self._message_limit() - _ROOM_BYTES

    def _message_limit(self) -> int:
        if not self._limit:
            self._limit = min(_MESSAGE_BYTES, self._run(self._client.max_payload()) - OVERHEAD)
        return self._limit

    async def _append_all(
        self, batches: Mapping[int, pa.RecordBatch], plans: Mapping[int, list[MessagePart]], stamps: Mapping[int, Stamp]
    ) -> dict[int, int]:
        told = {number: stamp for number, stamp in stamps.items() if stamp.content}
        await asyncio.gather(*(self._writer(number).check(stamp) for number, stamp in told.items()))
        work = [self._append(n, batches[n], parts, stamps.get(n)) for n, parts in plans.items()]
        answers = await asyncio.gather(*work, return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if errors:  # one that cannot be tried again counts more than one that can
            raise next((error for error in errors if not isinstance(error, Unavailable)), errors[0])
        return {number: int(answer) for number, answer in zip(plans, answers, strict=True)}  # type: ignore[arg-type]  # no errors among them

    async def _append(self, number: int, batch: pa.RecordBatch, parts: list[MessagePart], stamp: Stamp | None) -> int:
        if not batch.num_rows:
            return (await self._reader(number).bounds())[1]
        base, tail = await self._writer(number).append(batch, parts, stamp, _APPEND_SECONDS)
        self._reader(number).saw(tail.sequence)
        with suppress(PxrsError):  # a hint: who misses it looks again by and by
            await self._growth.tell(number)
        return base

    # --- reading

    def read(self, partition: int, offset: int, max_rows: int = 10_000) -> pa.RecordBatch | None:
        return self._reader(partition).read(offset, max_rows, _SECONDS)

    def bounds(self, partition: int) -> tuple[int, int]:
        return self._run(self._reader(partition).bounds())

    def offset_at(self, partition: int, timestamp_us: int) -> int:
        return self._run(self._reader(partition).offset_at(timestamp_us))

    def pieces(self, partition: int, start: int, end: int) -> Sequence[Piece]:
        """One piece: a task that reads it asks the server, with all that the server must know."""
        bounds = self.bounds(partition)
        for offset in (start, end):
            if not bounds[0] <= offset <= bounds[1]:
                refuse_offset(self.identity.name, partition, offset, bounds)
        if len(self._place.names) > 1:
            raise Refused(f"log {'/'.join(self._place.names)!r} has no address of its own: only its owner reads it")
        url = url_without_password(self._place.target)
        return [Piece("log", f"{url}#{partition}", start, end)] if start < end else []

    def chunks(self, partition: int) -> Sequence[Chunk]:
        return self._run(self._reader(partition).stored.chunks())

    def trim(self, partition: int, offset: int) -> int:
        return self._run(self._trim(self._reader(partition), partition, offset))

    async def _trim(self, reader: PartitionReader, number: int, offset: int) -> int:
        start, end = await reader.bounds()
        if offset > end:
            refuse_offset(self.identity.name, number, offset, (start, end))
        if offset <= start:
            return start
        sequence = await self._writer(number).publish_end(end) if offset == end else None
        if sequence is None:  # something is left, or came in between
            sequence = await reader.stored.deleted_up_to(offset)
        kept = None if sequence is None else await self._stream.next(number, sequence)
        if kept is None:  # the last message of a partition always stays: it holds the next offset
            return start
        await self._stream.purge(number, kept.sequence)
        return kept.base

    def subscribe(self, partition: int, notify: Callable[[], None]) -> Callable[[], None]:
        self._check(partition)
        return self._growth.subscribe(partition, notify, _SECONDS)

    # --- the rest

    def sibling(self, name: str, partitions: int, create: bool) -> JetStreamLog | None:
        parts = [check_name("sibling", part) for part in name.split("/")]
        options = OpenOptions(partitions, self.identity.hash, self.identity.reduce)
        return self._open(self._place._replace(names=(*self._place.names, *parts)), options, create)

    def registry(self) -> OwnRegistry | None:
        return self._run(read_registry(self._stream))

    def set_registry(self, wanted: OwnRegistry, instead_of: str | None = "") -> OwnRegistry:
        return self._run(write_registry(self._stream, wanted, instead_of))

    def groups_seen(self) -> Sequence[str]:
        return self._run(groups_seen(self._stream, self.identity.name))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._growth.close()
            for reader in list(self._readers.values()):
                reader.close()
            self._client.close()


async def _identity(stream: Stream, place: _StreamLocation, options: OpenOptions, create: bool) -> LogIdentity | None:
    await stream.client.max_payload()  # a server that is not there is no reason for patience
    return await patiently(lambda: _found_or_made(stream, place, options, create), _PATIENCE_SECONDS)


async def _found_or_made(
    stream: Stream, place: _StreamLocation, options: OpenOptions, create: bool
) -> LogIdentity | None:
    """The recorded identity, found or made; of two creators the second must agree with the first."""
    target, name = place.target, place.names[-1]
    recorded = await stream.identity()
    if recorded is None and not create:
        return None
    if recorded is None:
        made = agree(name, options, None)
        if await stream.create(made, target.replicas or 1, target.window_ms or DEFAULT_WINDOW_MS):
            return made
        recorded = await stream.identity()
    if target.replicas not in (None, stream.replicas):
        raise Mismatch(
            f"stream {stream.name!r} has {stream.replicas} replicas, and is opened with replicas={target.replicas}: "
            f"leave it out, or change the stream first (nats stream edit {stream.name} --replicas {target.replicas})"
        )
    return agree(name, options, recorded)


# ---- how readers are woken for new messages -------------------------------------------------------------------------
# It is a hint. It is not stored, it may be lost, and after a reconnect all readers are woken, just in case.


class AppendSubscription:
    """One subscription on the server for all partitions of a log, made when the first reader wants to be woken."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._listeners: dict[int, dict[object, Callable[[], None]]] = {}
        self._stops: tuple[Callable[[], Coroutine[Any, Any, None]], Callable[[], None]] | None = None

    async def tell(self, partition: int) -> None:
        await self._stream.client.publish(growth_subject(self._stream.name, partition), b"")

    def subscribe(self, partition: int, notify: Callable[[], None], seconds: float) -> Callable[[], None]:
        token = object()
        with self._lock:
            if self._stops is None:
                client = self._stream.client
                stop = client.run(client.listen(growth_subject(self._stream.name, "*"), self._hear), seconds)
                self._stops = stop, client.on_reconnect(self._hear_all)
            self._listeners.setdefault(partition, {})[token] = notify

        def cancel() -> None:
            self._listeners.get(partition, {}).pop(token, None)  # after a close nobody listens

        return cancel

    def _hear(self, message: Msg) -> None:
        self._notify(int(message.subject.rpartition(".")[2]))

    def _hear_all(self) -> None:
        for partition in list(self._listeners):
            self._notify(partition)

    def _notify(self, partition: int) -> None:
        call_each(list(self._listeners.get(partition, {}).values()))

    def close(self) -> None:
        with self._lock:
            stops, self._stops = self._stops, None
            self._listeners = {}
        if stops is not None:
            stop, stop_reconnects = stops
            stop_reconnects()
            with suppress(Unavailable):
                self._stream.client.run(stop(), 2.0)
