"""Dead letters: messages that a handler could not process, kept with their cause until somebody looks at them.

They are a log of their own beside the queue, one for each group, so nothing about them is lost by a crash: a message
is in there, durable, before its group's checkpoint passes it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import count

from pxrs.errors import Closed, Damaged, NotFound, OutOfRange, PxrsError, Refused, Unavailable, disk_text
from pxrs.io.clock import Clock
from pxrs.logs.base import DEAD_LETTERS, Log, Stamp
from pxrs.model import Message
from pxrs.runtime.dead_letters.letter import DeadLetter, Failure, letter_in, letter_of
from pxrs.runtime.dead_letters.resend import Retried, resend
from pxrs.runtime.dead_letters.waiting import Waiting, waiting_in
from pxrs.runtime.delivery import Context, messages_of
from pxrs.runtime.views.tables import counted
from pxrs.stores.base import Store

__all__ = ["DeadLetter", "DeadLetters"]

logger = logging.getLogger(__name__)


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
        """How many letters are kept, with those that were sent again."""
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
        for part in resend(self._log, there, self._group, all_groups, self._clock):
            self.mark_retried(set(part))  # they are durable
            sent += part
        return sent

    def waiting(self) -> Waiting:
        """The letters that were not sent again: how many, and since when the oldest is there."""
        box = self._open(create=False)
        if box is None:
            return Waiting(0, None)
        return waiting_in(box, self._retried.numbers(box.identity.id, box.bounds(0)[1]))

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
