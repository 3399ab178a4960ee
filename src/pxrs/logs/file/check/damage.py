"""Finds the first damaged message of a partition, and what would be lost if the partition ended there."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa

from pxrs.errors import Damaged
from pxrs.logs.file.check.inspection import walk_segment
from pxrs.logs.file.durable_mark import Mark, read_mark, refuse_shorter
from pxrs.logs.file.sealed_files import bases_of
from pxrs.logs.file.segment.file import segment_path
from pxrs.logs.file.segment.index import BatchIndex
from pxrs.logs.file.segment.scan import Tail
from pxrs.logs.formats.manifest import Manifest, Sealed, read_manifest
from pxrs.logs.formats.sealed_parquet import check_sealed, digest_of
from pxrs.logs.formats.segment import CONTINUATION, MAX_HEADER, SCHEMA_MESSAGE, NotAHeader, intact, read_header


class Damage(NamedTuple):
    """The first damage: the partition is whole up to ``offset``, which would be at byte ``position`` of this file.

    ``end`` is the offset behind the last message that is known to have been stored.
    """

    path: str
    position: int
    offset: int
    end: int
    why: str

    @property
    def lost(self) -> int:
        return max(0, self.end - self.offset)


def find_damage(directory: str) -> Damage | None:
    """Read everything, in order, up to the first message that is damaged or missing. The manifest must be whole."""
    manifest = read_manifest(directory)
    for sealed in manifest.files:
        why = fault_of(os.path.join(directory, sealed.file), sealed)
        if why:
            path = os.path.join(directory, sealed.file)
            return Damage(path, 0, sealed.start, _known_end(directory, manifest, sealed.end), why)
    return _damage_in_segments(directory, manifest)


def fault_of(path: str, sealed: Sealed) -> str:
    """The fault of a sealed file; "" for none."""
    try:
        if digest_of(path) != sealed.xxh3:
            return f"{path}: this sealed segment, offsets {sealed.start} to {sealed.end - 1}, fails its checksum"
        check_sealed(path, sealed.start, sealed.end)
    except (Damaged, OSError) as error:
        return str(error)
    return ""


def _damage_in_segments(directory: str, manifest: Manifest) -> Damage | None:
    sealed_end = manifest.summary.sealed_end
    bases = [base for base in bases_of(directory, "arrow") if base >= sealed_end]
    expected, mark = sealed_end if sealed_end or not bases else bases[0], read_mark(directory)
    for base in bases:
        path = segment_path(directory, base)
        if base != expected:
            why = f"{directory}: the offsets {expected} to {base - 1} are missing"
            return Damage(path, 0, expected, _known_end(directory, manifest, base), why)
        index = BatchIndex()
        found, expected = _damage_in(path, base, index, _torn_from(base, mark) if base == bases[-1] else None)
        if found is not None:
            return found._replace(end=_known_end(directory, manifest, found.end))
    return None if mark is None else _missing_tail(directory, mark, bases[-1] if bases else 0, expected)


def _missing_tail(directory: str, mark: Mark, base: int, end: int) -> Damage | None:
    """A partition that ends before the durable mark has been cut, or has lost its last file."""
    path = segment_path(directory, base)
    size = os.path.getsize(path) if os.path.exists(path) else 0
    try:
        refuse_shorter(directory, mark, Mark(base, size))
    except Damaged as error:
        return Damage(path, size, end, end, str(error))
    return None


def _torn_from(base: int, mark: Mark | None) -> int | None:
    """The byte of the last segment behind which a crash may have left unfinished writes: not before the mark."""
    if mark is None or mark.base < base:
        return 0
    return mark.position if mark.base == base else None


def _damage_in(path: str, base: int, index: BatchIndex, torn_from: int | None) -> tuple[Damage | None, int]:
    """The first damage in a segment, and where the segment ends.

    What a crash leaves at the very end is none: ``torn_from`` is the byte from which on that may be, None for nowhere.
    """
    try:
        position, end, tail = walk_segment(path, base, index)
        may_be_torn = tail is Tail.CLEAN or (torn_from is not None and position >= torn_from)
        why = "" if may_be_torn else f"{path}: the batch at byte {position}, offset {end}, is damaged"
    except Damaged as error:
        position, end, why = 0, base, str(error)
        if len(index):
            position, end = _after(path, index)
    bad = _first_bad(path, index, position)
    if bad is not None:
        position, end = index.positions[bad], index.bases[bad]
        why = f"{path}: the batch at byte {position}, offset {end}, fails its checksum"
    if not why:
        return None, end
    return Damage(path, position, end, _last_end(path, position, end), why), end


def _after(path: str, index: BatchIndex) -> tuple[int, int]:
    """The byte and the offset behind the last batch that was walked."""
    with open(path, "rb") as file:
        file.seek(index.positions[-1])
        header = read_header(file.read(MAX_HEADER))
    return index.positions[-1] + header.length, header.end


def _first_bad(path: str, index: BatchIndex, end: int) -> int | None:
    if not len(index):
        return None
    with pa.memory_map(path) as file:
        stored = file.read_buffer()
    borders = [*index.positions, end]
    for number, (low, high) in enumerate(pairwise(borders)):
        if not intact(stored.slice(low, high - low)):
            return number
    return None


def _last_end(path: str, position: int, end: int) -> int:
    """The highest offset in any header behind a damaged place."""
    with open(path, "rb") as file:
        file.seek(position or len(SCHEMA_MESSAGE))
        rest = file.read()
    at = rest.find(CONTINUATION)
    while at >= 0:
        with suppress(NotAHeader):
            end = max(end, read_header(rest[at : at + MAX_HEADER]).end)
        at = rest.find(CONTINUATION, at + 1)
    return end


def _known_end(directory: str, manifest: Manifest, at_least: int) -> int:
    bases = bases_of(directory, "arrow")
    ends = [at_least, manifest.summary.sealed_end, *bases]
    with suppress(Damaged):
        ends += [walk_segment(segment_path(directory, base), base, BatchIndex()).end for base in bases[-1:]]
    return max(ends)
