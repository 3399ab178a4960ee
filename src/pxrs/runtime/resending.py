"""Sending dead letters again: to the end of the partitions that they came from, for one group or for all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from pxrs.clock import Clock
from pxrs.logs.base import ENTRY_SCHEMA, Log, LogIdentity, Stamp
from pxrs.rules.addressing import ONLY_FOR, Reader
from pxrs.rules.partitioning import Partitioner
from pxrs.runtime.appending import append_patiently
from pxrs.runtime.letters import DeadLetter
from pxrs.settings import Settings

RETRIED_FROM = "pxrs.retried-from"
"""Tells people which letter a message was that was sent again for all groups."""
_TOGETHER = 100
"""So many are appended, and then marked, at a time."""


def resend(log: Log, letters: Sequence[DeadLetter], group: str, all_groups: bool, clock: Clock) -> Iterator[list[int]]:
    """Append the letters of a group, for it alone or for all; yields the numbers of those that are durable."""
    producer = os.urandom(8)
    for start in range(0, len(letters), _TOGETHER):
        part = letters[start : start + _TOGETHER]
        rows: dict[int, list[dict[str, Any]]] = {}
        for number, letter in enumerate(part, start):
            mine = {ONLY_FOR: Reader(log.identity.id, group).mark(letter.number)}
            header = {RETRIED_FROM: f"{group}/{letter.number}".encode()} if all_groups else mine
            row = _row(letter, header, int(clock.wall() * 1_000_000), producer + number.to_bytes(8, "big"))
            rows.setdefault(_partition(log.identity, letter), []).append(row)
        batches = {partition: pa.RecordBatch.from_pylist(own, ENTRY_SCHEMA) for partition, own in rows.items()}
        stamps = dict.fromkeys(batches, Stamp(producer.hex(), start))
        append_patiently(log, batches, stamps, Settings(), clock)
        yield [letter.number for letter in part]


def _row(letter: DeadLetter, header: dict[str, bytes], now_us: int, message_id: bytes) -> dict[str, Any]:
    """What an earlier retry has written is replaced."""
    kept = {name: value for name, value in letter.headers.items() if name not in (ONLY_FOR, RETRIED_FROM)}
    return {
        "timestamp": now_us,
        "key": letter.key,
        "value": letter.value,
        "headers": [{"key": name, "value": value} for name, value in (kept | header).items()],
        "id": message_id,
        "tenant": letter.tenant,
    }


def _partition(identity: LogIdentity, letter: DeadLetter) -> int:
    """Where the message stood. In a queue that was created anew: where its key belongs."""
    if letter.log in ("", identity.id) and 0 <= letter.partition < identity.partitions:
        return letter.partition
    if letter.key is None:
        return letter.number % identity.partitions
    return Partitioner(identity.partitions, identity.hash, identity.reduce).partition(letter.key)
