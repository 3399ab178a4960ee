"""Appends batches once, although other processes may have appended them already, or may be doing it now."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from pxrs.errors import Conflict, Expired
from pxrs.logs.base import Log, Stamp

_LOOK_ROWS = 65_536
_MAX_PARTS = 1 << 20


def part_stamp(producer: str, sequence: int, part: int, content: str = "") -> Stamp:
    """The stamp of one part of a numbered write. A write is cut the same way each time, so a part that is appended
    again has the same stamp."""
    return Stamp(producer, sequence * _MAX_PARTS + part, content=content)


class AppendOnce:
    """Carries one write out: its batches in their order, under their stamps. Others may do the same at any time.

    All of them append in the same order, so in a partition each batch is behind the one before it: ``since``
    there. With that the log compares and appends in one step. If it has forgotten stamps since then, it appends
    nothing (Conflict), and the rows themselves are looked for, by the id of the first one. So it does not matter how
    long a process sleeps, and where.

    Threads may append at the same time, each to partitions of its own.
    """

    def __init__(self, log: Log, holds: Callable[[], bool]) -> None:
        self._log = log
        self._holds = holds
        self._since: dict[int, int] = {}

    def append(self, batches: Mapping[int, pa.RecordBatch], stamp: Stamp, after: Mapping[int, int]) -> bool:
        """Append what is not stored yet; False if somebody else has finished the whole write (``holds``).

        ``after``: how far each partition reached before anything of the write was appended. If it raises, the same
        can be asked again.
        """
        for partition in batches:
            self._since[partition] = max(self._since.get(partition, 0), after.get(partition, 0))
        missing = dict(batches)
        while missing:
            if not self._holds():
                return False
            stamps = {partition: stamp._replace(since=self._since[partition]) for partition in missing}
            try:
                firsts = self._log.append(missing, stamps)
            except Conflict:
                missing = {partition: rows for partition, rows in missing.items() if not self._finds(partition, rows)}
                continue
            self._since |= {partition: first + missing[partition].num_rows for partition, first in firsts.items()}
            break
        return True

    def _finds(self, partition: int, batch: pa.RecordBatch) -> bool:
        """Whether the batch is in the log. Rows are appended together, so where the first one is all are."""
        mark, offset = batch.column("id")[0], self._since[partition]
        while True:
            try:
                rows = self._log.read(partition, offset, _LOOK_ROWS)
            except Expired:  # deleted, perhaps with what is looked for: nobody can tell any more
                offset = self._log.bounds(partition)[0]
                continue
            if rows is None:
                self._since[partition] = offset
                return False
            at = pc.index(rows.column("id"), mark).as_py()
            if at >= 0:
                self._since[partition] = offset + at + batch.num_rows
                return True
            offset += rows.num_rows
