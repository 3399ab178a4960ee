"""The hooks that a log driver's test class fills in, and small helpers of the promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from pxrs.logs.base import ENTRY_SCHEMA, SCHEMA, Chunk, Log
from pxrs.settings import Settings
from pxrs.testing.stores.hooks import Background

OpenLog = Callable[..., Log]
"""``open_log(name="q", create=True, settings=None, **options)``: the same name is the same log."""

SMALL = Settings(segment_bytes=1, durability="flush", delete_delay_ms=0)
"""Settings with which a log stores its batches in several chunks, so that some can be trimmed at once."""


class LogPromises:
    """The hooks. Only ``make_log`` is a must."""

    patience: ClassVar[float] = 20.0
    """The time that something may take which must happen, before the promise counts as broken."""

    large_value: ClassVar[int] = 2 * 1_048_576
    """The size of a value that every log must store."""

    bad_names: ClassVar[tuple[str, ...]] = ("a" * 300, ".", "..", "a\0b", "a.", "-a", "C:\\x", "a b")
    """Names that no log may have. (A name with a slash is a path to a log in files, so it is not among them.)"""

    bad_siblings: ClassVar[tuple[str, ...]] = ("", "../x", "a/../b", "/etc", "a//b", "a/", ".", "a\0", "a b")
    """Names that no sibling of a log may have."""

    def make_log(
        self, place: Path, name: str = "q", create: bool = True, settings: Settings | None = None, **options: Any
    ) -> Log:
        """Open the log of this name; the same place and name are the same log.

        ``options`` are for ``pxrs.logs.base.OpenOptions``; ``settings`` are the log's, None means the usual ones of
        this test class. The name that the log's identity records ends with ``name``.
        """
        raise NotImplementedError


@contextmanager
def opener(suite: LogPromises, place: Path) -> Iterator[OpenLog]:
    """A function that opens logs in one place; all of them are closed at the end."""
    opened: list[Log] = []

    def open_log(name: str = "q", create: bool = True, settings: Settings | None = None, **options: Any) -> Log:
        opened.append(suite.make_log(place, name, create, settings, **options))
        return opened[-1]

    try:
        yield open_log
    finally:
        for log in opened:
            log.close()


# ---- batches, and their content as plain lists ----------------------------------------------------------------------


def entries(values: Sequence[bytes], time_us: int = 1_000, step_us: int = 0) -> pa.RecordBatch:
    """A batch to append: these values, at rising times."""
    rows = [
        {
            "timestamp": time_us + number * step_us,
            "key": b"key-%d" % number,
            "value": value,
            "headers": [{"key": "source", "value": b"web"}] if number % 2 else None,
            "id": b"%016d" % number,
            "tenant": None,
        }
        for number, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=ENTRY_SCHEMA)


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"value-%d" % number for number in range(start, start + count)]


def pairs(batch: pa.RecordBatch) -> list[tuple[int, bytes]]:
    values: list[Any] = batch.column("value").to_pylist()
    return list(zip(batch.column("offset").to_pylist(), values, strict=True))


def batches_of(log: Log, partition: int, offset: int = 0, max_rows: int = 10_000) -> Iterator[pa.RecordBatch]:
    """The batches that a reader gets until there is no more."""
    while (batch := log.read(partition, offset, max_rows)) is not None:
        assert 0 < batch.num_rows <= max_rows, f"{batch.num_rows} messages for max_rows = {max_rows}"
        yield batch
        offset += batch.num_rows


def read_all(log: Log, partition: int, offset: int = 0, max_rows: int = 10_000) -> list[tuple[int, bytes]]:
    """Read all messages from an offset on as (offset, value)."""
    return [pair for batch in batches_of(log, partition, offset, max_rows) for pair in pairs(batch)]


def read_table(log: Log, partition: int, offset: int = 0) -> pa.Table:
    """Read all messages from an offset on, with all their columns."""
    return pa.Table.from_batches(list(batches_of(log, partition, offset)), SCHEMA)


def fill(log: Log, batches: int, rows: int = 3, partition: int = 0) -> list[tuple[int, bytes]]:
    """Append some batches of numbered messages, a millisecond apart; what a reader must get for them."""
    _, end = log.bounds(partition)
    for first in range(end, end + batches * rows, rows):
        values = numbered(rows, first)
        assert log.append({partition: entries(values, 1_000 * first, 1_000)}) == {partition: first}
    return list(enumerate(numbered(batches * rows, end), end))


def covers(chunks: Sequence[Chunk], bounds: tuple[int, int]) -> bool:
    """Whether the chunks are contiguous and hold exactly what can be read."""
    reached, end = bounds
    for chunk in chunks:
        if chunk.start != reached or chunk.end < chunk.start:
            return False
        reached = chunk.end
    return reached == end


def existing(log: Log | None) -> Log:
    """A sibling that must be there."""
    assert log is not None, "a sibling that was created is not there"
    return log


def run_together(patience: float, calls: Sequence[Callable[[], object]]) -> list[Any]:
    """Run each in a thread of its own; their answers, or the first error."""
    running = [Background(call) for call in calls]
    return [one.result(patience, "one of several threads") for one in running]
