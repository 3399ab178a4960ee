"""Sending dead letters again: to the end of the partitions that they came from, for one group or for all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from pxrs.errors import Conflict, Damaged
from pxrs.io.clock import Clock
from pxrs.logs.base import ENTRY_SCHEMA, Log, LogIdentity, Stamp
from pxrs.rules.addressing import ONLY_FOR, Reader
from pxrs.rules.routing.partitioner import Partitioner
from pxrs.runtime.dead_letters.letter import DeadLetter
from pxrs.runtime.producer.retry import append_patiently
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, Row, Store, Swap, Verdict

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


# ---- which letters were sent again ----------------------------------------------------------------------------------


BLOCK = 4_096
"""So many letters share a row. Of 32 KB at most, it fits into every store."""


class Retried:
    """The numbers of the letters of one box that were sent again.

    The row of the first block is the one that PXRS before 0.6 knows, and may hold any numbers that were written by it.
    A row names the box that it is about: numbers of a box that was deleted say nothing of the one made after it.
    """

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key

    def numbers(self, box: str, letters: int) -> set[int]:
        """Which of the first so many letters of this box were sent again."""
        keys = [self._key_of(block) for block in range(-(-letters // BLOCK))]
        return {number for row in self._store.read(keys) for number in _in(row, box)} if keys else set()

    def add(self, box: str, numbers: Iterable[int]) -> None:
        """Remember these as well."""
        blocks: dict[int, set[int]] = {}
        for number in numbers:
            blocks.setdefault(number // BLOCK, set()).add(number)
        for block, own in sorted(blocks.items()):
            self._add(self._key_of(block), box, own)

    def _add(self, key: str, box: str, numbers: set[int]) -> None:
        for _ in range(20):
            row = self._store.read([key])[0]
            value = {"v": 1, "box": box, "retried": sorted(_in(row, box) | numbers)}
            swap = Swap(key, row.version if row else ABSENT, json.dumps(value, separators=(",", ":")).encode())
            if self._store.swap_each([swap])[0].verdict is Verdict.DONE:
                return
        raise Conflict(f"{key} is being changed by others all the time")

    def _key_of(self, block: int) -> str:
        return f"{self._key}-{block:05d}" if block else self._key


def _in(row: Row | None, box: str) -> set[int]:
    if row is None:
        return set()
    try:
        fields = json.loads(row.value)
        return set(map(int, fields["retried"])) if fields.get("box", box) == box else set()
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Damaged(f"registry row {row.key!r} is no list of dead letters that were sent again: {error!r}") from error
