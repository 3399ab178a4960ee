"""``BASE.index`` beside a segment: what a walk over its headers would find, so that opening a long segment is quick.

Blocks of rows, each with a checksum, appended when enough batches are new. It may be deleted, cut or spoilt at any
time: what does not prove itself is not used, and the segment is walked instead.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

import xxhash

from pxrs.logs.durable import write_all
from pxrs.logs.index import BatchIndex

BLOCK = 1_024
"""A block is written for this many new batches, and for the rest when the segment is full."""

_MAGIC = b"PXI1"
_HEAD = struct.Struct("<4sIqqqq")  # magic, length of the rows, first and count of batches, end position, end
_CHECKSUM = struct.Struct("<Q")  # over the head and the rows


class Saved(NamedTuple):
    """What an index file holds: so many bytes of it are good, and cover the segment up to a position and an offset."""

    size: int = 0
    batches: int = 0
    position: int = 0
    end: int = 0


class _Block(NamedTuple):
    saved: Saved
    rows: bytes


def load(path: str, index: BatchIndex) -> Saved:
    """Fill an empty index from a file, as far as its blocks are good."""
    saved = Saved()
    for block in _blocks(path):
        index.take(*_parse(block.rows, block.saved.batches - saved.batches))
        saved = block.saved
    return saved


def save(path: str, index: BatchIndex, position: int, end: int) -> Saved:
    """Append a block of the batches that the file does not have; whatever else stands there is cut off first."""
    before = BatchIndex()
    known = load(path, before)
    if not index.starts_with(before):  # it was written before a crash that has cut the segment
        known = Saved()
    names, columns = index.rows(known.batches)
    rows = json.dumps(names).encode() + b"\n" + columns
    head = _HEAD.pack(_MAGIC, len(rows), known.batches, len(index) - known.batches, position, end)
    block = head + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(head + rows)) + rows
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.ftruncate(fd, known.size)
        os.lseek(fd, known.size, os.SEEK_SET)
        write_all(fd, block)
    finally:
        os.close(fd)
    return Saved(known.size + len(block), len(index), position, end)


def _blocks(path: str) -> Iterator[_Block]:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return
    saved = Saved()
    while (block := _block(data, saved)) is not None:
        yield block
        saved = block.saved


def _block(data: bytes, before: Saved) -> _Block | None:
    """The block that follows; None if there is none, or none that is good."""
    start = before.size + _HEAD.size + _CHECKSUM.size
    if start > len(data):
        return None
    head = data[before.size : before.size + _HEAD.size]
    magic, length, first, count, position, end = _HEAD.unpack(head)
    rows = data[start : start + length]
    [digest] = _CHECKSUM.unpack_from(data, before.size + _HEAD.size)
    if magic != _MAGIC or first != before.batches or xxhash.xxh3_64_intdigest(head + rows) != digest:
        return None
    return _Block(Saved(start + length, first + count, position, end), rows)


def _parse(rows: bytes, count: int) -> tuple[list[str], bytes, int]:
    names, _, columns = rows.partition(b"\n")
    return json.loads(names), columns, count
