"""Java's and Kafka's 32-bit hashes, on one key each: no library has them."""

from __future__ import annotations

import struct

from pxrs.errors import BadKey
from pxrs.rules.routing.keys import shown

_M = 0x5BD1E995
_SEED = 0x9747B28C
_32 = 0xFFFF_FFFF


def utf16(data: bytes) -> bytes:
    """UTF-8 as the UTF-16 units that Java strings consist of, little-endian."""
    try:
        return data.decode().encode("utf-16-le")
    except UnicodeDecodeError:
        raise BadKey(f"hash 'java' is a hash of text, and key {shown(data)} is not UTF-8") from None


def java_hash(data: bytes) -> int:
    """``String.hashCode``: signed 32 bits."""
    value = 0
    for (unit,) in struct.iter_unpack("<H", utf16(data)):
        value = (31 * value + unit) & _32
    return _signed(value)


def murmur2(data: bytes) -> int:
    """Kafka's ``Utils.murmur2``: signed 32 bits."""
    whole = len(data) & ~3
    value = (_SEED ^ len(data)) & _32
    for (word,) in struct.iter_unpack("<I", memoryview(data)[:whole]):
        word = word * _M & _32
        value = (value * _M & _32) ^ ((word ^ word >> 24) * _M & _32)
    if tail := data[whole:]:
        value = (value ^ int.from_bytes(tail, "little")) * _M & _32
    value = (value ^ value >> 13) * _M & _32
    return _signed(value ^ value >> 15)


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value
