"""Tells errors of reading a log from those of the function that gets the messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from pxrs.errors import Damaged, PxrsError, Unavailable


class ReadFailed(PxrsError):
    """Messages cannot be read: the log is to blame, and no message. ``partition`` is None if it may be any of them.

    Spark hands on the text of what a task has raised, so the text holds all that is to be known of it.
    """

    def __init__(self, partition: int | None, trouble: Exception) -> None:
        where = "partition ?" if partition is None else f"partition {partition}"
        super().__init__(f"{where}: {type(trouble).__name__}: {trouble}")
        self.partition = partition
        self.trouble = trouble


@contextmanager
def reading(partition: int | None = None) -> Iterator[None]:
    """Inside of it a log is read, and nothing else is done: what the log raises becomes ReadFailed."""
    try:
        yield
    except (Unavailable, Damaged, OSError) as error:
        raise ReadFailed(partition, error) from error


def reading_each(partition: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read each batch inside of ``reading``; the work with it is outside."""
    found = iter(batches)
    while True:
        with reading(partition):
            batch = next(found, None)
        if batch is None:
            return
        yield batch
