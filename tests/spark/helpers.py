"""A queue with known messages, and a way to run a fresh Spark application."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

import pxrs
from pxrs.logs.base import ENTRY_SCHEMA
from pxrs.spark.read.frame import frame_spec, table_of
from pxrs.spark.read.plan import Ranges, check_ranges

TIME_MS = 1_700_000_000_000
"""The message at offset n is n seconds younger than this."""
PARTITIONS = 4
EACH = 25
"""Messages in each partition of the orders."""


def open_orders(directory: object) -> pxrs.Queue:
    """A queue with so many messages in each partition, stored in batches of 10, 10 and 5."""
    queue = pxrs.open(f"file:{directory}/orders", partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        for first in range(0, EACH, 10):
            queue.log.append({partition: messages(partition, range(first, min(first + 10, EACH)))})
    return queue


def messages(partition: int, offsets: range) -> pa.RecordBatch:
    """What stands at these offsets; every column has nulls where it may have some."""
    rows = [
        {
            "timestamp": (TIME_MS + 1_000 * offset) * 1_000,
            "key": f"key-{offset % 3}".encode() if offset % 5 else None,
            "value": value_at(partition, offset),
            "headers": [{"key": "source", "value": b"web"}] if offset % 2 else None,
            "id": f"{partition:08d}{offset:08d}".encode(),
            "tenant": "acme" if offset % 4 == 0 else None,
        }
        for offset in offsets
    ]
    return pa.RecordBatch.from_pylist(rows, schema=ENTRY_SCHEMA)


def value_at(partition: int, offset: int) -> bytes:
    return f"{partition}/{offset}".encode()


def values_of(ranges: Mapping[int, tuple[int, int]]) -> list[bytes]:
    """The values of these ranges, sorted."""
    return sorted(value_at(p, offset) for p, (start, end) in ranges.items() for offset in range(start, end))


def run_fresh(script: str, *arguments: str, env: Mapping[str, str] | None = None) -> Any:
    """Run a program in a process of its own; its last line is JSON, and is returned."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True, text=True, timeout=240, check=False, env={**os.environ, **(env or {})},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def arrow_of(queue: pxrs.Queue, ranges: Ranges, columns: Any = None, map_arrow: Any = None, schema: Any = None) -> Any:
    """What ``frame`` would hold, read in this process, as a pipeline reads small batches."""
    spec = frame_spec(queue.log.identity.name, columns, map_arrow, schema)
    return table_of(queue.log, check_ranges(queue.log, ranges), spec)[0]
