"""XXH64 over a whole chunk of short keys, as Arrow stores them: one run of bytes, and where each key starts.

No Python object is made per key, which is most of the cost of hashing a short one. All keys of one length go
through each step together, so this pays only where lengths are few; ``short_hashes`` says None where it
does not, and the keys are then hashed one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
Places: TypeAlias = NDArray[np.int64]
ShortHash: TypeAlias = Callable[[Bytes, Places, int], NDArray[np.int64]]
"""Hashes the keys of one length that start at these places."""

LONGEST = 31
"""XXH64 works in another way from 32 bytes on, where the cost of a Python object matters less."""
ENOUGH = 512
"""The average number of keys of each length that pays for the call into numpy."""

is_on = True
"""The switch of this short way (ADR 0043). The partitioning benchmark turns it off to show its worth."""

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579, 2870177450012600261,
    )
)  # fmt: skip


class Packed(NamedTuple):
    data: Bytes
    offsets: Places
    nulls: NDArray[np.intp]


def short_hashes(keys: Any, hashing: ShortHash) -> tuple[NDArray[np.int64], NDArray[np.intp]] | None:
    """The hashes of a chunk of keys and the places of the nulls, or None where this is not the way."""
    packed = _pack(keys) if is_on and len(keys) >= ENOUGH and _is_short(keys[0]) else None
    if packed is None:
        return None
    lengths = np.diff(packed.offsets)
    if lengths.max() > LONGEST:
        return None
    counts = np.bincount(lengths)
    if np.count_nonzero(counts) * ENOUGH > len(lengths):
        return None
    return _by_length(packed, lengths, counts, hashing), packed.nulls


def _is_short(key: Any) -> bool:
    # A glance at one key saves packing what cannot be hashed here. Null and other kinds: let packing decide.
    return not isinstance(key, (str, bytes)) or len(key) <= LONGEST


def _pack(keys: Any) -> Packed | None:
    """Arrow's own form of the keys; None if some key is of a kind that only ``key_bytes`` can judge."""
    import pyarrow as pa

    try:
        array = pa.array(keys, pa.large_binary()) if isinstance(keys, list) else keys
    except (TypeError, ValueError):
        return None
    if array.type != pa.large_binary():
        return None
    _, offsets, data = array.buffers()
    nulls = np.flatnonzero(array.is_null()) if array.null_count else np.empty(0, np.intp)
    within = slice(array.offset, array.offset + len(array) + 1)
    return Packed(np.frombuffer(data or b"", np.uint8), np.frombuffer(offsets, np.int64)[within], nulls)


def _by_length(packed: Packed, lengths: Places, counts: Places, hashing: ShortHash) -> NDArray[np.int64]:
    starts = packed.offsets[:-1]
    present = np.flatnonzero(counts).tolist()
    if len(present) == 1:
        return hashing(packed.data, starts, present[0])
    hashed = np.empty(len(lengths), np.int64)
    for length in present:
        places = np.flatnonzero(lengths == length)
        hashed[places] = hashing(packed.data, starts[places], length)
    return hashed


def xxh64_short(seed: int, data: Bytes, starts: Places, length: int) -> NDArray[np.int64]:
    """XXH64 of the keys of one length, at most 31 bytes."""
    value = np.full(len(starts), (seed + int(_P5) + length) % 2**64, np.uint64)
    words, half = length & ~7, length & ~3
    for at in range(0, words, 8):
        lane = _read(data, "<u8", starts + at) * _P2
        value = _turn(value ^ _turn(lane, 31) * _P1, 27) * _P1 + _P4
    if half > words:
        value = _turn(value ^ _read(data, "<u4", starts + words).astype(np.uint64) * _P1, 23) * _P2 + _P3
    for at in range(half, length):
        value = _turn(value ^ data[starts + at].astype(np.uint64) * _P5, 11) * _P1
    value = (value ^ value >> np.uint64(33)) * _P2
    value = (value ^ value >> np.uint64(29)) * _P3
    return (value ^ value >> np.uint64(32)).view(np.int64)


def _read(data: Bytes, unit: str, places: Places) -> NDArray[Any]:
    """The words that begin at these places, aligned or not: a view that has a word begin at every byte."""
    size = np.dtype(unit).itemsize
    return np.ndarray((len(data) - size + 1,), unit, data, strides=(1,))[places]


def _turn(value: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    turned = value << np.uint64(bits)
    turned |= value >> np.uint64(64 - bits)
    return turned
