"""What the machine itself can do: the limits that a log cannot pass."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_BLOCK = 8 * 2**20
_SYNCS_AT_ONCE = 16  # as the log does it


def raw_write(place: Path, size: int) -> float:
    """Seconds to write so many bytes into a new file, one after the other, and to sync it."""
    block = memoryview(os.urandom(_BLOCK))
    path = place / "raw"
    began = time.perf_counter()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    left = size
    while left > 0:
        left -= os.write(fd, block[: min(left, _BLOCK)])
    os.fsync(fd)
    took = time.perf_counter() - began
    os.close(fd)
    path.unlink()
    return took


def raw_append(place: Path, size: int, files: int) -> float:
    """Seconds to add so many bytes to files that grow, the same to each, and to sync them all."""
    block = memoryview(os.urandom(max(1, size // files)))
    place.mkdir(exist_ok=True)
    paths = [place / f"raw-{number}" for number in range(files)]
    with ThreadPoolExecutor(_SYNCS_AT_ONCE) as threads:
        began = time.perf_counter()
        opened = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666) for path in paths]
        for fd in opened:
            rest = block
            while rest:
                rest = rest[os.write(fd, rest) :]
        list(threads.map(os.fdatasync, opened))
        took = time.perf_counter() - began
    for fd in opened:
        os.close(fd)
    return took


def memory_copy(size: int) -> float:
    """Seconds to copy so many bytes within the memory, in pieces that no cache holds."""
    source, target = memoryview(bytearray(4 * _BLOCK)), memoryview(bytearray(4 * _BLOCK))
    began = time.perf_counter()
    for _ in range(max(1, size // len(source))):
        target[:] = source
    return (time.perf_counter() - began) * size / (max(1, size // len(source)) * len(source))


@contextmanager
def counted_syncs() -> Iterator[list[str]]:
    """The syncs of this process while the block runs, by name."""
    seen: list[str] = []
    places: list[tuple[Any, str]] = [(os, "fsync"), (os, "fdatasync")]
    originals = [(place, name, getattr(place, name)) for place, name in places]

    def counting(name: str, original: Any) -> Any:
        def call(*arguments: Any) -> Any:
            seen.append(name)
            return original(*arguments)

        return call

    for place, name, original in originals:
        setattr(place, name, counting(name, original))
    try:
        yield seen
    finally:
        for place, name, original in originals:
            setattr(place, name, original)
