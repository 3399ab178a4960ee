"""How fast keys are routed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from benchmarks.harness import Result, rate, require_equal, without
from pxrs.rules.routing import short_keys
from pxrs.rules.routing.partitioner import Partitioner

SUMMARY = "keys routed per second, one core: partitions_of against plain Python loops"
COUNT = 256


def run(quick: bool) -> Result:
    number = 200_000 if quick else 1_000_000
    keys = [b"acct-%012d" % n for n in range(number)]  # 17 bytes each
    figures = _ours(keys)
    peers = _peers(keys)
    pairs = {
        "xxh64-spark/pmod, list of bytes": ("loop: xxhash and %", "loop: partition(key)", "loop: zlib.crc32 and %"),
        "xxh64-spark/pmod, list of str": ("loop: encode, xxhash and %",),
        "xxh64-spark/pmod, Arrow string": ("loop: to_pylist, xxhash and %",),
        "xxh64/jump, list of bytes": ("loop: xxhash and jump",),
        "kafka/mask, list of bytes": ("loop: murmur2 in Python",),
    }
    ratios = {f"{ours} / {peer}": figures[ours] / peers[peer] for ours, against in pairs.items() for peer in against}
    return Result("partitioning", figures, peers, ratios)


def _ours(keys: list[bytes]) -> dict[str, float]:
    texts = [key.decode() for key in keys]
    forms: dict[str, Any] = {
        "list of bytes": keys,
        "list of str": texts,
        "Arrow binary": pa.array(keys),
        "Arrow string": pa.array(texts),
        "numpy bytes": np.array(keys),
    }
    ways = {("xxh64-spark", "pmod"): list(forms), ("xxh64", "jump"): list(forms)}
    for name in ("murmur3_128", "murmur3_32", "sha256", "java"):
        ways[name, "abs"] = ["list of bytes"]
    ways["kafka", "mask"] = ["list of bytes"]
    found = {}
    for (name, reduce), wanted in ways.items():
        routing = Partitioner(COUNT, name, reduce)
        for form in wanted:
            found[f"{name}/{reduce}, {form}"] = rate(lambda: routing.partitions_of(forms[form]), len(keys))  # noqa: B023 - called before the loop goes on
    plain = without(short_keys, "is_on", lambda: Partitioner(COUNT).partitions_of(forms["Arrow string"]))
    found["xxh64-spark/pmod, Arrow string, one key after the other"] = rate(plain, len(keys))
    return found


def _peers(keys: list[bytes]) -> dict[str, float]:
    texts = [key.decode() for key in keys]
    array = pa.array(texts)
    one_by_one = Partitioner(COUNT).partition
    spark, jumping, kafka = (
        Partitioner(COUNT, *way).partitions_of(keys).tolist()
        for way in (("xxh64-spark", "pmod"), ("xxh64", "jump"), ("kafka", "mask"))
    )
    # (the peer, what must come out of it)
    loops: dict[str, tuple[Callable[[], list[int]], list[int] | None]] = {
        "loop: xxhash and %": (lambda: [_xxh64(key) % COUNT for key in keys], spark),
        "loop: encode, xxhash and %": (lambda: [_xxh64(text.encode()) % COUNT for text in texts], spark),
        "loop: to_pylist, xxhash and %": (
            lambda: [_xxh64(text.encode()) % COUNT for text in array.to_pylist()],
            spark,
        ),
        "loop: partition(key)": (lambda: [one_by_one(key) for key in keys], spark),
        "loop: zlib.crc32 and %": (lambda: [zlib.crc32(key) % COUNT for key in keys], None),
        "loop: xxhash and jump": (lambda: [_jump(xxhash.xxh64_intdigest(key)) for key in keys], jumping),
        "loop: murmur2 in Python": (lambda: [(_murmur2(key) & 0x7FFFFFFF) % COUNT for key in keys], kafka),
    }
    for name, (loop, expected) in loops.items():
        if expected is not None:
            require_equal(name, expected, loop())
    return {name: rate(loop, len(keys)) for name, (loop, _) in loops.items()}


def _xxh64(key: bytes) -> int:
    value = xxhash.xxh64_intdigest(key, 42)
    return value - (1 << 64) if value >> 63 else value


def _jump(key: int) -> int:
    here, following = 0, 0
    while following < COUNT:
        here = following
        key = (key * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        following = int((here + 1) * (2147483648.0 / ((key >> 33) + 1)))
    return here


def _murmur2(data: bytes) -> int:
    """As clients of Kafka in pure Python do it: word by word."""
    value = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        word = word * 0x5BD1E995 & 0xFFFFFFFF
        word = (word ^ word >> 24) * 0x5BD1E995 & 0xFFFFFFFF
        value = value * 0x5BD1E995 & 0xFFFFFFFF ^ word
    for place, byte in enumerate(data[whole:]):
        value ^= byte << 8 * place
    if len(data) > whole:
        value = value * 0x5BD1E995 & 0xFFFFFFFF
    value = (value ^ value >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    return value ^ value >> 15
