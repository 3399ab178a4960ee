"""Dead letters: messages that a handler could not process, kept with their cause until somebody looks at them.

They are a log of their own beside the queue, one for each group, so nothing about them is lost by a crash: a message
is in there, durable, before its group's checkpoint passes it.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import pyarrow as pa

from pxrs.errors import Closed, Conflict, Damaged, NotFound, OutOfRange, PxrsError, Refused, Unavailable, disk_text
from pxrs.io.clock import Clock
from pxrs.logs.base import DEAD_LETTERS, ENTRY_SCHEMA, Log, LogIdentity, Stamp
from pxrs.model import Message
from pxrs.rules.addressing import ONLY_FOR, Reader
from pxrs.rules.routing.partitioner import Partitioner
from pxrs.runtime.dead_letters.letter import DeadLetter, Failure, letter_in, letter_of
from pxrs.runtime.delivery import Context, messages_of
from pxrs.runtime.producer.retry import append_patiently
from pxrs.runtime.views.tables import counted
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, Row, Store, Swap, Verdict

logger = logging.getLogger(__name__)

RETRIED_FROM = "pxrs.retried-from"
"""Tells people which letter a message was that was sent again for all groups."""
BLOCK = 4_096
"""This many letters share a row of the registry. With 32 KB at most, it fits into every store."""
_TOGETHER = 100
"""This many letters are appended, and then marked, at a time."""


class Waiting(NamedTuple):
    """The letters of a box that were not sent again: how many, and when the oldest was put there, in microseconds."""

    letters: int
    oldest_us: int | None

    def age_seconds(self, wall: float) -> float | None:
        """Seconds for which the oldest has been waiting at this time; None if there is none."""
        return None if self.oldest_us is None else max(0.0, wall - self.oldest_us / 1_000_000)


class DeadLetters:
    """The box of one group. ``check`` refuses a registry that is not the log's own: it keeps what was sent again."""

    def __init__(
        self,
        log: Log,
        store: Store,
        retried_key: str,
        group: str,
        clock: Clock,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self._check = check
        self._log = log
        self._retried = Retried(store, retried_key)
        self._group = group
        self._name = f"{DEAD_LETTERS}{group}"
        self._clock = clock
        self._box: Log | None = None
        self._lock = threading.Lock()

    def keep(self, message: Message, cause: BaseException | str, stack: str, tries: int, context: Context) -> None:
        """Store a message durably, whatever its error says. The same message of a repeated run is kept once.

        Raises Unavailable while the log does not answer; to call it again then is safe.
        """
        failure = Failure.of(cause, stack, tries, context)
        try:
            box = self._open(create=True)
            assert box is not None
            self._append(box, message, failure)
        except (Damaged, Closed):
            self._box = None  # it may have been deleted: the next call opens it, or makes it anew
            raise
        except OSError as error:
            raise Unavailable(
                f"{self._name} of queue {self._log.identity.name!r}: {disk_text(error, self._name)}"
            ) from error

    def _append(self, box: Log, message: Message, failure: Failure) -> None:
        """A message is known by its log, its place and its id. One that fails after its letter was sent again, because
        somebody has sought back, gets a new letter."""
        log_id, now_us = self._log.identity.id, int(self._clock.wall() * 1_000_000)
        batch = letter_of(message, failure, log_id, now_us, box.largest_message)
        name = f"{log_id}/{message.partition}-{message.offset}/{message.id}"
        end = box.bounds(0)[1]
        for times in count():
            number = box.append({0: batch}, {0: Stamp(name, times)})[0]
            if number >= end or number not in self._retried.numbers(box.identity.id, end):
                return

    def __len__(self) -> int:
        """The number of kept letters, with those that were sent again."""
        box = self._open(create=False)
        if box is None:
            return 0
        start, end = box.bounds(0)
        return end - start

    def __bool__(self) -> bool:
        """A box is one, however many letters are in it."""
        return True

    def __repr__(self) -> str:
        of = f"<DeadLetters of group {self._group!r} of queue {self._log.identity.name!r}"
        try:
            return f"{of}: {counted(len(self), 'letter')}>"
        except (PxrsError, OSError) as error:
            return f"{of}: {error}>"

    def __iter__(self) -> Iterator[DeadLetter]:
        box = self._open(create=False)
        if box is None:
            return
        offset, end = box.bounds(0)
        retried = self._retried.numbers(box.identity.id, end)
        while offset < end:
            batch = box.read(0, offset)
            if batch is None:
                return
            for stored in messages_of(batch, 0):
                yield self._whole(letter_in(stored, stored.offset in retried))
            offset += batch.num_rows

    def get(self, number: int) -> DeadLetter:
        """The letter of this number, as ``pxrs dlq ls`` shows it."""
        if type(number) is not int:
            raise Refused(f"number = {number!r}: must be the number of a letter, a whole number, as 5 is")
        box = self._open(create=False)
        try:
            batch = None if box is None else box.read(0, number, 1)
        except OutOfRange:
            batch = None
        if box is None or batch is None:
            raise NotFound(f"there is no dead letter {number} in {self._name}")
        retried = self._retried.numbers(box.identity.id, number + 1)
        return self._whole(letter_in(next(messages_of(batch, 0)), number in retried))

    def retry(self, numbers: Iterable[int] | None = None, all_groups: bool = False, again: bool = False) -> list[int]:
        """Send letters again, to the end of their partitions; returns the numbers of those that were sent.

        None: all of them. Those that were sent again before are left out, unless ``again``. Only this group processes
        the messages; with ``all_groups`` every group does. A crash may send a letter twice, and loses none.
        """
        if numbers is not None and (isinstance(numbers, str | bytes) or not isinstance(numbers, Iterable)):
            raise Refused(f"numbers = {numbers!r}: must be the numbers of letters, as [5] is, or None for all")
        self._check()
        chosen = list(self) if numbers is None else [self.get(number) for number in sorted(set(numbers))]
        todo = [letter for letter in chosen if again or not letter.retried]
        gone = [letter for letter in todo if letter.missing]
        if gone and numbers is not None:
            raise Refused(f"dead letter {gone[0].number}: {gone[0].missing}; nothing was sent")
        for letter in gone:
            logger.warning("dead letter %d of %s is left out: %s", letter.number, self._name, letter.missing)
        there = [letter for letter in todo if not letter.missing]
        sent: list[int] = []
        for part in _resend(self._log, there, self._group, all_groups, self._clock):
            self.mark_retried(set(part))  # they are durable
            sent += part
        return sent

    def waiting(self) -> Waiting:
        """The letters that were not sent again. They are counted by the bounds of the box, and only the oldest is
        read: cheap enough to be asked all the time."""
        box = self._open(create=False)
        if box is None:
            return Waiting(0, None)
        start, end = box.bounds(0)
        retried = self._retried.numbers(box.identity.id, end)
        count = end - start - sum(start <= number < end for number in retried)
        first = next((number for number in range(start, end) if number not in retried), None)
        batch = None if first is None else box.read(0, first, 1)
        return Waiting(count, None if batch is None else next(messages_of(batch, 0)).timestamp_us)

    def mark_retried(self, numbers: set[int]) -> None:
        """Remember which letters were sent again."""
        box = self._open(create=False)
        if box is None:
            raise NotFound(f"there are no dead letters in {self._name}")
        self._retried.add(box.identity.id, numbers)

    def _whole(self, letter: DeadLetter) -> DeadLetter:
        """The letter, with the message from the queue's log if it was too large to be kept."""
        if not letter.by_reference:
            return letter
        message = self._find(letter)
        if isinstance(message, str):
            return letter._replace(missing=message)
        return letter._replace(key=message.key, value=message.value, headers=message.headers, tenant=message.tenant)

    def _find(self, letter: DeadLetter) -> Message | str:
        """The message that a letter refers to, or why it is not there."""
        where = f"it was too large to be kept, and its place, partition {letter.partition} offset {letter.offset},"
        if letter.log != self._log.identity.id:
            return f"{where} was in a log that is gone: the queue was created anew"
        try:
            batch = self._log.read(letter.partition, letter.offset, 1)
        except (OutOfRange, NotFound, Damaged) as error:
            return f"{where} cannot be read any more: {error}"
        found = None if batch is None else next(messages_of(batch, letter.partition))
        if found is None or found.id != letter.id:
            return f"{where} holds another message now: the log was cut"
        return found

    def _open(self, create: bool) -> Log | None:
        with self._lock:
            if self._box is None:
                self._box = self._log.sibling(self._name, 1, create)
            return self._box


# ---- sending again: to the end of the partitions that the letters came from -----------------------------------------


def _resend(log: Log, letters: Sequence[DeadLetter], group: str, all_groups: bool, clock: Clock) -> Iterator[list[int]]:
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
    """Replace what an earlier retry has written."""
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
    """The partition of the message. In a queue that was created anew: the partition of its key."""
    if letter.log in ("", identity.id) and 0 <= letter.partition < identity.partitions:
        return letter.partition
    if letter.key is None:
        return letter.number % identity.partitions
    return Partitioner(identity.partitions, identity.hash, identity.reduce).partition(letter.key)


# ---- which letters were sent again ----------------------------------------------------------------------------------


class Retried:
    """The numbers of the letters of one box that were sent again.

    The row of the first block is the one that PXRS before 0.6 knows, and may hold any numbers that were written by it.
    A row names the box that it is about: numbers of a box that was deleted say nothing of the one made after it.
    """

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key

    def numbers(self, box: str, letters: int) -> set[int]:
        """The numbers of the first letters of this box that were sent again."""
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
