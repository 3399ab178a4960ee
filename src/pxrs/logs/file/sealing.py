"""Housekeeping of one partition's files: full segments become Parquet, what is old goes, leftovers are swept.

One process at a time, by a lock of its own: appends never wait for it. Each step leaves the partition whole, in this
order: a new file under a name that nobody looks for, the manifest, then the files that the manifest has made
superfluous. The manifest's first line shows what a crash has left over, and the next process sweeps it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import pairwise

import pyarrow as pa

from pxrs.errors import FORBIDDEN, Unavailable, disk_text
from pxrs.io.clock import SystemClock
from pxrs.io.durable import sync_path
from pxrs.io.locks import locked_file
from pxrs.logs.base import Chunk
from pxrs.logs.batches import refuse_offset
from pxrs.logs.file.reader import PartitionFiles
from pxrs.logs.file.sealed_files import Listing
from pxrs.logs.file.segment.file import index_path, segment_path
from pxrs.logs.formats.manifest import Manifest, Summary, read_manifest, read_summary, write_manifest
from pxrs.logs.formats.sealed_parquet import check_sealed, describe, sealed_name, write_sealed
from pxrs.logs.pieces import read_range

_CLOCK = SystemClock()
_LOCK = "housekeeping.lock"
_PATIENCE = 10.0


@contextmanager
def _explained(directory: str) -> Iterator[None]:
    """A disk that is full or broken leaves the partition as it was."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{directory}: it can be neither sealed nor trimmed now: {error}") from error


def _alone(directory: str, patience: float) -> AbstractContextManager[int | None]:
    """Hold the lock of the housekeeping, or say after a while that another does."""
    return locked_file(os.path.join(directory, _LOCK), patience)


# --- sealing


def seal(files: PartitionFiles, compression: str, min_age: float = 0) -> list[Chunk]:
    """Turn full segments into Parquet, the oldest first. Nothing happens while another process does it."""
    with _explained(files.directory), _alone(files.directory, patience=0) as mine:
        if mine is None:
            return []
        _sweep(files.directory, delay=None)
        made = _full(files, min_age)
        for start, end in made:
            _seal(files, start, end, compression)
            pa.default_memory_pool().release_unused()  # who sends or consumes should not keep what sealing took
        return [chunk for chunk in files.chunks() if (chunk.start, chunk.end) in made] if made else []


def _full(files: PartitionFiles, min_age: float) -> list[tuple[int, int]]:
    """The offsets of the segments to seal: all but the last two, where retries are looked for."""
    files.refresh()
    bases = [segment.base for segment in files.segments]
    now = _CLOCK.wall()
    found = []
    for start, end in pairwise(bases[:-1]):
        age = now - os.path.getmtime(segment_path(files.directory, start))
        if 0 <= age < min_age:  # a time to come was set by a clock that went wrong, and says nothing
            break
        found.append((start, end))
    return found


def _seal(files: PartitionFiles, start: int, end: int, compression: str) -> None:
    directory = files.directory
    path = os.path.join(directory, sealed_name(start))
    first_us, last_us = _write(files, start, end, path, compression)
    manifest = read_manifest(directory)
    sealed = describe(path, start, end, first_us, last_us)
    summary = Summary(manifest.summary.start if manifest.files else start, end)
    write_manifest(directory, Manifest(summary, (*manifest.files, sealed)))
    _delete_segment(directory, start)


def _write(files: PartitionFiles, start: int, end: int, path: str, compression: str) -> tuple[int, int]:
    """Write a sealed file and read it back: the segment that it replaces is going to be deleted."""
    unfinished = path + ".tmp"
    try:
        times = write_sealed(read_range(files.pieces(start, end), start, end), unfinished, compression)
        check_sealed(unfinished, start, end)
        os.rename(unfinished, path)
    except BaseException:
        with suppress(OSError):  # a full disk should not have to wait for the next sweep
            os.unlink(unfinished)
        raise
    sync_path(files.directory)
    return times


def _delete_segment(directory: str, base: int) -> None:
    for path in (index_path(segment_path(directory, base)), segment_path(directory, base)):
        with suppress(FileNotFoundError):
            os.unlink(path)


# --- trimming


def trim(files: PartitionFiles, offset: int, delay: float) -> int:
    """Move the start of the partition to the last chunk that begins at or before this offset. The last chunk stays."""
    with _explained(files.directory), _alone(files.directory, _PATIENCE) as mine:
        if mine is None:
            raise Unavailable(f"{files.directory}: another process has sealed or trimmed here for {_PATIENCE:g} s")
        start, end = files.bounds()
        if offset > end:
            refuse_offset(files.queue, files.number, offset, (start, end))
        chunks = files.chunks()
        kept = next((chunk for chunk in chunks[:-1] if chunk.end > offset), chunks[-1] if chunks else None)
        if kept is not None and kept.start > start:
            _move_start(files.directory, kept.start, [chunk for chunk in chunks if chunk.end <= kept.start])
            files.look_again()
        _sweep(files.directory, delay)
        return files.bounds()[0]


def _move_start(directory: str, start: int, gone: list[Chunk]) -> None:
    for chunk in gone:
        with suppress(FileNotFoundError):  # then it is gone already
            os.utime(chunk.path)  # from now on the delay of its deletion counts
    manifest = read_manifest(directory)
    left = tuple(sealed for sealed in manifest.files if sealed.start >= start)
    write_manifest(directory, Manifest(Summary(start, max(start, manifest.summary.sealed_end)), left))


# --- sweeping


def sweep_at_first_use(directory: str, delay: float) -> None:
    """Remove what a crash has left over, where housekeeping was ever done, and if nobody else does it now."""
    if not os.path.exists(os.path.join(directory, _LOCK)):
        return
    try:
        with _alone(directory, patience=0) as mine:
            if mine is not None:
                _sweep(directory, delay)
    except OSError as error:
        if error.errno not in FORBIDDEN:  # who may only read may leave the rest to others
            raise Unavailable(f"{directory}: {disk_text(error, directory)}") from error


def _sweep(directory: str, delay: float | None) -> None:
    """Delete what the manifest does not count on; files of trimmed messages after the delay (None: leave them)."""
    summary, found = read_summary(directory), Listing(directory)
    found.refuse_unlisted(summary)
    doomed = [*found.unfinished(by_writers=False), *found.superfluous(summary)]
    if delay is not None:
        latest = _CLOCK.wall() - delay
        doomed += [path for path in found.trimmed(summary) if _is_older(path, latest)]
    if doomed:
        sync_path(directory)  # who wrote the manifest may have died before it was durable
    for path in doomed:
        with suppress(FileNotFoundError):
            os.unlink(path)


def _is_older(path: str, latest: float) -> bool:
    with suppress(FileNotFoundError):
        return os.path.getmtime(path) <= latest
    return False
