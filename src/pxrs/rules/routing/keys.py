"""Turns keys, as users write them, into the bytes that are hashed. Every hash sees the same bytes.

- ``str`` is its UTF-8. Nothing is normalised: "é" as one code point (NFC) and as two (NFD) are two keys.
- ``bytes``, ``bytearray`` and ``memoryview`` are taken as they are, so ``"a"`` and ``b"a"`` are the same key.
- ``uuid.UUID`` is 16 bytes: its high and its low half, each as a little-endian long, as ThingsBoard has it.
- ``None`` has no bytes: the producer spreads such messages round robin. All else is refused by type.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from pxrs.errors import BadKey

CHUNK = 32_768
"""Keys are worked on in chunks of this many: a chunk's arrays stay in the processor's cache."""


def key_bytes(key: object) -> bytes:
    """The bytes of one key."""
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return _utf8(key)
    if isinstance(key, (bytearray, memoryview)):
        return bytes(key)
    if isinstance(key, uuid.UUID):
        return key.bytes[7::-1] + key.bytes[:7:-1]
    if key is None:
        raise BadKey("a key of None has no partition of its own: the producer sends such messages round robin")
    raise BadKey(f"a key is str, bytes or uuid.UUID, not {type(key).__name__}: {shown(key)}")


def shown(key: object) -> str:
    """The key for an error text: cut short when it is long."""
    start = key[:61] if isinstance(key, (str, bytes)) else key
    text = repr(start)
    return text if len(text) <= 64 else text[:61] + "..."


def _utf8(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise BadKey(f"key {shown(key)} has no UTF-8 form: lone surrogate at position {error.start}") from None


def all_key_bytes(chunk: Any) -> tuple[list[bytes], list[int]]:
    """The bytes of a chunk of keys, and the positions of nulls among them (which become empty bytes)."""
    keys: list[Any] = chunk if isinstance(chunk, list) else chunk.to_pylist()
    kinds = set(map(type, keys))
    if kinds <= {bytes}:
        return keys, []
    if kinds == {str}:
        try:
            return list(map(str.encode, keys)), []
        except UnicodeEncodeError:
            pass  # the slow way below names the key
    nulls = [place for place, key in enumerate(keys) if key is None]
    return [b"" if key is None else key_bytes(key) for key in keys], nulls


def key_chunks(keys: Iterable[object]) -> Iterator[Any]:
    """The keys of a list, numpy array, Arrow array or other iterable: lists or Arrow arrays of at most CHUNK."""
    if isinstance(keys, (str, bytes, bytearray, memoryview)):
        raise BadKey(f"many keys are wanted here; for the one key {shown(keys)} ask partition()")
    if type(keys).__module__.partition(".")[0] == "pyarrow":
        yield from _arrow_chunks(keys)
    elif isinstance(keys, np.ndarray):
        yield from _numpy_chunks(keys)
    else:
        rows = keys if isinstance(keys, list) else list(keys)
        for start in range(0, len(rows), CHUNK):
            yield rows[start : start + CHUNK]


def _numpy_chunks(keys: np.ndarray[Any, Any]) -> Iterator[list[Any]]:
    if keys.ndim != 1:
        raise BadKey(f"keys must be an array of one dimension, not of {keys.ndim}")
    for start in range(0, len(keys), CHUNK):
        yield keys[start : start + CHUNK].tolist()


def _arrow_chunks(keys: Any) -> Iterator[Any]:
    import pyarrow as pa  # here, because hashing alone must stay cheap to import

    for array in keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]:
        plain = _without_text(array)
        for start in range(0, len(plain), CHUNK):
            yield plain.slice(start, CHUNK)


def _without_text(array: Any) -> Any:
    # Arrow's text is UTF-8 already: seen as binary it need not become Python text and back. What is no text
    # or binary is left to key_bytes: UUIDs have a rule of their own, and numbers are refused there.
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    texts = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.binary_view())
    if kind in texts or pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.large_binary())
    return array
