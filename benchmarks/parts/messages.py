"""Messages of 100 bytes for the benchmarks on Spark: in a queue, and the same as Parquet and JSON for the peers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import pxrs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 8
ACCOUNTS = 1_000
_CHUNK = 100_000
JSON_COLUMNS = "key string, value string, topic string, partition int, offset long, timestamp timestamp"
"""JSON is text throughout. Given always: Spark would read everything twice to guess it."""


def chunk(first: int, rows: int) -> pa.Table:
    """Messages ``first`` to ``first + rows``: JSON of exactly 100 bytes, keyed by account. Always the same ones."""
    random = np.random.default_rng(first)
    account = _padded(random.integers(0, ACCOUNTS, rows), 5, "0")
    amount = _padded(random.integers(1, 100_000, rows), 6, "0")
    number = _padded(np.arange(first, first + rows), 10, " ")
    key = _joined("account-", account)
    identifier = _hexadecimal(random, rows, 32)
    value = _joined('{"n":', number, ',"amount":"', amount, '","account":"', key, '","id":"', identifier, '"}')
    return pa.table({"key": key, "value": value.cast(pa.binary())})


def _padded(numbers: np.ndarray, width: int, padding: str) -> pa.Array:
    return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width, padding)


def _hexadecimal(random: np.random.Generator, rows: int, width: int) -> pa.Array:
    """Of random bytes, as identifiers are: padding would shrink to nothing in a peer that compresses."""
    digits = pa.py_buffer(random.bytes(rows * width // 2).hex().encode())
    return pa.Array.from_buffers(pa.binary(width), rows, [None, digits]).cast(pa.binary()).cast(pa.string())


def _joined(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def fill(queue: pxrs.Queue, count: int) -> None:
    """Send so many messages to a queue."""
    with queue.producer() as producer:
        for first in range(0, count, _CHUNK):
            producer.send_batch(chunk(first, min(_CHUNK, count - first)))


def write_parquet(messages: DataFrame, place: Path) -> None:
    """By Spark's own writer, with its defaults; a file for each partition."""
    messages.write.parquet(str(place))


def write_json(messages: DataFrame, place: Path) -> None:
    """As JSON lines: what is binary in a queue is text there."""
    messages.selectExpr(
        "cast(key as string) key", "cast(value as string) value", "topic", "partition", "offset", "timestamp"
    ).write.json(str(place))


def whole(spark: SparkSession, place: str) -> DataFrame:
    """All messages of the queue, a task for each partition."""
    return spark.read.format("pxrs").option("minPartitions", PARTITIONS).load(place)
