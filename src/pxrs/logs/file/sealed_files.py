"""The files of a partition, by their names and by the manifest: which there are, what is sealed, and what is left over.

``Listing`` reads the directory; the first line of the manifest is enough to say which files nobody needs any more.
Sweeps, readers, ``pxrs log verify`` and ``pxrs log repair`` all ask it. ``History`` reads the sealed files.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator

import pyarrow as pa

from pxrs.errors import Damaged
from pxrs.logs.base import Chunk, Piece
from pxrs.logs.batches import first_at
from pxrs.logs.formats.manifest import NAME, NOTHING, Manifest, Sealed, Summary, read_manifest, read_summary
from pxrs.logs.formats.sealed_parquet import SealedFile, digest_of, sealed_name

NEW_SEGMENT = "new-segment.tmp"
"""The name under which a writer makes a segment; the next writer removes it."""

_FILE = re.compile(r"(\d{20})\.(arrow|index|parquet)")
_BEGUN_BY_HOUSEKEEPING = re.compile(r"\d{20}\.parquet\.tmp|" + re.escape(NAME) + r"\.tmp")
_BEGUN_BY_WRITERS = re.compile(re.escape(NEW_SEGMENT) + r"|\d{20}\.arrow(\.cut-\d+(\.\d+)?)?\.tmp")


class Listing:
    """The files of one partition, from one look at its directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._bases: dict[str, set[int]] = {"arrow": set(), "index": set(), "parquet": set()}
        self._unfinished: list[tuple[str, bool]] = []
        for name in os.listdir(directory):
            if found := _FILE.fullmatch(name):
                self._bases[found[2]].add(int(found[1]))
            elif name.endswith(".tmp"):
                self._add_unfinished(name)

    def _add_unfinished(self, name: str) -> None:
        by_housekeeping = _BEGUN_BY_HOUSEKEEPING.fullmatch(name) is not None
        if by_housekeeping or _BEGUN_BY_WRITERS.fullmatch(name):
            self._unfinished.append((name, by_housekeeping))

    def bases(self, kind: str) -> list[int]:
        """The first offsets that the files of this kind are named by."""
        return sorted(self._bases[kind])

    def unfinished(self, by_writers: bool) -> list[str]:
        """Files that were begun under another name; a writer's own may be in use while its lock may be held."""
        return [self._path(name) for name, by_housekeeping in self._unfinished if by_housekeeping or by_writers]

    def superfluous(self, summary: Summary) -> list[str]:
        """Segments that were sealed, sealed files that never came into the manifest, indexes without a segment.

        Never the only copy of a message. What was trimmed goes by itself, after its delay.
        """
        start, sealed_end = summary
        arrow, parquet = self._bases["arrow"], self._bases["parquet"]
        sealed = {base for base in arrow & parquet if start <= base < sealed_end}
        found = [f"{base:020d}.arrow" for base in sealed]
        found += [sealed_name(base) for base in arrow & parquet if base >= sealed_end]
        found += [f"{base:020d}.index" for base in self._bases["index"] - (arrow - sealed) if base >= start]
        return sorted(self._path(name) for name in found)

    def trimmed(self, summary: Summary) -> list[str]:
        """Files of messages that nobody may read any more."""
        return [
            self._path(f"{base:020d}.{kind}")
            for kind, bases in self._bases.items()
            for base in bases
            if base < summary.start
        ]

    def unlisted(self, summary: Summary) -> list[int]:
        """Sealed files that hold the only copy of their messages, and that the manifest does not know."""
        return sorted(base for base in self._bases["parquet"] - self._bases["arrow"] if base >= summary.sealed_end)

    def refuse_unlisted(self, summary: Summary) -> None:
        """A sealed file that is not in the manifest is a leftover as long as its segment is there. Else it is all
        there is: the manifest was lost, or replaced by an old one.
        """
        for base in self.unlisted(summary):
            raise Damaged(
                f"{self._path(NAME)} is missing or older than the files beside it: it does not list "
                f"{sealed_name(base)}, whose segment is gone; pxrs log repair rebuilds it"
            )

    def segments(self, summary: Summary) -> list[int]:
        """The segments that hold what is not sealed: the first one begins where the sealed files end."""
        found = [base for base in self.bases("arrow") if base >= summary.sealed_end]  # others wait for their deletion
        if summary.sealed_end and found and found[0] != summary.sealed_end:
            raise Damaged(f"{self._directory}: the offsets {summary.sealed_end} to {found[0] - 1} are missing")
        return found

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)


def bases_of(directory: str, kind: str) -> list[int]:
    """The first offsets that the files of this kind are named by."""
    return Listing(directory).bases(kind)


# ---- the sealed part of a partition, as a reader sees it ------------------------------------------------------------


_REPLACED = (-1, -1, -1)


class History:
    """The sealed files of one partition. The list of them is read when it is first needed."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._seen: tuple[int, int, int] | None = None
        self.summary = NOTHING.summary
        self._manifest: Manifest | None = None
        self._open: SealedFile | None = None
        self._latest: tuple[int, pa.RecordBatch] | None = None
        self._intact: set[Sealed] = set()

    def refresh(self) -> bool:
        """Take in a new manifest; says whether there was one."""
        seen = self._state()
        if seen == self._seen:
            return False
        if seen is None:
            raise Damaged(f"{os.path.join(self._directory, NAME)} is gone; pxrs log repair rebuilds it")
        self.summary = read_summary(self._directory)  # may raise: then the next look must do so as well
        self._seen, self._manifest, self._open, self._latest = seen, None, None, None
        self._intact = {sealed for sealed in self._intact if sealed.start >= self.summary.start}
        return True

    def _state(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(os.path.join(self._directory, NAME))
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    @property
    def files(self) -> tuple[Sealed, ...]:
        """The files that the manifest lists. A file replaced since ``refresh`` counts as gone: look again first."""
        if self._manifest is None:
            manifest = read_manifest(self._directory)
            if manifest.summary != self.summary:
                self._seen = _REPLACED
                raise FileNotFoundError(f"{os.path.join(self._directory, NAME)} was replaced")
            self._manifest = manifest
        return self._manifest.files

    def _path(self, sealed: Sealed) -> str:
        return os.path.abspath(os.path.join(self._directory, sealed.file))

    def _opened(self, sealed: Sealed) -> SealedFile:
        """The file, its checksum verified once in this process."""
        if self._open is None or self._open.start != sealed.start:
            path = self._path(sealed)
            if sealed not in self._intact:
                if digest_of(path) != sealed.xxh3:
                    raise Damaged(
                        f"{path}: this sealed segment, offsets {sealed.start} to {sealed.end - 1}, fails its checksum"
                    )
                self._intact.add(sealed)
            self._open = SealedFile(path, sealed.start)
        return self._open

    def read(self, offset: int, max_rows: int) -> pa.RecordBatch:
        """The messages from an offset on, which must be in the history."""
        latest = self._latest
        if latest is None or not 0 <= offset - latest[0] < latest[1].num_rows:
            file = self._opened(self.files[bisect_right(self.files, offset, key=lambda one: one.start) - 1])
            latest = self._latest = file.load(file.group_of(offset))
        return latest[1].slice(offset - latest[0], max_rows)

    def offset_at(self, timestamp_us: int) -> int | None:
        """The first offset in the history at or after a time."""
        for sealed in self.files:
            if sealed.last_us >= timestamp_us:
                found = _first_in(self._opened(sealed), sealed, timestamp_us)
                if found is not None:
                    return found
        return None

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        for sealed in self.files if start < self.summary.sealed_end else ():
            if max(start, sealed.start) < min(end, sealed.end):
                yield Piece("parquet", self._path(sealed), sealed.start, sealed.end, 0, sealed.bytes)

    def chunks(self) -> Iterator[Chunk]:
        for one in self.files:
            yield Chunk("parquet", self._path(one), one.start, one.end, one.bytes, one.last_us)


def _first_in(file: SealedFile, sealed: Sealed, timestamp_us: int) -> int | None:
    for group in file.groups(sealed.start, sealed.end):
        newest = file.newest_us(group)
        if newest is None or newest >= timestamp_us:
            found = first_at(file.load(group)[1], timestamp_us)
            if found is not None:
                return found
    return None
