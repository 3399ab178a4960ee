"""The sealed part of a partition, as a reader sees it: what the manifest lists. Nothing here writes."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator

import pyarrow as pa

from pxrs.errors import Damaged
from pxrs.logs.base import Chunk, Piece
from pxrs.logs.batches import first_at
from pxrs.logs.formats.manifest import NAME, NOTHING, Manifest, Sealed, read_manifest, read_summary
from pxrs.logs.formats.sealed_parquet import SealedFile, digest_of

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

    def _file_of(self, offset: int) -> SealedFile:
        sealed = self.files[bisect_right(self.files, offset, key=lambda one: one.start) - 1]
        return self._opened(sealed)

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
            file = self._file_of(offset)
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
