"""Finds the partition of a key: hash its bytes, reduce the hash to a number below the partition count.

The reductions, of a signed hash ``h`` and ``n`` partitions:

- ``pmod`` (the default): floor modulo, as Spark's ``pmod(h, n)``
- ``abs``: Java's ``abs(h % n)``, with the remainder taken first, so the smallest integer does no harm
- ``jump``: jump consistent hash of the unsigned value; a 32-bit hash is widened with zeros
- ``mask``: ``(h & 0x7fffffff) % n`` on the lowest 32 bits, as Kafka
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pxrs.errors import BadSetting
from pxrs.rules.routing.hashes import Hash, HashFunction, find_hash
from pxrs.rules.routing.keys import all_key_bytes, key_bytes, key_chunks
from pxrs.rules.routing.short_keys import short_hashes
from pxrs.rules.routing.vectorised import jump_buckets
from pxrs.settings import DEFAULT_HASH, DEFAULT_PARTITIONS, DEFAULT_REDUCE, MAX_PARTITIONS

NULL_KEY = -1
"""The answer of ``partitions_of`` for a null key; the producer puts a round-robin number there."""


class Reduction(NamedTuple):
    """Reduces a signed hash of some width to a partition, for one hash and for many."""

    one: Callable[[int, int, int], int]
    many: Callable[[NDArray[np.int64], int, int], NDArray[np.integer]]


@dataclass(frozen=True, slots=True, init=False)
class Partitioner:
    """The routing of one queue: ``Partitioner(partitions=256, hash="xxh64", reduce="jump")``."""

    partitions: int
    hash: str
    reduce: str
    _hash: Hash = field(repr=False, compare=False)

    def __init__(
        self,
        partitions: int = DEFAULT_PARTITIONS,
        hash: str | HashFunction = DEFAULT_HASH,
        reduce: str = DEFAULT_REDUCE,
    ) -> None:
        found = find_hash(hash)
        values = {
            "partitions": check_partitions(partitions),
            "hash": found.name,
            "reduce": check_reduce(reduce),
        }
        for name, value in {**values, "_hash": found}.items():
            object.__setattr__(self, name, value)

    def partition(self, key: object) -> int:
        """The partition of one key."""
        hashed = self._hash.one(key if type(key) is bytes else key_bytes(key))
        return _REDUCTIONS[self.reduce].one(hashed, self._hash.bits, self.partitions)

    def hash_of(self, key: object) -> int:
        """The hash of one key, before it is reduced to a partition: a signed number."""
        return self._hash.one(key_bytes(key))

    def partitions_of(self, keys: Iterable[object]) -> NDArray[np.int32]:
        """The partition of each key of a list, a numpy array or an Arrow array; -1 where a key is null.

        (A numpy array of fixed-width bytes has lost trailing zero bytes before it comes here.)
        """
        parts = [self._route(chunk) for chunk in key_chunks(keys)]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def _route(self, chunk: Any) -> NDArray[np.int32]:
        hashed, nulls = self._hashes(chunk)
        reduced = _REDUCTIONS[self.reduce].many(hashed, self._hash.bits, self.partitions)
        routed = reduced.astype(np.int32, copy=False)
        if len(nulls):
            routed[nulls] = NULL_KEY
        return routed

    def _hashes(self, chunk: Any) -> tuple[NDArray[np.int64], Sequence[int] | NDArray[np.intp]]:
        if self._hash.short is not None and (found := short_hashes(chunk, self._hash.short)) is not None:
            return found
        data, nulls = all_key_bytes(chunk)
        return self._hash.many(data), nulls


def check_partitions(count: object) -> int:
    """Return a usable partition count."""
    if type(count) is not int or not 1 <= count <= MAX_PARTITIONS:
        raise BadSetting(f"partitions = {count!r}: must be a whole number from 1 to {MAX_PARTITIONS}")
    return count


def check_reduce(name: object) -> str:
    """Return a known reduction's name."""
    if isinstance(name, str) and name in _REDUCTIONS:
        return name
    raise BadSetting(f"reduce {name!r} is not known; known are {', '.join(_REDUCTIONS)}")


def round_robin(start: int, count: int, partitions: int) -> NDArray[np.int32]:
    """The partitions of ``count`` messages without a key, of which the first goes to ``start`` (modulo)."""
    return ((np.arange(count) + start % partitions) % partitions).astype(np.int32)


def jump(key: int, buckets: int) -> int:
    """Jump consistent hash (Lamping and Veach, 2014) of an unsigned 64-bit key."""
    here, following = 0, 0
    while following < buckets:
        here = following
        key = (key * 2862933555777941757 + 1) & 0xFFFF_FFFF_FFFF_FFFF
        following = int((here + 1) * (float(1 << 31) / float((key >> 33) + 1)))
    return here


def _pmod(hashed: int, _bits: int, count: int) -> int:
    return hashed % count


def _pmod_many(hashed: NDArray[np.int64], _bits: int, count: int) -> NDArray[np.int64]:
    # The same as hashed % count (where a product overflows, the difference wraps back), in a third of its
    # time: numpy has a fast way for // by one number, and none for %.
    return hashed - hashed // count * count


def _abs(hashed: int, _bits: int, count: int) -> int:
    return abs(hashed) % count


def _abs_many(hashed: NDArray[np.int64], _bits: int, count: int) -> NDArray[np.int64]:
    return np.abs(np.fmod(hashed, count))


def _jump(hashed: int, bits: int, count: int) -> int:
    return jump(hashed & ((1 << bits) - 1), count)


def _jump_many(hashed: NDArray[np.int64], bits: int, count: int) -> NDArray[np.int32]:
    return jump_buckets(hashed.view(np.uint64) & np.uint64((1 << bits) - 1), count)


def _mask(hashed: int, _bits: int, count: int) -> int:
    return (hashed & 0x7FFF_FFFF) % count


def _mask_many(hashed: NDArray[np.int64], bits: int, count: int) -> NDArray[np.int64]:
    return _pmod_many(hashed & 0x7FFF_FFFF, bits, count)


_REDUCTIONS = {
    "pmod": Reduction(_pmod, _pmod_many),
    "abs": Reduction(_abs, _abs_many),
    "jump": Reduction(_jump, _jump_many),
    "mask": Reduction(_mask, _mask_many),
}
