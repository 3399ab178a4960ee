"""One segment file, byte by byte: an Arrow IPC stream whose batches carry their own checksums.

A batch is one encapsulated message: ``FF FF FF FF``, the length of its metadata, the metadata (a flatbuffer),
the body. Its custom metadata names the first offset, the rows, the times, the producer, and two checksums:
``pxrs.head`` over the header alone, so that a walk from header to header trusts the lengths it follows and
touches no body; and ``pxrs.xxh3`` over the whole message. Both count the characters of both as zeros.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import pyarrow as pa
import xxhash

from pxrs.errors import Damaged
from pxrs.logs.base import SCHEMA, Stamp
from pxrs.logs.records import times

SCHEMA_MESSAGE = bytes(SCHEMA.serialize())
"""How a segment starts; a segment that holds nothing but this is an empty, valid stream."""

CONTINUATION = b"\xff\xff\xff\xff"
PREFIX = 8
MAX_HEADER = 65_536
_SPARE = 1_024  # what the custom metadata adds to Arrow's own estimate of a message, generously

_CHECKSUMS = (b"pxrs.head", b"pxrs.xxh3")
_BLANK = b"0" * 16
_U16, _I32, _I64 = struct.Struct("<H"), struct.Struct("<i"), struct.Struct("<q")
_PAIR = struct.Struct("<HHHH")  # how the table of one key and its value is laid out
_MOST_VALUES = 64
_BODY_LENGTH, _CUSTOM_METADATA = 3, 4  # field numbers in Arrow's Message table


class NotAHeader(ValueError):
    """These bytes are no intact header of a batch."""


class Header(NamedTuple):
    """What a batch says about itself; ``size`` counts the header, ``length`` the whole message."""

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


def encode(batch: pa.RecordBatch, stamp: Stamp | None, compression: str = "none") -> tuple[memoryview, Header]:
    """The bytes of one batch (``SCHEMA``), ready to be appended to a segment, and what their header says."""
    base, first, last = _extent(batch)
    metadata = _describe(base, batch.num_rows, first, last, stamp)
    spare = _SPARE + sum(len(value) for value in metadata.values())
    size = pa.ipc.get_record_batch_size(batch)
    if compression != "none":  # what cannot be compressed grows a little
        spare += size // 100 + 65_536
    room = pa.allocate_buffer(len(SCHEMA_MESSAGE) + size + spare)
    sink = pa.FixedSizeBufferWriter(room)
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    writer = pa.ipc.new_stream(sink, SCHEMA, options=options)  # never closed: that would write the end marker
    writer.write_batch(batch, custom_metadata=metadata)
    message = memoryview(room).cast("B")[len(SCHEMA_MESSAGE) : sink.tell()]
    return message, Header(base, batch.num_rows, _seal(message), len(message), first, last, stamp)


def _extent(batch: pa.RecordBatch) -> tuple[int, int, int]:
    """The first offset, the earliest time and the latest."""
    at, base = times(batch), batch.column(0)[0].as_py()
    if len(at) == 1:
        return base, int(at[0]), int(at[0])
    return base, int(at.min()), int(at.max())


def _describe(base: int, rows: int, first_us: int, last_us: int, stamp: Stamp | None) -> dict[str, str]:
    # Fixed widths: the checksums and the header's length are written over what stands here as zeros.
    described = {
        "pxrs.head": _BLANK.decode(),
        "pxrs.xxh3": _BLANK.decode(),
        "pxrs.header": "0" * 8,
        "pxrs.base": f"{base:020d}",
        "pxrs.rows": f"{rows:010d}",
        "pxrs.time": f"{first_us:+020d}/{last_us:+020d}",
    }
    if stamp is not None:
        described |= {"pxrs.producer": stamp.producer, "pxrs.sequence": f"{stamp.sequence:020d}"}
    return described


def _seal(message: memoryview) -> int:
    """Fill in what is only known once the message stands: its header's length (returned), and the checksums."""
    size = PREFIX + int(_I32.unpack_from(message, 4)[0])
    places = _custom_metadata(bytes(message[:size]))
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


def read_header(data: bytes) -> Header:
    """The header at the start of ``data``, checked; ``data`` may go on after it."""
    size = header_size(data)
    if len(data) < size:
        raise NotAHeader("it is not complete")
    header = data[:size]
    try:
        places = _custom_metadata(header)
        if xxhash.xxh3_64_hexdigest(_blanked(header, places)) != _text(header, places[b"pxrs.head"]):
            raise NotAHeader("its header checksum does not match")
        return _parse(header, places)
    except (struct.error, KeyError, IndexError, ValueError) as error:
        raise NotAHeader(f"its header cannot be read: {error}") from error


def header_size(data: bytes) -> int:
    """How long the header says it is."""
    if data[:4] != CONTINUATION or len(data) < PREFIX:
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
        at, length = _custom_metadata(data)[b"pxrs.header"]
        return int(data[at : at + length]) != header_size(data)
    except (struct.error, KeyError, IndexError, ValueError):
        return False


def _parse(header: bytes, places: dict[bytes, tuple[int, int]]) -> Header:
    first, last = _text(header, places[b"pxrs.time"]).split("/")
    stamp = None
    if b"pxrs.producer" in places:
        stamp = Stamp(_text(header, places[b"pxrs.producer"]), int(_text(header, places[b"pxrs.sequence"])))
    return Header(
        int(_text(header, places[b"pxrs.base"])),
        int(_text(header, places[b"pxrs.rows"])),
        len(header),
        len(header) + _body_length(header),
        int(first),
        int(last),
        stamp,
    )


def _text(header: bytes, place: tuple[int, int]) -> str:
    return header[place[0] : place[0] + place[1]].decode()


def _blanked(header: bytes, places: dict[bytes, tuple[int, int]]) -> bytearray:
    """The header as its checksums saw it."""
    blank = bytearray(header)
    for name in _CHECKSUMS:
        at, _ = places[name]
        blank[at : at + 16] = _BLANK
    return blank


# --- the few lines of flatbuffers that a walk over headers needs; pyarrow does not show custom metadata alone


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a table stands."""
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


def _body_length(data: bytes) -> int:
    return int(_I64.unpack_from(data, _field(data, _root(data), _BODY_LENGTH))[0])


def _custom_metadata(data: bytes) -> dict[bytes, tuple[int, int]]:
    """Where each value of the custom metadata stands: (position, length). Written for speed: each batch comes here."""
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


# --- whole batches


def decode(message: pa.Buffer) -> pa.RecordBatch:
    """The batch in these bytes, without a copy. Call ``intact`` first."""
    return pa.ipc.read_record_batch(pa.ipc.read_message(pa.BufferReader(message)), SCHEMA)


def intact(message: pa.Buffer) -> bool:
    """Whether the whole message still has the checksum it was written with."""
    view = memoryview(message)
    try:
        size = header_size(bytes(view[:PREFIX]))
        header = bytes(view[:size])
        places = _custom_metadata(header)
        at, length = places[b"pxrs.xxh3"]
        digest = xxhash.xxh3_64(_blanked(header, places))
    except (struct.error, KeyError, IndexError, ValueError):
        return False
    digest.update(view[size:])
    return header[at : at + length] == digest.hexdigest().encode()


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


def header_at(stored: pa.Buffer, position: int, path: str) -> Header:
    """The header at a position of a mapped segment; Damaged if there is none."""
    view = memoryview(stored)[position:]
    try:
        return read_header(bytes(view[: header_size(bytes(view[:PREFIX]))]))
    except NotAHeader as error:
        raise Damaged(f"{path}: no intact batch at byte {position}: {error}") from error


class Place(NamedTuple):
    """Where a batch stands: its first offset, and its bytes."""

    base: int
    position: int
    length: int


def read_batch(stored: pa.Buffer, place: Place, path: str, verify: bool = True) -> pa.RecordBatch:
    """The batch at a place of a mapped segment."""
    message = stored.slice(place.position, place.length)
    if message.size < place.length or (verify and not intact(message)):
        raise Damaged(f"{path}: the batch at byte {place.position}, offset {place.base}, fails its checksum")
    return decode(message)
