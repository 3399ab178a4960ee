"""Hashes and jump over many keys at once, in numpy; value for value the same as over one.

Keys of one length form a matrix, a row per key; the work then goes over its columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pxrs.rules.routing.text_hashes import murmur2, utf16

_FEW = 16
"""Up to this many keys of one length are hashed one by one: a column of them would not pay for the call into numpy."""


def java_hashes(keys: list[bytes]) -> NDArray[np.int64]:
    """``String.hashCode`` of each key."""
    texts = list(map(utf16, keys))
    hashed = np.empty(len(keys), np.int64)
    for places in _by_length(texts):
        units = _matrix(texts, places, "<u2").astype(np.uint32)
        hashed[places] = (units @ _powers_of_31(units.shape[1])).view(np.int32)
    return hashed


def _powers_of_31(count: int) -> NDArray[np.uint32]:
    return np.cumprod(np.r_[1, np.full(max(count - 1, 0), 31)], dtype=np.uint32)[:count][::-1]


def murmur2_hashes(keys: list[bytes]) -> NDArray[np.int64]:
    """Kafka's murmur2 of each key."""
    hashed = np.empty(len(keys), np.int64)
    for places in _by_length(keys):
        if len(places) < _FEW:
            hashed[places] = [murmur2(keys[place]) for place in places]
        else:
            hashed[places] = _murmur2_columns(_matrix(keys, places, "u1")).view(np.int32)
    return hashed


def _murmur2_columns(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    count, length = rows.shape
    mix = np.uint32(0x5BD1E995)
    whole = length & ~3
    values = np.full(count, 0x9747B28C ^ length, np.uint32)
    words = np.ascontiguousarray(rows[:, :whole]).view("<u4").T * mix
    words = (words ^ words >> np.uint32(24)) * mix
    for column in words:
        values = values * mix ^ column
    if length > whole:
        for place in range(whole, length):
            values ^= rows[:, place].astype(np.uint32) << np.uint32(8 * (place - whole))
        values *= mix
    values = (values ^ values >> np.uint32(13)) * mix
    return values ^ values >> np.uint32(15)


def _by_length(rows: list[bytes]) -> Iterator[NDArray[np.intp]]:
    """The places of the rows of each length that occurs."""
    if not rows:
        return
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    order = np.argsort(lengths, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1)


def _matrix(rows: list[bytes], places: NDArray[np.intp], unit: str) -> NDArray[Any]:
    joined = np.frombuffer(b"".join([rows[place] for place in places]), unit)
    return joined.reshape(len(places), len(joined) // len(places))


def jump_buckets(keys: NDArray[np.uint64], buckets: int) -> NDArray[np.int32]:
    """Jump consistent hash of each key. Give it a cache-sized piece at a time."""
    landed = np.zeros(len(keys), np.int32)
    places = np.arange(len(keys))
    here = np.zeros(len(keys), np.int64)
    while len(places):
        landed[places] = here
        keys = keys * np.uint64(2862933555777941757) + np.uint64(1)
        share = float(1 << 31) / ((keys >> np.uint64(33)).astype(np.float64) + 1.0)
        following = ((here + 1) * share).astype(np.int64)
        # Most keys are through after a few rounds: go on with the others only.
        inside = np.flatnonzero(following < buckets)
        places, keys, here = places[inside], keys[inside], following[inside]
    return landed
