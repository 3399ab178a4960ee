"""The format of a segment file: an Arrow IPC stream whose batches carry their own checksums.

A batch is one encapsulated message: ``FF FF FF FF``, the length of its metadata, the metadata (a flatbuffer),
the body. Its custom metadata names the first offset, the rows, the times, the producer, and two checksums:
``pxrs.head`` over the header alone, so that a walk from header to header trusts the lengths it follows and
touches no body; and ``pxrs.xxh3`` over the whole message. Both count the characters of both as zeros.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pyarrow as pa
import xxhash

from pxrs.errors import Damaged
from pxrs.logs.base import SCHEMA, Stamp
from pxrs.logs.batches import numbers, times

SCHEMA_MESSAGE = bytes(SCHEMA.serialize())
"""The first bytes of a segment; a segment that holds nothing but this is an empty, valid stream."""

PREFIX = 8
"""The bytes before the flatbuffer: a continuation mark, and the length of the metadata."""

BLANK = b"0" * 16
"""The bytes that the checksums count instead of themselves."""

Bytes = bytes | memoryview
"""A memoryview is read in its place: that spares a copy of a large body."""

CONTINUATION = b"\xff\xff\xff\xff"
MAX_HEADER = 65_536
_SPARE = 1_024  # what the custom metadata adds to Arrow's own estimate of a message, generously

_I32 = struct.Struct("<i")
_UNREADABLE = (struct.error, KeyError, IndexError, ValueError)  # what following wrong references ends in


class NotAHeader(ValueError):
    """These bytes are no intact header of a batch."""


class Header(NamedTuple):
    """The facts of a batch in its header; ``size`` counts the header, ``length`` the whole message."""

    base: int
    rows: int
    size: int
    length: int
    first_us: int
    last_us: int
    stamp: Stamp | None

    @property
    def end(self) -> int:
        return self.base + self.rows


class Room:
    """Memory to encode batches in, one after the other: fresh memory for each costs more than to fill it."""

    def __init__(self) -> None:
        self._memory: pa.Buffer | None = None

    def of(self, size: int) -> pa.Buffer:
        if self._memory is None or self._memory.size < size:
            self._memory = pa.allocate_buffer(size)
        return self._memory


def encode(
    batch: pa.RecordBatch, stamp: Stamp | None, compression: str = "none", room: Room | None = None
) -> tuple[memoryview, Header]:
    """The bytes of one batch (``SCHEMA``), ready to be appended to a segment, and what their header says.

    With a room they stay there until the next batch is encoded in it.
    """
    base, first, last = _extent(batch)
    metadata = describe(base, batch.num_rows, first, last, stamp)
    size = len(SCHEMA_MESSAGE) + _SPARE + sum(map(len, metadata.values())) + pa.ipc.get_record_batch_size(batch)
    if compression != "none":  # what cannot be compressed grows a little
        size += size // 100 + 65_536
    memory = (room or Room()).of(size)
    sink = pa.FixedSizeBufferWriter(memory)
    writer = pa.ipc.new_stream(
        sink, SCHEMA, options=_options(compression)
    )  # never closed: that would write the end marker
    writer.write_batch(batch, custom_metadata=metadata)
    message = memoryview(memory).cast("B")[len(SCHEMA_MESSAGE) : sink.tell()]
    return message, Header(base, batch.num_rows, _seal(message), len(message), first, last, stamp)


@cache
def _options(compression: str) -> pa.ipc.IpcWriteOptions:
    return pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)


def _extent(batch: pa.RecordBatch) -> tuple[int, int, int]:
    """The first offset, the earliest time and the latest."""
    at, base = times(batch), int(numbers(batch.column(0))[0])
    if len(at) == 1:
        return base, int(at[0]), int(at[0])
    return base, int(at.min()), int(at.max())


def describe(base: int, rows: int, first_us: int, last_us: int, stamp: Stamp | None) -> dict[bytes, bytes]:
    """The custom metadata of a batch, its checksums blank."""
    # Fixed widths: the checksums and the header's length are written over these zeros.
    described = {
        b"pxrs.head": BLANK,
        b"pxrs.xxh3": BLANK,
        b"pxrs.header": b"0" * 8,
        b"pxrs.base": b"%020d" % base,
        b"pxrs.rows": b"%010d" % rows,
        b"pxrs.time": b"%+020d/%+020d" % (first_us, last_us),
    }
    if stamp is not None:
        described |= {b"pxrs.producer": stamp.producer.encode(), b"pxrs.sequence": b"%020d" % stamp.sequence}
        if stamp.content:
            described[b"pxrs.content"] = stamp.content.encode()
    return described


def _seal(message: memoryview) -> int:
    """Fill in what is known only when the message is made: its header's length (returned), and the checksums."""
    size = PREFIX + int(_I32.unpack_from(message, 4)[0])
    places = lay_out(bytes(message[:size]))[0].places
    at, _ = places[b"pxrs.header"]
    message[at : at + 8] = b"%08d" % size
    digest = xxhash.xxh3_64(message[:size])
    head = digest.hexdigest()
    digest.update(message[size:])
    _patch(message, places[b"pxrs.head"], head)
    _patch(message, places[b"pxrs.xxh3"], digest.hexdigest())
    return size


def _patch(message: memoryview, place: tuple[int, int], digest: str) -> None:
    message[place[0] : place[0] + 16] = digest.encode()


class Opened(NamedTuple):
    """A header that is intact, and what it takes to check the rest of its message without reading it again."""

    header: Header
    digest: xxhash.xxh3_64
    """The checksum of the header, so far."""
    expected: bytes

    def fits(self, message: Bytes) -> bool:
        """Whether this is the whole message as it was written. To be asked once."""
        self.digest.update(memoryview(message)[self.header.size : self.header.length])
        return self.digest.hexdigest().encode() == self.expected


def open_message(data: Bytes) -> Opened:
    """The header at the start of ``data``, checked; ``data`` may go on after it."""
    size = header_size(data)
    if len(data) < size:
        raise NotAHeader("it is not complete")
    header = bytes(data[:size])
    try:
        layout, values = lay_out(header)
        digest = xxhash.xxh3_64(layout.blanked(header))
        if digest.hexdigest().encode() != values[b"pxrs.head"]:
            raise NotAHeader("its header checksum does not match")
        return Opened(_parse(values, size), digest, values[b"pxrs.xxh3"])
    except _UNREADABLE as error:
        raise NotAHeader(f"its header cannot be read: {error}") from error


def read_header(data: bytes) -> Header:
    """The header at the start of ``data``, checked; ``data`` may go on after it."""
    return open_message(data).header


def header_size(data: Bytes) -> int:
    """The length of the header, as it says itself."""
    if bytes(data[:4]) != CONTINUATION or len(data) < PREFIX:
        raise NotAHeader("it does not start like one")
    size = PREFIX + int(_I32.unpack_from(data, 4)[0])
    if not PREFIX < size <= MAX_HEADER:
        raise NotAHeader(f"its header cannot be {size} bytes long")
    return size


def contradicts_itself(data: bytes) -> bool:
    """Whether the length in front of a header differs from the one inside it, as far as ``data`` shows both.

    A header that was only half written agrees with itself; one whose length has rotted does not.
    """
    try:
        at, length = custom_metadata(data)[b"pxrs.header"]
        return int(data[at : at + length]) != header_size(data)
    except _UNREADABLE:
        return False


def _parse(values: Values, size: int) -> Header:
    first, last = values[b"pxrs.time"].split(b"/")
    stamp = None
    if b"pxrs.producer" in values:
        content = values.get(b"pxrs.content", b"").decode()
        stamp = Stamp(values[b"pxrs.producer"].decode(), int(values[b"pxrs.sequence"]), content=content)
    length = size + body_length(values)
    return Header(int(values[b"pxrs.base"]), int(values[b"pxrs.rows"]), size, length, int(first), int(last), stamp)


# --- whole batches


def decode(message: pa.Buffer) -> pa.RecordBatch:
    """The batch in these bytes, without a copy. Call ``intact`` first."""
    return pa.ipc.read_record_batch(message, SCHEMA)


def intact(message: pa.Buffer | bytes) -> bool:
    """Whether the whole message still has the checksum it was written with."""
    view = memoryview(message)
    try:
        size = header_size(view)
        likely = latest_layout(size)
        # If the checksum is right, so was the place where it was looked for: it covers all that says where it is.
        if likely is not None and _matches(view, size, likely):
            return True
        return _matches(view, size, lay_out(bytes(view[:size]))[0])
    except _UNREADABLE:
        return False


def _matches(view: memoryview, size: int, layout: Layout) -> bool:
    digest = xxhash.xxh3_64(layout.blanked(view[:size]))
    digest.update(view[size:])
    return digest.hexdigest().encode() == layout.checksum(view)


def check_schema(start: bytes, path: str) -> int:
    """The length of the schema message that a segment starts with; Damaged if it is not ours."""
    if start[: len(SCHEMA_MESSAGE)] == SCHEMA_MESSAGE:
        return len(SCHEMA_MESSAGE)
    reader = pa.BufferReader(start)
    try:
        found = pa.ipc.read_schema(reader)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Damaged(f"{path}: its schema, at byte 0, cannot be read: {error}") from error
    if not found.equals(SCHEMA):
        raise Damaged(f"{path}: its schema, at byte 0, is not that of a log")
    return int(reader.tell())


def message_at(stored: pa.Buffer, position: int, path: str) -> Opened:
    """The message at a position of a mapped segment, its header checked; Damaged if there is none."""
    try:
        return open_message(memoryview(stored)[position:])
    except NotAHeader as error:
        raise Damaged(f"{path}: no intact batch at byte {position}: {error}") from error


class BatchPosition(NamedTuple):
    """The position of a batch: its first offset, and its bytes."""

    base: int
    position: int
    length: int


def read_batch(
    message: pa.Buffer, place: BatchPosition, path: str, check: Callable[[pa.Buffer], bool] | None = intact
) -> pa.RecordBatch:
    """Read the batch in these bytes, which are at a position of a segment."""
    if message.size < place.length or (check is not None and not check(message)):
        raise Damaged(f"{path}: the batch at byte {place.position}, offset {place.base}, fails its checksum")
    return decode(message)


# ---- positions in a header ------------------------------------------------------------------------------------------
# The few lines of flatbuffers that a scan of headers needs: pyarrow does not show custom metadata alone. All values in
# it have fixed widths, so nearly all headers of one length are laid out alike: a header is compared with the last one
# of its length, and followed from reference to reference only if it differs in anything but its values.


_U16, _I64 = struct.Struct("<H"), struct.Struct("<q")
_PAIR = struct.Struct("<HHHH")  # how the table of one key and its value is laid out
_MOST_VALUES = 64
_BATCH, _BODY_LENGTH, _CUSTOM_METADATA = 2, 3, 4  # field numbers in Arrow's Message table
_ROWS, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3  # field numbers in its RecordBatch table
BODY, ROWS, NODES, BUFFERS = b"body", b"rows", b"nodes", b"buffers"
_CHECKSUMS = (b"pxrs.head", b"pxrs.xxh3")
Places = dict[bytes, tuple[int, int]]
Values = dict[bytes, bytes]
"""The custom metadata by name."""


class Layout:
    """The places of all values in a header. Raises KeyError, IndexError or struct.error for what is no header."""

    def __init__(self, header: bytes) -> None:
        self.places = custom_metadata(header)
        self.checksums = [self.places[name][0] for name in _CHECKSUMS]
        self.is_compressed = _has(header, _batch(header), _COMPRESSION)
        values = value_places(header)
        self._names = sorted(values, key=lambda name: values[name])
        widths, at = [], 0
        for name in self._names:
            place, length = values[name]
            widths += [place - at, length]
            at = place + length
        widths.append(len(header) - at)
        if min(widths) < 0:
            raise IndexError("values overlap")
        self._parts = struct.Struct("".join(f"{width}s" for width in widths))
        self._frame = self._parts.unpack_from(header)[::2]

    def values(self, header: bytes) -> Values | None:
        """The values of a header with this layout; None if it has another one."""
        if len(header) < self._parts.size:
            return None
        parts = self._parts.unpack_from(header)
        return dict(zip(self._names, parts[1::2], strict=True)) if parts[::2] == self._frame else None

    def checksum(self, header: Bytes) -> bytes:
        """The checksum of the whole message, where headers that are laid out like this have it."""
        at = self.checksums[1]
        return bytes(header[at : at + 16])

    def blanked(self, header: Bytes) -> bytearray:
        """The header as its checksums saw it."""
        blank = bytearray(header)
        for at in self.checksums:
            blank[at : at + 16] = BLANK
        return blank


_latest: dict[int, Layout] = {}  # by the length of the header; there are few


def latest_layout(size: int) -> Layout | None:
    """The layout of the last header of this length; the next one may have another."""
    return _latest.get(size)


def lay_out(header: bytes) -> tuple[Layout, Values]:
    """The layout of a whole header, and what it says."""
    layout = _latest.get(len(header))
    values = None if layout is None else layout.values(header)
    if layout is None or values is None:
        layout = _latest[len(header)] = Layout(header)
        values = layout.values(header) or {}
    return layout, values


def body_length(values: Values) -> int:
    return int(_I64.unpack(values[BODY])[0])


def _field(data: bytes, table: int, number: int) -> int:
    """The position of a field in a table."""
    vtable = table - _I32.unpack_from(data, table)[0]
    slot = 4 + 2 * number
    if vtable < PREFIX or slot >= _U16.unpack_from(data, vtable)[0]:
        raise KeyError(f"field {number} is missing")
    offset = int(_U16.unpack_from(data, vtable + slot)[0])
    if offset == 0:
        raise KeyError(f"field {number} is missing")
    return table + offset


def _follow(data: bytes, at: int) -> int:
    return at + int(_I32.unpack_from(data, at)[0])


def _root(data: bytes) -> int:
    return _follow(data, PREFIX)


def custom_metadata(data: bytes) -> Places:
    """The position and length of each value of the custom metadata. The header may go on behind ``data``."""
    words = struct.unpack_from(f"<{len(data) >> 2}i", data)
    vector = _follow(data, _field(data, _root(data), _CUSTOM_METADATA)) >> 2
    found = {}
    for slot in range(vector + 1, vector + 1 + min(words[vector], _MOST_VALUES)):
        pair = 4 * slot + words[slot]
        _, _, key, value = _PAIR.unpack_from(data, pair - words[pair >> 2])
        key, value = pair + key, pair + value
        key, value = key + words[key >> 2], value + words[value >> 2]
        length = words[value >> 2]
        if length < 0 or value + 4 + length > len(data):
            raise IndexError("a text ends outside the header")
        found[data[key + 4 : key + 4 + words[key >> 2]]] = value + 4, length
    return found


def _batch(header: bytes) -> int:
    """The position of the table of the batch."""
    return _follow(header, _field(header, _root(header), _BATCH))


def _has(header: bytes, table: int, number: int) -> bool:
    try:
        return _field(header, table, number) > 0
    except KeyError:
        return False


def value_places(header: bytes) -> Places:
    """The positions of all that differs from batch to batch: custom metadata, and numbers that describe it."""
    found = {**custom_metadata(header), BODY: (_field(header, _root(header), _BODY_LENGTH), _I64.size)}
    batch = _batch(header)
    if _has(header, batch, _ROWS):  # a batch without rows does not say so
        found[ROWS] = _field(header, batch, _ROWS), _I64.size
    for name, number in ((NODES, _NODES), (BUFFERS, _BUFFERS)):
        vector = _follow(header, _field(header, batch, number))
        found[name] = vector + 4, 16 * int(_I32.unpack_from(header, vector)[0])
    return found
