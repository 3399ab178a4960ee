"""The hashes that route a key: a pure function of its bytes, equal in every process and language.

Never Python's own ``hash()``: it is salted per process, so two producers would disagree.

A hash has a name, which is recorded with the queue, and a width. Its value is a signed integer of that width,
as Java and Spark hold it; ``xxh64`` has 64 bits, all the others have 32:

- ``xxh64`` (seed 0); ``xxh64-spark`` (seed 42, the default) is what Spark's ``xxhash64`` computes
- ``murmur3_128``, ``murmur3_32``, ``sha256`` as Guava's ``asInt``: the first four digest bytes, little-endian
- ``java``: ``String.hashCode``, over UTF-16 units; a key that is not UTF-8 is refused
- ``kafka``: murmur2 as in Kafka's default partitioner (reduce it with ``mask`` to meet Kafka's choice)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import repeat
from operator import index
from typing import NamedTuple, TypeAlias

import mmh3
import numpy as np
import xxhash
from numpy.typing import NDArray

from pxrs.errors import BadSetting
from pxrs.rules.routing import vectorised
from pxrs.rules.routing.short_keys import ShortHash, xxh64_short
from pxrs.rules.routing.text_hashes import java_hash, murmur2

HashFunction: TypeAlias = Callable[[bytes], int]


@dataclass(frozen=True, slots=True)
class Hash:
    """A named hash: of one key, and of many at once with the same values (``int64``, sign-extended)."""

    name: str
    bits: int
    one: HashFunction
    many: Callable[[list[bytes]], NDArray[np.int64]]
    short: ShortHash | None = None
    """The faster function for many short keys, if there is one."""


class Registered(NamedTuple):
    hash: Hash
    origin: tuple[object, ...]


def find_hash(wanted: str | HashFunction) -> Hash:
    """The hash of that name: built in, registered in this process, or an installed package's entry point."""
    if not isinstance(wanted, str):
        return _of_function(wanted)
    found = _of_this_process(wanted)
    if found is None:
        raise BadSetting(
            f"hash {wanted!r} is not known in this process; known are {', '.join(known_hashes())}. A hash of "
            f"your own must be registered in every process first: pxrs.register_hash({wanted!r}, function)"
        )
    return found


def _of_this_process(name: str) -> Hash | None:
    return _registered[name].hash if name in _registered else _BUILT_IN.get(name)


def known_hashes() -> list[str]:
    """The names that ``find_hash`` finds: the built-in ones, then what was registered in this process."""
    return [*_BUILT_IN, *sorted(_registered)]


def register_hash(name: str, function: HashFunction, bits: int = 64) -> None:
    """Make a hash of your own known by the name that queues record.

    Doing it again is fine (a module that is loaded twice); another function under a taken name is refused,
    because keys would silently change their partitions.
    """
    made = _of_user(name, function, bits)
    origin = _origin(function, bits)
    if name in _registered and _registered[name].origin != origin:
        raise BadSetting(f"hash {name!r} is registered already, with another function")
    _registered[name] = Registered(made, origin)


def _origin(function: HashFunction, bits: int) -> tuple[object, ...]:
    """The module and name of a function: they stay the same when its module is loaded again."""
    name = getattr(function, "__qualname__", "<object>")
    # Lambdas and inner functions share their names: such a one is the same only if it is the very same.
    return getattr(function, "__module__", None), function if "<" in name else name, bits


def _of_function(function: object) -> Hash:
    name = getattr(function, "__name__", "")
    if not callable(function) or not name.isidentifier():
        raise BadSetting(f"hash {function!r} has no name to record; use register_hash(name, function)")
    return _of_user(name, function, 64)


def _of_user(name: object, function: HashFunction, bits: int) -> Hash:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise BadSetting(f"hash name {name!r}: must be printable text")
    if name in _BUILT_IN:
        raise BadSetting(f"hash name {name!r} belongs to a built-in hash")
    if bits not in (32, 64):
        raise BadSetting(f"hash {name!r}: bits = {bits!r} must be 32 or 64")
    if not callable(function):
        raise BadSetting(f"hash {name!r}: {function!r} cannot be called")
    one = partial(_signed_result, name, function, bits)
    return Hash(name, bits, one, partial(_each, one))


def _signed_result(name: str, function: HashFunction, bits: int, data: bytes) -> int:
    value = function(data)
    try:
        return signed(index(value), bits)
    except TypeError:
        raise BadSetting(f"hash {name!r} returned {type(value).__name__}, not a whole number") from None


def signed(value: int, bits: int) -> int:
    """The lowest ``bits`` of a value, read as a two's complement number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _each(one: HashFunction, keys: list[bytes]) -> NDArray[np.int64]:
    return np.fromiter(map(one, keys), np.int64, len(keys))


def _xxh64(seed: int, data: bytes) -> int:
    return signed(xxhash.xxh64_intdigest(data, seed), 64)


def _xxh64_many(seed: int, keys: list[bytes]) -> NDArray[np.int64]:
    hashed = map(xxhash.xxh64_intdigest, keys, repeat(seed))
    return np.fromiter(hashed, np.uint64, len(keys)).view(np.int64)


def _as_int(digest: bytes) -> int:
    """Guava's ``HashCode.asInt``."""
    return int.from_bytes(digest[:4], "little", signed=True)


def _murmur3_128(data: bytes) -> int:
    return _as_int(mmh3.mmh3_x64_128_digest(data))


def _murmur3_128_many(keys: list[bytes]) -> NDArray[np.int64]:
    digests = np.fromiter(map(mmh3.mmh3_x64_128_digest, keys), "S16", len(keys))
    return digests.view("<i4")[::4].astype(np.int64)


def _sha256(data: bytes) -> int:
    return _as_int(sha256(data).digest())


# Java's own words for these values are in the module's docstring; the widths decide how they are reduced.
_BUILT_IN = {
    made.name: made
    for made in (
        Hash("xxh64-spark", 64, partial(_xxh64, 42), partial(_xxh64_many, 42), partial(xxh64_short, 42)),
        Hash("xxh64", 64, partial(_xxh64, 0), partial(_xxh64_many, 0), partial(xxh64_short, 0)),
        Hash("murmur3_128", 32, _murmur3_128, _murmur3_128_many),
        Hash("murmur3_32", 32, mmh3.mmh3_32_sintdigest, partial(_each, mmh3.mmh3_32_sintdigest)),
        Hash("sha256", 32, _sha256, partial(_each, _sha256)),
        Hash("java", 32, java_hash, vectorised.java_hashes),
        Hash("kafka", 32, murmur2, vectorised.murmur2_hashes),
    )
}

_registered: dict[str, Registered] = {}
"""The hashes that this process registered with ``register_hash``: a recorded name must find its function again."""
