"""Lists a partition's directory: which files there are, and which of them nobody needs any more.

The first line of the manifest is enough for that. It is the one place that says what is left over: sweeps, readers,
``pxrs log verify`` and ``pxrs log repair`` all ask here.
"""

from __future__ import annotations

import os
import re

from pxrs.errors import Damaged
from pxrs.logs.formats.manifest import NAME, Summary
from pxrs.logs.formats.sealed_parquet import sealed_name

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
