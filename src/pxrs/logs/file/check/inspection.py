"""Inspects a partition's directory without trusting it: what ``pxrs log verify`` shows beyond what reading finds.

Nothing here writes, and nothing here opens the partition: that might already sweep away what is looked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from pxrs.errors import Damaged, NewerFormat
from pxrs.io.locks import locked_file
from pxrs.logs.file.durable_mark import Mark, read_mark
from pxrs.logs.file.sealed_files import Listing, bases_of
from pxrs.logs.file.segment import index as indexfile
from pxrs.logs.file.segment.file import index_path, segment_path
from pxrs.logs.file.segment.index import BatchIndex
from pxrs.logs.file.segment.scan import ScanResult, Tail, walk
from pxrs.logs.formats.manifest import NAME, Manifest, Summary, read_manifest, read_summary
from pxrs.logs.formats.sealed_parquet import sealed_name
from pxrs.logs.formats.segment import SCHEMA_MESSAGE, check_schema

LOCKS = ("lock", "housekeeping.lock")
"""The locks in the order in which they are taken, so that two processes never wait for each other."""

NO_PROBLEM = ("", False)
_PASSING = ("leftover", "index", "tail")
_PATIENCE = 1.0


class Finding(NamedTuple):
    """Something in a directory that is not as it should be; ``is_damage``: not what every crash may leave behind."""

    kind: str
    path: str
    text: str
    is_damage: bool


def inspect(directory: str) -> list[Finding]:
    """Find all faults beside the messages: the manifest, index files, leftovers of a crash.

    What others are at work on looks like that for a moment: it is looked at a second time, while they wait.
    """
    found = look(directory)
    if not any(finding.kind in _PASSING for finding in found):
        return found
    with _quiet(directory) as is_quiet:
        return [finding for finding in found if finding.kind not in _PASSING or _lasts(directory, finding, is_quiet)]


@contextmanager
def _quiet(directory: str) -> Iterator[bool]:
    """Hold up the others for a moment; says whether that worked. Needs no right to write."""
    with ExitStack() as held:
        locks = (os.path.join(directory, name) for name in LOCKS)
        fds = [
            held.enter_context(locked_file(path, _PATIENCE, os.O_RDONLY)) for path in locks if os.access(path, os.R_OK)
        ]
        yield None not in fds


def _lasts(directory: str, finding: Finding, is_quiet: bool) -> bool:
    with suppress(FileNotFoundError):
        if finding.kind == "leftover":
            return is_quiet and finding.path in leftovers(directory, read_summary(directory))
        if finding.kind == "index":
            return index_problem(finding.path) != NO_PROBLEM
        return any(_tail_findings(directory, read_summary(directory)))
    return False


def look(directory: str) -> list[Finding]:
    """One look at the directory, while other processes may work there."""
    while os.path.isdir(directory):
        with suppress(FileNotFoundError):  # sealed, trimmed or swept by another process in this moment
            manifest, found = _look(directory)
            if manifest is None or manifest == read_manifest(directory):
                return found
    return [Finding("directory", directory, f"{directory} is gone", True)]


def _look(directory: str) -> tuple[Manifest | None, list[Finding]]:
    try:
        manifest = read_manifest(directory)
    except NewerFormat:
        raise
    except Damaged as error:
        return None, [Finding("manifest", os.path.join(directory, NAME), str(error), True)]
    summary = manifest.summary
    found = list(_manifest_findings(directory, manifest))
    if not found:
        found += [Finding("leftover", path, f"{path} is left over", False) for path in leftovers(directory, summary)]
    return manifest, [*found, *_index_findings(directory, summary), *_tail_findings(directory, summary)]


# --- the manifest


def _manifest_findings(directory: str, manifest: Manifest) -> Iterator[Finding]:
    path = os.path.join(directory, NAME)
    if not _is_whole(manifest):
        yield Finding("manifest", path, f"{path} does not describe a history without a gap", True)
    for base in Listing(directory).unlisted(manifest.summary):
        sealed = os.path.join(directory, sealed_name(base))
        yield Finding("manifest", path, f"{sealed} holds messages, and {path} does not list it", True)


def _is_whole(manifest: Manifest) -> bool:
    """Whether each sealed file begins where the one before it ends."""
    reached, end = manifest.summary
    for sealed in manifest.files:
        if sealed.start != reached or sealed.end <= sealed.start:
            return False
        reached = sealed.end
    return reached == end


# --- what a crash has left over


def leftovers(directory: str, summary: Summary) -> list[str]:
    """The files that nobody needs any more, if no process is at work now."""
    found = Listing(directory)
    return [*found.unfinished(by_writers=True), *found.superfluous(summary)]


# --- index files and the tail


def _index_findings(directory: str, summary: Summary) -> Iterator[Finding]:
    for base in bases_of(directory, "arrow"):
        path = index_path(segment_path(directory, base))
        if base >= summary.sealed_end and os.path.exists(path):
            problem, is_damage = index_problem(path)
            if problem:
                yield Finding("index", path, f"{path} {problem}; pxrs log repair makes it anew", is_damage)


def index_problem(path: str) -> tuple[str, bool]:
    """The fault of an index file, "" for none; and whether it could mislead readers.

    What fails its checksums is not used, and a crash may leave such an end behind.
    """
    directory, name = os.path.split(path)
    base = int(name.partition(".")[0])
    known, walked = BatchIndex(), BatchIndex()
    size = os.path.getsize(path)  # before it is read: a block may be appended now
    saved = indexfile.load(path, known)
    if saved.size < size:
        return f"is spoilt from byte {saved.size} on", False
    try:
        walk_segment(segment_path(directory, base), base, walked)
    except Damaged:
        return NO_PROBLEM  # the segment is what is damaged, and reading it says where
    walked.cut(saved.batches)
    return NO_PROBLEM if known.rows(0)[1] == walked.rows(0)[1] else ("does not fit its segment", True)


def walk_segment(path: str, base: int, index: BatchIndex) -> ScanResult:
    """Over a whole segment from its first byte on, with no help of an index file; Damaged where it cannot go on."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        start = check_schema(os.pread(fd, 4 * len(SCHEMA_MESSAGE), 0), path)
        return walk(fd, path, (start, base), index.add)
    finally:
        os.close(fd)


def _tail_findings(directory: str, summary: Summary) -> Iterator[Finding]:
    """The end of the last segment. (A last batch that is damaged, and not only incomplete, is seen by readers.)"""
    mark = read_mark(directory)  # before the walk: what is being written now may be durable a moment later
    bases = [base for base in bases_of(directory, "arrow") if base >= summary.sealed_end]
    if not bases:
        return
    path = segment_path(directory, bases[-1])
    try:
        seen = walk_segment(path, bases[-1], BatchIndex())
    except Damaged:
        return
    if seen.tail is Tail.PARTIAL:
        where = f"{path} ends at byte {seen.position} with a part of a batch"
        if mark is not None and mark > Mark(bases[-1], seen.position):
            yield Finding("tail", path, f"{where} that was acknowledged", True)
        else:
            yield Finding("tail", path, f"{where}: being written now, or torn by a crash", False)
