"""The port of a log: where messages live. A log has a fixed number of partitions; each is an append-only
sequence of messages with dense offsets from 0, stored as Arrow record batches.

An offset in a range is half open: ``[start, end)``; ``end`` is the offset that the next message will get.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from pxrs.errors import BadSetting, Mismatch
from pxrs.settings import DEFAULT_HASH, DEFAULT_PARTITIONS, DEFAULT_REDUCE, MAX_PARTITIONS

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))
TIMESTAMP = pa.timestamp("us", tz="UTC")

ENTRY_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("timestamp", TIMESTAMP, nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("headers", HEADERS),
        pa.field("id", pa.binary(16)),
        pa.field("tenant", pa.string()),
    ]
)
"""The columns that a producer hands in: everything but the offset, which the log gives."""

SCHEMA: pa.Schema = pa.schema([pa.field("offset", pa.int64(), nullable=False), *ENTRY_SCHEMA])
"""The columns that a reader gets."""


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """The values that are recorded when a log is created and never change: routing depends on them.

    ``id`` is random: it tells this log from another of the same name, and from one that was deleted before it.
    """

    name: str
    partitions: int
    hash: str
    reduce: str
    id: str


class OpenOptions(NamedTuple):
    """The caller's options when it opens a log; None = as recorded, or the default for a new one."""

    partitions: int | None = None
    hash: str | None = None
    reduce: str | None = None


Wish = OpenOptions
"""The name until 0.6; drivers of other packages may import it."""


def agree(name: str, options: OpenOptions, recorded: LogIdentity | None) -> LogIdentity:
    """Check the options against the recorded identity, and return it; without one, make a new identity."""
    if recorded is None:
        count = DEFAULT_PARTITIONS if options.partitions is None else options.partitions
        if type(count) is not int or not 1 <= count <= MAX_PARTITIONS:
            raise BadSetting(f"partitions = {count!r}: a whole number from 1 to {MAX_PARTITIONS}")
        return LogIdentity(
            name, count, options.hash or DEFAULT_HASH, options.reduce or DEFAULT_REDUCE, secrets.token_hex(8)
        )
    for what in OpenOptions._fields:
        wanted, stored = getattr(options, what), getattr(recorded, what)
        if wanted is not None and wanted != stored:
            raise Mismatch(
                f"queue {recorded.name!r} was created with {what} = {stored!r}, and is opened with {wanted!r}: "
                "keys would go to other partitions. Leave it out, or create a new queue"
            )
    return recorded


DEAD_LETTERS = "dead-letters/"
"""The beginning of the names of siblings that hold a group's dead letters; the group's name follows."""


class OwnRegistry(NamedTuple):
    """The registry to which a log belongs: only its groups may consume the log and hold back its retention.

    ``id`` is random and is in the registry too; "" says that no group has come yet. ``where`` is the registry's URL
    without a password, for people. ``before`` is the id of the registry that this one has replaced, if any.
    """

    id: str = ""
    where: str = ""
    before: str = ""


class Stamp(NamedTuple):
    """The producer stamp of a batch: it makes a retry recognisable. ``sequence`` counts a producer's batches to one
    partition, from 0. Two stamps are equal if they name the same producer and sequence.

    ``since``: the batch is not before this offset, as far as its sender knows. A log that has forgotten stamps
    behind it then stores nothing and raises Conflict: read on from there, and say how far you have looked.
    ``content``: ROWS/CHECKSUM of what is sent under this number. Another content under the same stamp is refused.
    """

    producer: str
    sequence: int
    since: int | None = None
    content: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stamp) and self[:2] == other[:2]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:2])


class FewRows(NamedTuple):
    """A few messages to append to one partition, as plain values; they have neither headers nor tenants.

    ``ids`` holds the 16 bytes of each, one after the other.
    """

    times: list[int]
    keys: list[bytes | None]
    values: list[bytes]
    ids: bytes

    @property
    def num_rows(self) -> int:
        return len(self.values)

    def batch(self) -> pa.RecordBatch:
        """The batch with the columns of ``ENTRY_SCHEMA``."""
        rows = self.num_rows
        columns = {
            "timestamp": pa.array(self.times, TIMESTAMP),
            "key": pa.array(self.keys, pa.binary()),
            "value": pa.array(self.values, pa.binary()),
            "id": pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), rows, [None, pa.py_buffer(self.ids)]),
        }
        arrays = [columns[field.name] if field.name in columns else nulls(rows, field.type) for field in ENTRY_SCHEMA]
        return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)


Rows = FewRows
"""The name until 0.6; drivers of other packages may import it."""


Row: TypeAlias = tuple[int, int, bytes | None, bytes | None, int, bytes | None, Any, str | None]
"""A message as ``pxrs.Message`` has it: partition, offset, key, value, time, id, headers, tenant."""


def nulls(rows: int, kind: pa.DataType) -> pa.Array:
    """A column of nulls: text, bytes, headers. Arrow's own has values behind its nulls, which would all be stored."""
    nothing, ends = pa.py_buffer(bytes((rows + 7) // 8)), pa.py_buffer(bytes(4 * (rows + 1)))
    if pa.types.is_list(kind):
        return pa.Array.from_buffers(kind, rows, [nothing, ends], rows, children=[_NO_HEADERS])
    return pa.Array.from_buffers(kind, rows, [nothing, ends, _NO_TEXT], rows)


_NO_HEADERS = pa.nulls(0, HEADERS.value_type)  # pa.array would load pandas here
_NO_TEXT = pa.py_buffer(b"")


class Piece(NamedTuple):
    """A part of a partition that can be read alone, in another process, with nothing but this description.

    ``kind`` is "arrow" (an IPC stream: ``position`` and ``length`` bound whole batches), "parquet", or "log" (in a
    server: ``path`` is the log's URL without a password, and behind a # the partition).
    The offsets that it covers may be wider than asked for: readers filter.
    """

    kind: str
    path: str
    start: int
    end: int
    position: int = 0
    length: int = 0


class Chunk(NamedTuple):
    """A part of a partition that is stored, and deleted, as a whole; ``last_us`` is its newest timestamp, if known."""

    kind: str
    path: str
    start: int
    end: int
    bytes: int
    last_us: int | None


class Log(ABC):
    """The log: it stores the messages of one queue."""

    identity: LogIdentity
    directory: str | None = None
    """The directory of the log's files, if it keeps files that this machine can open."""
    outlives_process: bool = True
    """Whether the messages are still there when this process has ended."""

    @property
    def largest_message(self) -> int | None:
        """The largest message that the log takes, as ``pxrs.logs.message_size`` counts; None: no limit is known."""
        return None

    @abstractmethod
    def append(
        self, batches: Mapping[int, pa.RecordBatch], stamps: Mapping[int, Stamp] | None = None
    ) -> dict[int, int]:
        """Append one batch (``ENTRY_SCHEMA``) to each of these partitions; returns the first offset given in each.

        Durable when it returns. A batch whose stamp was appended before is not stored again: its old offset
        is returned. One with another content is refused (by a log of files also one with another number of rows); so
        it is where a stamp is given for a partition that gets no batch.
        Raises Damaged or Unavailable; then a later retry with the same stamps is safe. Raises Conflict if a stamp says
        ``since``, and the log does not know any more whether the batch is behind that; what went to other partitions
        may be stored then.
        """

    def append_rows(self, rows: Mapping[int, FewRows], stamps: Mapping[int, Stamp] | None = None) -> dict[int, int]:
        """Append a few messages to each partition: a log may have a shorter way for them than over Arrow."""
        return self.append({partition: few.batch() for partition, few in rows.items()}, stamps)

    @abstractmethod
    def read(self, partition: int, offset: int, max_rows: int = 10_000) -> pa.RecordBatch | None:
        """The next messages from ``offset`` on (``SCHEMA``), at most ``max_rows``, without blocking.

        None when ``offset`` is the end. Raises Expired below the start, BeyondEnd above the end.
        May return fewer rows than there are: ask again.
        """

    def read_rows(self, partition: int, offset: int, max_rows: int = 10_000) -> pa.RecordBatch | list[Row] | None:
        """Read likewise, for single messages: a log may have a shorter way to a few of them than over Arrow."""
        return self.read(partition, offset, max_rows)

    @abstractmethod
    def bounds(self, partition: int) -> tuple[int, int]:
        """The offsets ``(start, end)`` that can be read now."""

    @abstractmethod
    def offset_at(self, partition: int, timestamp_us: int) -> int:
        """The first offset whose timestamp is at or after this time; the end if there is none."""

    @abstractmethod
    def pieces(self, partition: int, start: int, end: int) -> Sequence[Piece]:
        """The stored pieces that cover ``[start, end)``, so that another process can read them."""

    @abstractmethod
    def chunks(self, partition: int) -> Sequence[Chunk]:
        """The stored chunks, in order and without a gap; the last one may still grow."""

    @abstractmethod
    def trim(self, partition: int, offset: int) -> int:
        """Delete the chunks that end at or before this offset; returns the new start of the partition.

        Reads below the start then raise Expired. The last chunk, which may still grow, may stay. Refuses an offset
        beyond the end.
        """

    def seal(self, partition: int, min_age_ms: int = 0) -> Sequence[Chunk]:  # noqa: ARG002 - most logs have none
        """Put what has been full for so long into the form that other programs read; returns what was made."""
        return ()

    @abstractmethod
    def subscribe(self, partition: int, notify: Callable[[], None]) -> Callable[[], None]:
        """Call ``notify`` (from any thread, cheaply) whenever the partition may have grown; returns how to cancel."""

    @abstractmethod
    def sibling(self, name: str, partitions: int, create: bool) -> Log | None:
        """A log beside this one that belongs to the queue, as the dead letters do. None if absent and not created."""

    def registry(self) -> OwnRegistry | None:
        """The registry that the log belongs to; its id is "" if no group has come yet.

        None: nothing is known. The log was made by a version up to 0.5, or does not keep this.
        """
        return None

    def set_registry(self, wanted: OwnRegistry, instead_of: str | None = "") -> OwnRegistry:  # noqa: ARG002 - most logs of others keep none
        """Record the registry if the recorded id still is ``instead_of`` (None: whatever it is); returns what is
        recorded then. Durable when it returns: of two who do this at once, both learn who was first."""
        return wanted

    def groups_seen(self) -> Sequence[str]:
        """The names of groups that have left something beside the log, such as dead letters."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Free what this object holds. Closing twice is harmless."""
