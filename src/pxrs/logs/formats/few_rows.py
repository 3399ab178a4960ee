"""A few messages, encoded without Arrow's help: byte for byte what ``segment.encode`` makes of them.

To set Arrow up for a batch of one message costs several times what the message itself does. All headers of batches
without headers and tenants have one form, which is taken from a batch that Arrow has encoded; here only the numbers in
it are filled in.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

import xxhash

from pxrs.logs.base import FewRows, Row, Stamp
from pxrs.logs.batches import with_offsets
from pxrs.logs.formats.segment import (
    BODY,
    BUFFERS,
    NODES,
    ROWS,
    Header,
    describe,
    encode,
    header_size,
    lay_out,
    value_places,
)

_I64 = struct.Struct("<q")
_NODES = struct.Struct("<20q")
_BUFFERS = struct.Struct("<48q")
_ZEROS = bytes(8)


_KEY_NULL, _HEADERS_NULL, _ID_NULL, _TENANT_NULL = 5, 9, 17, 19  # how many are null, among the numbers of the nodes
_TIMES, _KEYS_VALID, _KEY_ENDS, _KEYS, _VALUE_ENDS, _VALUES, _IDS = 3, 4, 5, 6, 8, 9, 20  # numbers of buffers
FEW = 512
"""More rows than this are read faster by Arrow."""

is_on = True
"""The switch of this short way. Without it everything goes over Arrow, and the latency benchmark shows the price."""


class _Form:
    """The header of batches with stamps of one kind: the bytes that all have, and between them the values of each."""

    def __init__(self, stamp: Stamp | None) -> None:
        message, header = encode(with_offsets(FewRows([0], [None], [b""], bytes(16)).batch(), 0), stamp)
        sample, self.size = bytes(message[: header.size]), header.size
        self._parts: list[bytes] = []
        self._slots: dict[bytes, int] = {}
        at = 0
        for name, (place, length) in sorted(value_places(sample).items(), key=lambda item: item[1]):
            self._parts += (sample[at:place], b"")
            self._slots[name] = len(self._parts) - 1
            at = place + length
        self._parts.append(sample[at:])

    def message(self, values: dict[bytes, bytes], body: bytes) -> bytes:
        """A header that says this, with its checksums, and the body."""
        parts, slots = self._parts.copy(), self._slots
        for name, value in values.items():
            parts[slots[name]] = value
        digest = xxhash.xxh3_64(b"".join(parts))
        parts[slots[b"pxrs.head"]] = digest.hexdigest().encode()
        digest.update(body)
        parts[slots[b"pxrs.xxh3"]] = digest.hexdigest().encode()
        parts.append(body)
        return b"".join(parts)


@lru_cache(maxsize=64)
def _form(producer_bytes: int | None, content_bytes: int = 0) -> _Form:
    return _Form(None if producer_bytes is None else Stamp("0" * producer_bytes, 0, content="0" * content_bytes))


def encode_rows(rows: FewRows, base: int, stamp: Stamp | None) -> tuple[bytes, Header]:
    """The bytes of one batch whose first offset is ``base``, and what their header says."""
    form = _form(None) if stamp is None else _form(len(stamp.producer.encode()), len(stamp.content.encode()))
    count, first, last = len(rows.values), min(rows.times), max(rows.times)
    body, buffers = _body(rows, base)
    values = describe(base, count, first, last, stamp)
    values[b"pxrs.header"] = b"%08d" % form.size
    values[BODY] = _I64.pack(len(body))
    values[ROWS] = _I64.pack(count)
    values[NODES] = _NODES.pack(*_nodes(rows))
    values[BUFFERS] = _BUFFERS.pack(*buffers)
    message = form.message(values, body)
    return message, Header(base, count, form.size, len(message), first, last, stamp)


def _nodes(rows: FewRows) -> list[int]:
    """Length and nulls of each column and of what is in it: the headers are null, so nothing is in them."""
    count = len(rows.values)
    full, empty = (count, 0), (count, count)
    return [*full, *full, count, rows.keys.count(None), *full, *empty, 0, 0, 0, 0, 0, 0, *full, *empty]


def _body(rows: FewRows, base: int) -> tuple[bytes, list[int]]:
    """The buffers of all columns, each filled up to eight bytes, with position and length.

    Headers and tenants are nothing but zeros: a bit for each that is missing, and where its text would end.
    """
    count = len(rows.values)
    keys = [key or b"" for key in rows.keys]
    valid, key, value = _valid(rows.keys), b"".join(keys), b"".join(rows.values)
    bits, ends = (count + 7) // 8, 4 * (count + 1)
    wide_bits, wide_ends = _wide(bits), _wide(ends)
    at_keys = 16 * count + _wide(len(valid))
    at_key = at_keys + wide_ends
    at_values = at_key + _wide(len(key))
    at_value = at_values + wide_ends
    at_headers = at_value + _wide(len(value))
    at_none = at_headers + wide_bits + wide_ends
    at_ids = at_none + 16
    at_tenants = at_ids + 16 * count
    length = at_tenants + wide_bits + wide_ends
    body = b"".join((
        struct.pack(f"<{2 * count}q", *range(base, base + count), *rows.times),
        valid, _ZEROS[: -len(valid) & 7],
        _ends(keys), _ZEROS[: -ends & 7], key, _ZEROS[: -len(key) & 7],
        _ends(rows.values), _ZEROS[: -ends & 7], value, _ZEROS[: -len(value) & 7],
        bytes(at_ids - at_headers), rows.ids, bytes(length - at_tenants),
    ))  # fmt: skip
    return body, [
        0, 0, 0, 8 * count,
        8 * count, 0, 8 * count, 8 * count,
        16 * count, len(valid), at_keys, ends, at_key, len(key),
        at_values, 0, at_values, ends, at_value, len(value),
        at_headers, bits, at_headers + wide_bits, ends, at_none, 0,
        at_none, 0, at_none, 4, at_none + 8, 0, at_none + 8, 0, at_none + 8, 4, at_ids, 0,
        at_ids, 0, at_ids, 16 * count,
        at_tenants, bits, at_tenants + wide_bits, ends, length, 0,
    ]  # fmt: skip


def _wide(length: int) -> int:
    return (length + 7) & ~7


def _ends(texts: Sequence[bytes]) -> bytes:
    return struct.pack(f"<{len(texts) + 1}i", 0, *accumulate(map(len, texts)))


def _valid(keys: Sequence[bytes | None]) -> bytes:
    """A bit for each key that there is; nothing if there are all."""
    if None not in keys:
        return b""
    bits = sum(1 << number for number, key in enumerate(keys) if key is not None)
    return bits.to_bytes((len(keys) + 7) // 8, "little")


# --- the way back


def decode_rows(message: bytes, partition: int) -> list[Row] | None:
    """The rows of a batch that is intact; None if it is for Arrow: compressed, large, or with more in it."""
    header = message[: header_size(message)]
    layout, values = lay_out(header)
    if layout.is_compressed or len(values[NODES]) != _NODES.size or len(values[BUFFERS]) != _BUFFERS.size:
        return None
    nodes, buffers = _NODES.unpack(values[NODES]), _BUFFERS.unpack(values[BUFFERS])
    count = nodes[0]
    if count > FEW or nodes[_HEADERS_NULL] != count or nodes[_TENANT_NULL] != count or nodes[_ID_NULL]:
        return None
    at = [len(header) + position for position in buffers[::2]]
    base = int(values[b"pxrs.base"])
    ids = range(at[_IDS], at[_IDS] + 16 * count, 16)
    keys = _texts(message, count, at[_KEY_ENDS], at[_KEYS])
    if nodes[_KEY_NULL]:
        keys = [key if message[at[_KEYS_VALID] + n // 8] >> n % 8 & 1 else None for n, key in enumerate(keys)]
    values_ = _texts(message, count, at[_VALUE_ENDS], at[_VALUES])
    times = struct.unpack_from(f"<{count}q", message, at[_TIMES])
    return [
        (
            partition,
            base + number,
            keys[number],
            values_[number],
            times[number],
            message[place : place + 16],
            None,
            None,
        )
        for number, place in enumerate(ids)
    ]


def _texts(message: bytes, count: int, ends: int, data: int) -> list[bytes | None]:
    found = struct.unpack_from(f"<{count + 1}i", message, ends)
    return [message[data + start : data + end] for start, end in pairwise(found)]
