"""The index of one segment: the position of each batch in some forty bytes, since a segment may hold very many."""

from __future__ import annotations

import json
import os
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import xxhash

from pxrs.io.durable import write_all
from pxrs.logs.base import Stamp
from pxrs.logs.formats.segment import Header

_NOBODY = -1


class BatchIndex:
    """Parallel columns, one row for each batch, in the order of the file."""

    def __init__(self) -> None:
        self.positions = array("q")
        self.bases = array("q")
        self.last_us = array("q")
        self.verified = bytearray()
        self._producers = array("i")
        self._sequences = array("q")
        self._numbers: dict[str, int] = {}
        self._highest = array("q")

    def __len__(self) -> int:
        return len(self.bases)

    def add(self, position: int, header: Header) -> None:
        self.positions.append(position)
        self.bases.append(header.base)
        self.last_us.append(header.last_us)
        self.verified.append(False)
        self._producers.append(_NOBODY if header.stamp is None else self._note(header.stamp))
        self._sequences.append(0 if header.stamp is None else header.stamp.sequence)

    def _note(self, stamp: Stamp) -> int:
        """The producer's number here; its highest sequence makes the search for a new stamp cost nothing."""
        number = self._numbers.setdefault(stamp.producer, len(self._numbers))
        if number == len(self._highest):
            self._highest.append(stamp.sequence)
        self._highest[number] = max(stamp.sequence, self._highest[number])
        return number

    def _columns(self) -> tuple[array[int], ...]:
        """The columns that are written."""
        return self.positions, self.bases, self.last_us, self._producers, self._sequences

    def rows(self, first: int) -> tuple[list[str], bytes]:
        """The batches from a number on: the producers they name, and their columns as bytes."""
        return list(self._numbers), b"".join(column[first:].tobytes() for column in self._columns())

    def starts_with(self, other: BatchIndex) -> bool:
        """Whether the batches of another index are the first of these."""
        pairs = zip(self._columns(), other._columns(), strict=True)
        return all(mine[: len(theirs)] == theirs for mine, theirs in pairs)

    def take(self, names: list[str], columns: bytes, count: int) -> None:
        """Put back what ``rows`` has given."""
        at = 0
        for column in self._columns():
            column.frombytes(columns[at : at + count * column.itemsize])
            at += count * column.itemsize
        self.verified.extend(bytes(count))
        self._numbers = {name: number for number, name in enumerate(names)}
        self._highest.extend([-1] * (len(names) - len(self._highest)))
        for producer, sequence in zip(self._producers[-count:], self._sequences[-count:], strict=True):
            if producer != _NOBODY:
                self._highest[producer] = max(sequence, self._highest[producer])

    def cut(self, count: int) -> None:
        """Keep only the first ``count`` batches."""
        del self.verified[count:]
        for column in self._columns():
            del column[count:]

    def number_of(self, offset: int) -> int:
        """The index of the batch that holds this offset."""
        return bisect_right(self.bases, offset) - 1

    def find(self, stamp: Stamp) -> int | None:
        """The first offset of the batch with this stamp. Only a retry is searched for: others are ahead of all."""
        producer = self._numbers.get(stamp.producer)
        if producer is None or stamp.sequence > self._highest[producer]:
            return None
        at = -1
        try:
            while True:
                at = self._sequences.index(stamp.sequence, at + 1)
                if self._producers[at] == producer:
                    return self.bases[at]
        except ValueError:  # no more of them
            return None


# ---- the index as a file --------------------------------------------------------------------------------------------
# Blocks of rows, each with a checksum, appended when enough batches are new. It may be deleted, cut or spoilt at any
# time: what does not prove itself is not used, and the segment is walked instead.


BLOCK = 1_024
"""A block is written for this many new batches, and for the rest when the segment is full."""

_MAGIC = b"PXI1"
_HEAD = struct.Struct("<4sIqqqq")  # magic, length of the rows, first and count of batches, end position, end
_CHECKSUM = struct.Struct("<Q")  # over the head and the rows


class Saved(NamedTuple):
    """The good part of an index file: this many bytes, which cover the segment up to a position and an offset."""

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
    """Append a block of the batches that the file does not have; anything else at its end is cut off first."""
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
