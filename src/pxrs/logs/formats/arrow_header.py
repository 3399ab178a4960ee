"""Reads positions in the header of a batch: the few lines of flatbuffers that a scan of headers needs.

pyarrow does not show custom metadata alone. All values in it have fixed widths, so nearly all headers of one length are
laid out alike: a header is compared with the last one of its length, and followed from reference to reference only if
it differs in anything but its values.
"""

from __future__ import annotations

import struct

PREFIX = 8
"""The bytes before the flatbuffer: a continuation mark, and the length of the metadata."""

_U16, _I32, _I64 = struct.Struct("<H"), struct.Struct("<i"), struct.Struct("<q")
_PAIR = struct.Struct("<HHHH")  # how the table of one key and its value is laid out
_MOST_VALUES = 64
_BATCH, _BODY_LENGTH, _CUSTOM_METADATA = 2, 3, 4  # field numbers in Arrow's Message table
_ROWS, _NODES, _BUFFERS = 0, 1, 2  # field numbers in its RecordBatch table
BODY, ROWS, NODES, BUFFERS = b"body", b"rows", b"nodes", b"buffers"
_CHECKSUMS = (b"pxrs.head", b"pxrs.xxh3")
BLANK = b"0" * 16
"""The bytes that the checksums count instead of themselves."""

Bytes = bytes | memoryview
"""A memoryview is read in its place: that spares a copy of a large body."""
Places = dict[bytes, tuple[int, int]]
Values = dict[bytes, bytes]
"""The custom metadata by name."""


class Layout:
    """The places of all values in a header. Raises KeyError, IndexError or struct.error for what is no header."""

    def __init__(self, header: bytes) -> None:
        self.places = custom_metadata(header)
        self.checksums = [self.places[name][0] for name in _CHECKSUMS]
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
