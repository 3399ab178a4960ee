"""Small batches, and their content as plain lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from pxrs.logs.base import ENTRY_SCHEMA, Log


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


def read_all(log: Log, partition: int, offset: int = 0, max_rows: int = 10_000) -> list[tuple[int, bytes]]:
    """All messages from an offset on as (offset, value)."""
    found: list[tuple[int, bytes]] = []
    while (batch := log.read(partition, offset, max_rows)) is not None:
        found += pairs(batch)
        offset += batch.num_rows
    return found


def pairs(batch: pa.RecordBatch) -> list[tuple[int, bytes]]:
    values: list[Any] = batch.column("value").to_pylist()
    return list(zip(batch.column("offset").to_pylist(), values, strict=True))


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"value-%d" % number for number in range(start, start + count)]


OpenLog = Callable[..., Log]
