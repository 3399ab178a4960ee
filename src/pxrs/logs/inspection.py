"""A partition's directory, looked at without trusting it: what ``pxrs log verify`` shows beyond what reading finds.

Nothing here writes, and nothing here opens the partition: that might already sweep away what is looked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from pxrs.errors import Damaged, NewerFormat
from pxrs.logs import indexfile
from pxrs.logs.index import BatchIndex
from pxrs.logs.manifest import NAME, Manifest, read_manifest
from pxrs.logs.parquet import sealed_name
from pxrs.logs.segment import SCHEMA_MESSAGE, check_schema
from pxrs.logs.segmentfile import index_path, segment_path
from pxrs.logs.walk import Tail, Walk, walk

_FILE = re.compile(r"(\d{20})\.(arrow|index|parquet)")


class Finding(NamedTuple):
    """Something in a directory that is not as it should be; ``is_damage``: not what every crash may leave behind."""

    kind: str
    path: str
    text: str
    is_damage: bool


def inspect(directory: str) -> list[Finding]:
    """All that is wrong beside the messages themselves: the manifest, index files, what a crash has left over."""
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
    found = list(_manifest_findings(directory, manifest))
    if not found:
        found += [Finding("leftover", path, f"{path} is left over", False) for path in leftovers(directory, manifest)]
    return manifest, [*found, *_index_findings(directory, manifest), *_tail_findings(directory, manifest)]


def bases_of(directory: str, kind: str) -> list[int]:
    """The first offsets that the files of this kind are named by."""
    names = (_FILE.fullmatch(name) for name in os.listdir(directory))
    return sorted(int(found[1]) for found in names if found is not None and found[2] == kind)


# --- the manifest


def _manifest_findings(directory: str, manifest: Manifest) -> Iterator[Finding]:
    path = os.path.join(directory, NAME)
    if not _is_whole(manifest):
        yield Finding("manifest", path, f"{path} does not describe a history without a gap", True)
    for base in unlisted(directory, manifest):
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


def unlisted(directory: str, manifest: Manifest) -> list[int]:
    """Sealed files that hold the only copy of their messages, and that the manifest does not know."""
    listed = {sealed.start for sealed in manifest.files}
    segments = set(bases_of(directory, "arrow"))
    sealed = (base for base in bases_of(directory, "parquet") if base >= manifest.summary.start)
    return [base for base in sealed if base not in listed and base not in segments]


# --- what a crash has left over


def leftovers(directory: str, manifest: Manifest) -> list[str]:
    """What nobody needs any more: unfinished files, segments that were sealed, sealed files that never counted.

    Never a file that holds the only copy of a message. What was trimmed goes by itself, after its delay.
    """
    segments = set(bases_of(directory, "arrow"))
    listed = {sealed.start for sealed in manifest.files}
    names = sorted(os.listdir(directory))
    found = [name for name in names if name.endswith(".tmp")]
    for name in names:
        matched = _FILE.fullmatch(name)
        if matched is not None and _is_left_over(int(matched[1]), matched[2], manifest, segments, listed):
            found.append(name)
    return [os.path.join(directory, name) for name in found]


def _is_left_over(base: int, kind: str, manifest: Manifest, segments: set[int], listed: set[int]) -> bool:
    start, sealed_end = manifest.summary
    if kind == "parquet":
        return base >= sealed_end and base in segments
    if kind == "index" and base not in segments:
        return base >= start
    return start <= base < sealed_end and base in listed


# --- index files and the tail


def _index_findings(directory: str, manifest: Manifest) -> Iterator[Finding]:
    for base in bases_of(directory, "arrow"):
        path = index_path(segment_path(directory, base))
        if base >= manifest.summary.sealed_end and os.path.exists(path):
            problem, is_damage = index_problem(directory, base)
            if problem:
                yield Finding("index", path, f"{path} {problem}; pxrs log repair makes it anew", is_damage)


def index_problem(directory: str, base: int) -> tuple[str, bool]:
    """What is wrong with an index file, "" for nothing; and whether readers could be misled by it.

    What fails its checksums is not used, and a crash may leave such an end behind.
    """
    segment = segment_path(directory, base)
    path = index_path(segment)
    known, walked = BatchIndex(), BatchIndex()
    saved = indexfile.load(path, known)
    if saved.size < os.path.getsize(path):
        return f"is spoilt from byte {saved.size} on", False
    try:
        walk_segment(segment, base, walked)
    except Damaged:
        return "", False  # the segment is what is damaged, and reading it says where
    walked.cut(saved.batches)
    return ("", False) if known.rows(0)[1] == walked.rows(0)[1] else ("does not fit its segment", True)


def walk_segment(path: str, base: int, index: BatchIndex) -> Walk:
    """Over a whole segment from its first byte on, with no help of an index file; Damaged where it cannot go on."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        start = check_schema(os.pread(fd, 4 * len(SCHEMA_MESSAGE), 0), path)
        return walk(fd, path, (start, base), index.add)
    finally:
        os.close(fd)


def _tail_findings(directory: str, manifest: Manifest) -> Iterator[Finding]:
    """The end of the last segment. (A last batch that is damaged, and not only incomplete, is seen by readers.)"""
    bases = [base for base in bases_of(directory, "arrow") if base >= manifest.summary.sealed_end]
    if not bases:
        return
    path = segment_path(directory, bases[-1])
    try:
        seen = walk_segment(path, bases[-1], BatchIndex())
    except Damaged:
        return
    if seen.tail is Tail.PARTIAL:
        text = f"{path} ends at byte {seen.position} with a part of a batch: being written now, or torn by a crash"
        yield Finding("tail", path, text, False)
