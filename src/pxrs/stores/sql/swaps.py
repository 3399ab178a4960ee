"""Swaps in an SQL database, in a transaction of our own or in the caller's: which requests they become."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Self

from pxrs.errors import Refused
from pxrs.stores.base import ABSENT, CONFLICT, Outcome, Row, Swap, done
from pxrs.stores.sql.statements import Found, PendingSwap, Statements
from pxrs.stores.sql.tables import LONGEST_KEY
from pxrs.stores.versions import new_version

ROWS_PER_REQUEST = 1_000
BYTES_PER_REQUEST = 1_000_000
"""MariaDB takes 16 MiB in one request, and a byte is written as two."""


class SwapAttempt(ABC):
    """One try at some swaps, over one connection."""

    alone: bool
    """Whether a request may be a transaction by itself."""

    cursor: Any
    committing = False
    """From here on, what has no answer may have been done."""

    def __init__(self, statements: Statements) -> None:
        self.statements = statements

    def over(self, cursor: Any) -> Self:
        self.cursor = cursor
        return self

    @abstractmethod
    def begin(self) -> None:
        """What follows can be undone."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def undo(self) -> None: ...

    def swap_each(self, wishes: Sequence[PendingSwap]) -> list[Outcome]:
        if not are_plain(wishes):
            return self._one_by_one(wishes)
        self.committing = self.alone
        if len(wishes) == 1:
            return [outcome_of(wishes[0], self.statements.swap(self.cursor, wishes[0]))]
        swap = self.statements.swap_and_commit if self.alone else self.statements.swap_many
        news = swap(self.cursor, wishes)
        return [outcome_of(wish, wish.new in news) for wish in wishes]

    def swap_all(self, wishes: Sequence[PendingSwap]) -> Outcome:
        if self.alone and are_plain(wishes) and self.statements.can_all_at_once(wishes):
            self.committing = True
            return highest(wishes) if self.statements.swap_all_at_once(self.cursor, wishes) else CONFLICT
        self.begin()
        if self._do_all(wishes):
            self.commit()
            return highest(wishes)
        self.undo()
        return CONFLICT

    def _one_by_one(self, wishes: Sequence[PendingSwap]) -> list[Outcome]:
        """Several swaps of one key are judged in their order."""
        self.begin()
        outcomes = [outcome_of(wish, self.statements.swap(self.cursor, wish)) for wish in wishes]
        self.commit()
        return outcomes

    def _do_all(self, wishes: Sequence[PendingSwap]) -> bool:
        if not are_plain(wishes):
            return all(self.statements.swap(self.cursor, wish) for wish in wishes)
        parts = list(requests(wishes))
        return all(len(self.statements.swap_many(self.cursor, part)) == len(part) for part in parts)


class OwnChange(SwapAttempt):
    """In a transaction of our own."""

    alone = True

    def begin(self) -> None:
        self.statements.driver.begin(self.cursor)

    def commit(self) -> None:
        self.committing = True
        self.statements.driver.commit(self.cursor)

    def undo(self) -> None:
        self.statements.driver.rollback(self.cursor)


class JoinedChange(SwapAttempt):
    """In the caller's transaction, which the caller commits."""

    alone = False

    def begin(self) -> None:
        self.cursor.execute("SAVEPOINT pxrs")

    def commit(self) -> None:
        return

    def undo(self) -> None:
        self.cursor.execute("ROLLBACK TO SAVEPOINT pxrs")


def are_plain(wishes: Sequence[PendingSwap]) -> bool:
    """Whether their order does not matter, and each is one statement."""
    if len(wishes) == 1:
        return not wishes[0].is_of_nothing
    return len({wish.key for wish in wishes}) == len(wishes) and not any(wish.is_of_nothing for wish in wishes)


def requests(wishes: Sequence[PendingSwap]) -> Iterator[list[PendingSwap]]:
    """In parts that fit into a request, in their order: whoever rings a bell does it last."""
    part: list[PendingSwap] = []
    size = 0
    for wish in wishes:
        more = len(wish.key) + len(wish.value or b"")
        if part and (len(part) == ROWS_PER_REQUEST or size + more > BYTES_PER_REQUEST):
            yield part
            part, size = [], 0
        part.append(wish)
        size += more
    if part:
        yield part


def outcome_of(wish: PendingSwap, was_done: bool) -> Outcome:
    if not was_done:
        return CONFLICT
    return done(ABSENT if wish.value is None else wish.new)


def highest(wishes: Sequence[PendingSwap]) -> Outcome:
    return done(max((wish.new for wish in wishes if wish.value is not None), default=ABSENT))


def wishes_of(swaps: Sequence[Swap], least_key: bytes) -> list[PendingSwap]:
    return [PendingSwap(encoded(key, least_key), expect, new_version(), value) for key, expect, value, _ in swaps]


def encoded(key: str, least_key: bytes = b"") -> bytes:
    try:
        found = key.encode()
    except UnicodeEncodeError:
        raise Refused(f"key {key[:80]!r} has no UTF-8 form") from None
    if len(found) > LONGEST_KEY:
        raise Refused(f"key {key[:80]!r}… has {len(found)} bytes: an SQL registry takes {LONGEST_KEY}")
    if found < least_key:
        raise Refused("an empty key is NULL in this database, and cannot be stored")
    return found


def key_range(prefix: str, least_key: bytes) -> tuple[bytes, bytes]:
    """The keys that begin so: from the first on, and before the second. UTF-8 has no byte of 255."""
    low = encoded(prefix)
    return low or least_key, low[:-1] + bytes([low[-1] + 1]) if low else b"\xff"


def as_rows(found: Sequence[Found]) -> list[Row]:
    return [Row(key.decode(), value, version) for key, value, version in found]
