"""Repairs a partition's files: makes anew what can be made anew, and cuts messages off only when it is asked to.

Deleted is only what cannot hold a message that is nowhere else: half a batch that was never acknowledged, unfinished
files, index files, and of a segment and its sealed file that are both there and whole the one that does not count.
All else that has to go is kept aside as ``NAME.cut-BYTE``, for somebody to look at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from pxrs.errors import Damaged, Unavailable
from pxrs.io.durable import free_name, sync_path
from pxrs.io.locks import locked_file
from pxrs.logs.batches import times
from pxrs.logs.file.check.damage import Damage, fault_of, find_damage
from pxrs.logs.file.check.inspection import LOCKS, index_problem, leftovers, look, walk_segment
from pxrs.logs.file.durable_mark import Mark, mark_in, write_mark
from pxrs.logs.file.reader import PartitionFiles
from pxrs.logs.file.sealed_files import bases_of
from pxrs.logs.file.segment.file import Segment, cut_segment, index_path, segment_path
from pxrs.logs.file.segment.index import BatchIndex
from pxrs.logs.file.writer import PartitionWriter
from pxrs.logs.formats.manifest import NAME, Manifest, Sealed, Summary, read_manifest, write_manifest
from pxrs.logs.formats.sealed_parquet import SealedFile, check_sealed, describe, sealed_name
from pxrs.settings import Settings

_PATIENCE = 10.0
_UNKNOWN = "unknown"


class RepairStep(NamedTuple):
    """One repair that was made."""

    action: str
    path: str
    detail: str


class Repaired(NamedTuple):
    """The repairs of a partition, and the damage that is left."""

    steps: list[RepairStep]
    damage: Damage | None


def repair(queue: str, number: int, directory: str, settings: Settings, cut_damaged: bool = False) -> Repaired:
    """Repair one partition. Damage in its middle is only reported, unless it is to be cut off."""
    if not os.path.isdir(directory):
        raise Damaged(f"{directory} is gone, with all that was in it")
    with _alone(directory):
        steps = [*_restore_manifest(directory), *_remove_leftovers(directory), *_restore_indexes(directory)]
    steps += _cut_torn_tail(PartitionFiles(queue, number, directory), settings)
    if not _seems_damaged(directory):
        return Repaired(steps, None)
    with _alone(directory) as lock:  # others may have been at work while it was read: what counts is how it is now
        damage = find_damage(directory)
        if damage is not None and cut_damaged:
            steps += _cut(directory, lock, damage)
            damage = find_damage(directory)
    return Repaired(steps, damage)


def _seems_damaged(directory: str) -> bool:
    """Reading everything takes a while, and nobody has to wait for that as long as all is well."""
    try:
        return find_damage(directory) is not None
    except FileNotFoundError:  # sealed or trimmed in this moment
        return True


@contextmanager
def _alone(directory: str) -> Iterator[int]:
    """Neither appends nor housekeeping, by anybody else. Yields the open file of the writers' lock."""
    with ExitStack() as held:
        fds = []
        for name in LOCKS:
            fd = held.enter_context(locked_file(os.path.join(directory, name), _PATIENCE))
            if fd is None:
                raise Unavailable(f"{directory}: another process has held {name} for {_PATIENCE:g} s; stop it first")
            fds.append(fd)
        yield fds[0]


# --- the manifest


def _restore_manifest(directory: str) -> Iterator[RepairStep]:
    if any(finding.kind == "manifest" for finding in look(directory)):
        manifest, aside = rebuild_manifest(directory)
        yield from _put_aside(directory, aside)
        write_manifest(directory, manifest)
        path = os.path.join(directory, NAME)
        start, end = manifest.summary
        yield RepairStep("rebuilt", path, f"{len(manifest.files)} sealed files, offsets {start} to {end - 1}")


def rebuild_manifest(directory: str) -> tuple[Manifest, list[str]]:
    """Make the manifest from the sealed files themselves, and list the files that do not belong to it.

    What was trimmed and not yet deleted is back again: better twice than never. Where a part of it is already gone,
    only what follows the last gap can be a history. A file that cannot be read keeps its place, with no checksum that
    could ever fit: its readers get an error, and all others are readable.
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
    """The manifest's entry of a file; if it cannot be read, an entry from its neighbours. None: unknown."""
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
    """The first of the last segments without a gap between them, and the names of those before it."""
    start = bases[-1] if bases else 0
    for base in reversed(bases[:-1]):
        with suppress(Damaged):  # its end is not known: it is taken for whole, and its damage is found later
            if walk_segment(segment_path(directory, base), base, BatchIndex()).end != start:
                break
        start = base
    return start, [os.path.basename(segment_path(directory, base)) for base in bases if base < start]


# --- what can be done without


def _remove_leftovers(directory: str) -> Iterator[RepairStep]:
    manifest = read_manifest(directory)
    twins = {segment_path(directory, sealed.start): sealed for sealed in manifest.files}
    for path in leftovers(directory, manifest.summary):
        sealed = twins.get(path)
        if sealed is not None and fault_of(os.path.join(directory, sealed.file), sealed):
            yield from _put_aside(directory, [os.path.basename(path)])
        elif os.path.exists(path):  # an index goes with its segment
            os.unlink(path)
            yield RepairStep("removed", path, "left over")


def _restore_indexes(directory: str) -> Iterator[RepairStep]:
    sealed_end = read_manifest(directory).summary.sealed_end
    for base in bases_of(directory, "arrow"):
        path = index_path(segment_path(directory, base))
        problem = index_problem(path)[0] if base >= sealed_end and os.path.exists(path) else ""
        if problem:
            os.unlink(path)
            with suppress(Damaged):  # then there is no index, and none is needed
                segment = Segment(directory, base)
                segment.refresh()
                segment.save_index(full=True)
            yield RepairStep("rebuilt", path, f"it {problem}")


def _cut_torn_tail(files: PartitionFiles, settings: Settings) -> Iterator[RepairStep]:
    """Cut a torn tail, as the next producer would do."""
    writer = PartitionWriter(files, settings)
    with suppress(Damaged), writer.locked():  # damage elsewhere is reported apart
        pass
    for cut in writer.cuts:
        if cut.kept is None:
            yield RepairStep("cut", cut.path, f"{cut.size} bytes of an unfinished batch at its end")
        else:
            yield RepairStep(
                "kept aside", cut.kept, f"{cut.size} bytes of a last batch that came only in part to the disk"
            )


# --- cutting messages off


def _cut(directory: str, lock: int, damage: Damage) -> Iterator[RepairStep]:
    """End the partition at the damage: from the end on, so that a crash in between leaves less, and never a mixture."""
    manifest = read_manifest(directory)
    left = tuple(sealed for sealed in manifest.files if sealed.end <= damage.offset)
    sealed = [file.file for file in manifest.files[len(left) :]]
    later = [base for base in bases_of(directory, "arrow") if base > damage.offset or left != manifest.files]
    names = [os.path.basename(segment_path(directory, base)) for base in later]
    if damage.position == 0:
        names.append(os.path.basename(damage.path))
    _move_mark(directory, lock, damage, {*names})
    yield from _put_aside(directory, sorted({*sealed, *names}, reverse=True))
    if left != manifest.files:
        end = left[-1].end if left else manifest.summary.start
        write_manifest(directory, Manifest(Summary(manifest.summary.start, end), left))
    if 0 < damage.position < os.path.getsize(damage.path):
        aside = cut_segment(damage.path, damage.position, keep=True)
        yield RepairStep("kept aside", str(aside), f"all of it from offset {damage.offset} on")


def _move_mark(directory: str, lock: int, damage: Damage, gone: set[str]) -> None:
    """Move the durable mark back first: writers never cut what it covers."""
    end = Mark(0, 0)
    for base in bases_of(directory, "arrow"):
        path = segment_path(directory, base)
        if os.path.basename(path) not in gone:
            end = Mark(base, damage.position if path == damage.path else os.path.getsize(path))
    mark = mark_in(lock)
    if mark is not None and mark > end:
        write_mark(lock, end)


def _put_aside(directory: str, names: list[str]) -> Iterator[RepairStep]:
    for name in names:
        path = os.path.join(directory, name)
        if os.path.exists(path):
            _remove_index(path)
            aside = free_name(f"{path}.cut-0")
            os.rename(path, aside)
            sync_path(directory)
            yield RepairStep("kept aside", aside, "the whole file")


def _remove_index(path: str) -> None:
    if path.endswith(".arrow"):
        with suppress(FileNotFoundError):
            os.unlink(index_path(path))
