"""Putting a partition's files right. What can be made anew is made anew; messages are cut off only when told to.

Nothing that might hold a message is ever deleted: it is kept aside as ``NAME.cut-BYTE``, for somebody to look at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from pxrs.clock import SystemClock
from pxrs.errors import Damaged, Unavailable
from pxrs.logs.damage import Damage, find_damage
from pxrs.logs.durable import create_file, sync_directory
from pxrs.logs.index import BatchIndex
from pxrs.logs.inspection import bases_of, index_problem, inspect, leftovers, walk_segment
from pxrs.logs.locks import close_held, open_held, try_lock
from pxrs.logs.manifest import NAME, Manifest, Sealed, Summary, read_manifest, write_manifest
from pxrs.logs.parquet import SealedFile, check_sealed, describe, sealed_name
from pxrs.logs.partition import PartitionFiles
from pxrs.logs.records import times
from pxrs.logs.segmentfile import Segment, index_path, segment_path
from pxrs.logs.writer import PartitionWriter
from pxrs.settings import Settings

_CLOCK = SystemClock()
_LOCKS = ("lock", "housekeeping.lock")
_PATIENCE, _PAUSE = 10.0, 0.01
_UNKNOWN = "unknown"


class Step(NamedTuple):
    """One thing that was put right."""

    action: str
    path: str
    detail: str


class Repaired(NamedTuple):
    """What was done to a partition, and the damage that is still there."""

    steps: list[Step]
    damage: Damage | None


def repair(queue: str, number: int, directory: str, settings: Settings, cut_damaged: bool = False) -> Repaired:
    """Put one partition right. Damage in its middle is only told, unless it is to be cut off."""
    if not os.path.isdir(directory):
        raise Damaged(f"{directory} is gone, with all that was in it")
    with _alone(directory):
        steps = [*_restore_manifest(directory), *_remove_leftovers(directory), *_restore_indexes(directory)]
    steps += _cut_torn_tail(PartitionFiles(queue, number, directory), settings)
    damage = find_damage(directory)
    if damage is not None and cut_damaged:
        with _alone(directory):
            steps += _cut(directory, damage)
        damage = find_damage(directory)
    return Repaired(steps, damage)


@contextmanager
def _alone(directory: str) -> Iterator[None]:
    """Neither appends nor housekeeping, by anybody else."""
    deadline = _CLOCK.monotonic() + _PATIENCE
    with ExitStack() as held:
        for name in _LOCKS:
            fd = open_held(os.path.join(directory, name), os.O_RDWR | os.O_CREAT)
            held.callback(close_held, fd)
            while not try_lock(fd):
                if _CLOCK.monotonic() >= deadline:
                    raise Unavailable(
                        f"{directory}: another process has held {name} for {_PATIENCE:g} s; stop it first"
                    )
                time.sleep(_PAUSE)
        yield


# --- the manifest


def _restore_manifest(directory: str) -> Iterator[Step]:
    if any(finding.kind == "manifest" for finding in inspect(directory)):
        manifest, aside = rebuild_manifest(directory)
        yield from _put_aside(directory, aside)
        write_manifest(directory, manifest)
        path = os.path.join(directory, NAME)
        start, end = manifest.summary
        yield Step("rebuilt", path, f"{len(manifest.files)} sealed files, offsets {start} to {end - 1}")


def rebuild_manifest(directory: str) -> tuple[Manifest, list[str]]:
    """The manifest as the sealed files themselves tell it, and the files that have no place in it.

    What was trimmed and not yet deleted is back again: better twice than never. Where a part of it is already gone,
    only what follows the last gap can be a history. A file that cannot be read keeps its place, with no checksum that
    could ever fit: whoever reads it is told, and all others are readable.
    """
    files = [_sealed(directory, base) for base in bases_of(directory, "parquet")]
    segments = bases_of(directory, "arrow")
    known = [file for file in files if file is not None and not (file.xxh3 == _UNKNOWN and file.start in segments)]
    run: list[Sealed] = []
    for file in reversed(known):
        if run and file.end != run[0].start:
            break
        run.insert(0, file)
    kept = {file.file for file in run}
    others = [sealed_name(base) for base in bases_of(directory, "parquet") if sealed_name(base) not in kept]
    if run:
        return Manifest(Summary(run[0].start, run[-1].end), tuple(run)), others
    start, gone = _last_run(directory, segments)
    return Manifest(Summary(start, start), ()), [*others, *gone]


def _sealed(directory: str, base: int) -> Sealed | None:
    """What the manifest says of a file; if it cannot be read, as its neighbours tell. None: nobody knows."""
    path = os.path.join(directory, sealed_name(base))
    try:
        file = SealedFile(path, base)
        check_sealed(path, base, file.end)
    except (Damaged, OSError):
        following = [start for kind in ("parquet", "arrow") for start in bases_of(directory, kind) if start > base]
        if not following:
            return None
        return Sealed(sealed_name(base), base, min(following), 0, 2**62, os.path.getsize(path), _UNKNOWN)
    found = [times(file.load(group)[1]) for group in file.groups(base, file.end)]
    first, last = min(int(at.min()) for at in found), max(int(at.max()) for at in found)
    return describe(path, base, file.end, first, last)


def _last_run(directory: str, bases: list[int]) -> tuple[int, list[str]]:
    """Where the segments that follow each other without a gap begin, and the names of those before them."""
    start = bases[-1] if bases else 0
    for base in reversed(bases[:-1]):
        with suppress(Damaged):  # where it ends cannot be told: it is taken for whole, and its damage is found later
            if walk_segment(segment_path(directory, base), base, BatchIndex()).end != start:
                break
        start = base
    return start, [os.path.basename(segment_path(directory, base)) for base in bases if base < start]


# --- what can be done without


def _remove_leftovers(directory: str) -> Iterator[Step]:
    for path in leftovers(directory, read_manifest(directory)):
        os.unlink(path)
        yield Step("removed", path, "left over")


def _restore_indexes(directory: str) -> Iterator[Step]:
    sealed_end = read_manifest(directory).summary.sealed_end
    for base in bases_of(directory, "arrow"):
        path = index_path(segment_path(directory, base))
        problem = index_problem(directory, base)[0] if base >= sealed_end and os.path.exists(path) else ""
        if problem:
            os.unlink(path)
            with suppress(Damaged):  # then there is no index, and none is needed
                segment = Segment(directory, base)
                segment.refresh()
                segment.save_index(full=True)
            yield Step("rebuilt", path, f"it {problem}")


def _cut_torn_tail(files: PartitionFiles, settings: Settings) -> Iterator[Step]:
    """What the next producer would do as well."""
    bases = bases_of(files.directory, "arrow")
    path = segment_path(files.directory, bases[-1]) if bases else ""
    before = os.path.getsize(path) if path else 0
    with suppress(Damaged), PartitionWriter(files, settings).locked():  # damage elsewhere is told apart
        pass
    if path and os.path.getsize(path) < before:
        yield Step("cut", path, f"{before - os.path.getsize(path)} bytes of an unfinished batch at its end")


# --- cutting messages off


def _cut(directory: str, damage: Damage) -> Iterator[Step]:
    """End the partition at the damage: from the end on, so that a crash in between leaves less, and never a mixture."""
    manifest = read_manifest(directory)
    left = tuple(sealed for sealed in manifest.files if sealed.end <= damage.offset)
    sealed = [file.file for file in manifest.files[len(left) :]]
    later = [base for base in bases_of(directory, "arrow") if base > damage.offset or left != manifest.files]
    names = [os.path.basename(segment_path(directory, base)) for base in later]
    if damage.position == 0:
        names.append(os.path.basename(damage.path))
    yield from _put_aside(directory, sorted({*sealed, *names}, reverse=True))
    if left != manifest.files:
        end = left[-1].end if left else manifest.summary.start
        write_manifest(directory, Manifest(Summary(manifest.summary.start, end), left))
    if damage.position > 0:
        yield _cut_file(damage)


def _cut_file(damage: Damage) -> Step:
    with open(damage.path, "rb") as file:
        file.seek(damage.position)
        rest = file.read()
    aside = f"{damage.path}.cut-{damage.position}"
    create_file(aside, rest, aside + ".tmp")
    _remove_index(damage.path)
    with open(damage.path, "r+b") as file:
        file.truncate(damage.position)
        os.fsync(file.fileno())
    return Step("kept aside", aside, f"{len(rest)} bytes, from offset {damage.offset} on")


def _put_aside(directory: str, names: list[str]) -> Iterator[Step]:
    for name in names:
        path = os.path.join(directory, name)
        if os.path.exists(path):
            _remove_index(path)
            aside = _free_name(f"{path}.cut-0")
            os.rename(path, aside)
            sync_directory(directory)
            yield Step("kept aside", aside, "the whole file")


def _remove_index(path: str) -> None:
    if path.endswith(".arrow"):
        with suppress(FileNotFoundError):
            os.unlink(index_path(path))


def _free_name(path: str) -> str:
    number, found = 0, path
    while os.path.exists(found):
        number += 1
        found = f"{path}.{number}"
    return found
