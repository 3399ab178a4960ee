"""Dead letters: messages that a handler could not process, kept with their cause until somebody looks at them.

They are a log of their own beside the queue, one for each group, so nothing about them is lost by a crash: a message
is in there, durable, before its group's checkpoint passes it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from pxrs.clock import Clock
from pxrs.errors import Conflict, NotFound
from pxrs.logs.base import DEAD_LETTERS, ENTRY_SCHEMA, Log, Stamp
from pxrs.model import Message
from pxrs.runtime.delivery import Context, messages_of
from pxrs.runtime.letters_seen import Waiting, waiting_in
from pxrs.stores.base import ABSENT, Store, Swap, Verdict

_PREFIX = "pxrs."
_STACK_LIMIT = 16_384


class DeadLetter(NamedTuple):
    """One kept message: its number in the box, where it came from, why it failed, and whether it was sent again."""

    number: int
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    headers: dict[str, bytes]
    tenant: str | None
    cause: str
    stack: str
    tries: int
    member: str
    timestamp_us: int
    retried: bool


class DeadLetters:
    """The box of one group."""

    def __init__(self, log: Log, store: Store, retried_key: str, group: str, clock: Clock) -> None:
        self._log = log
        self._store = store
        self._retried_key = retried_key
        self._name = f"{DEAD_LETTERS}{group}"
        self._clock = clock
        self._box: Log | None = None
        self._lock = threading.Lock()

    def keep(self, message: Message, cause: BaseException, stack: str, tries: int, context: Context) -> None:
        """Store a message durably. The same message of a repeated run is recognised and kept once."""
        headers = message.headers | {
            f"{_PREFIX}cause": f"{type(cause).__name__}: {cause}".encode(),
            f"{_PREFIX}stack": stack[-_STACK_LIMIT:].encode(errors="replace"),
            f"{_PREFIX}tries": str(tries).encode(),
            f"{_PREFIX}member": context.member.encode(),
            f"{_PREFIX}epoch": str(context.epoch).encode(),
            f"{_PREFIX}partition": str(message.partition).encode(),
            f"{_PREFIX}offset": str(message.offset).encode(),
            f"{_PREFIX}timestamp": str(message.timestamp_us).encode(),
        }
        entry = {
            "timestamp": int(self._clock.wall() * 1_000_000),
            "key": message.key,
            "value": message.value,
            "headers": [{"key": k, "value": v} for k, v in headers.items()],
            "id": message.raw_id,
            "tenant": message.tenant,
        }
        arrays = [pa.array([entry[field.name]], field.type) for field in ENTRY_SCHEMA]
        batch = pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)
        box = self._open(create=True)
        assert box is not None
        box.append({0: batch}, {0: Stamp(f"partition-{message.partition}", message.offset)})

    def __iter__(self) -> Iterator[DeadLetter]:
        box = self._open(create=False)
        if box is None:
            return
        retried = self._retried()
        offset, end = box.bounds(0)
        while offset < end:
            batch = box.read(0, offset)
            if batch is None:
                return
            for message in messages_of(batch, 0):
                yield _as_letter(message, message.offset in retried)
            offset += batch.num_rows

    def get(self, number: int) -> DeadLetter:
        for letter in self:
            if letter.number == number:
                return letter
        raise NotFound(f"there is no dead letter {number} in {self._name}")

    def waiting(self) -> Waiting:
        """The letters that were not sent again: how many, and since when the oldest is there."""
        box = self._open(create=False)
        return Waiting(0, None) if box is None else waiting_in(box, self._retried())

    def mark_retried(self, numbers: set[int]) -> None:
        """Remember which letters were sent again."""
        for _ in range(20):
            row = self._store.read([self._retried_key])[0]
            known = set(json.loads(row.value)["retried"]) if row else set()
            value = json.dumps({"v": 1, "retried": sorted(known | numbers)}).encode()
            swap = Swap(self._retried_key, row.version if row else ABSENT, value)
            if self._store.swap_each([swap])[0].verdict is Verdict.DONE:
                return
        raise Conflict(f"{self._retried_key} is being changed by others all the time")

    def _retried(self) -> set[int]:
        row = self._store.read([self._retried_key])[0]
        return set(json.loads(row.value)["retried"]) if row else set()

    def _open(self, create: bool) -> Log | None:
        with self._lock:
            if self._box is None:
                self._box = self._log.sibling(self._name, 1, create)
            return self._box


def _as_letter(message: Message, retried: bool) -> DeadLetter:
    headers = message.headers
    own = {k.removeprefix(_PREFIX): v.decode() for k, v in headers.items() if k.startswith(_PREFIX)}
    return DeadLetter(
        number=message.offset,
        partition=int(own.get("partition", -1)),
        offset=int(own.get("offset", -1)),
        key=message.key,
        value=message.value,
        headers={k: v for k, v in headers.items() if not k.startswith(_PREFIX)},
        tenant=message.tenant,
        cause=own.get("cause", ""),
        stack=own.get("stack", ""),
        tries=int(own.get("tries", 0)),
        member=own.get("member", ""),
        timestamp_us=message.timestamp_us,
        retried=retried,
    )
