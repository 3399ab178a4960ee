"""The registry in an SQL database: ``postgresql://``, ``mysql://`` (MariaDB too) and ``oracle://``.

    postgresql://user:password@host:5432/database?table=pxrs

Every write gives its row a random version of 62 bits. So a version is never used twice, not after a delete and not
after the database was restored from a copy; no row counts versions, and nobody queues for it; and when the answer to
a COMMIT is lost, the version in the row shows whether it was ours.

A swap alone is one statement that commits itself. Several swaps are one transaction, in one request where the
database takes it. What fails before its commit was rolled back, and raises Unavailable (or is tried again, after a
deadlock). What breaks in its commit is looked up once, by version, and else UNKNOWN. Isolation is READ COMMITTED; no
lock outlives a transaction.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import xxhash
from sqlalchemy import Connection, Engine

from pxrs.errors import Damaged, PxrsError, Refused, Unavailable, WentBack
from pxrs.io.address import Address, parse
from pxrs.io.clock import SystemClock
from pxrs.io.sql.connections import Connections, Deadline, Driver, Sort, Trouble, as_error, driver_for
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, Guarantee, Outcome, Row, Store, Swap, done, unknown
from pxrs.stores.sql.statements import (
    JoinedChange,
    OwnChange,
    PendingSwap,
    Statements,
    SwapAttempt,
    as_rows,
    encoded,
    highest,
    key_range,
    outcome_of,
    pending_writes,
    requests,
    statements_for,
)
from pxrs.stores.sql.tables import Tables

OPTIONS = ("table", "look_ms")
_TIMES_TO_PREPARE = 4
_BACK_OFF_SECONDS = (0.001, 0.02)
_PASSES = (Sort.AGAIN, Sort.LOST)
"""Trouble after which another try may do, where it is certain that nothing was changed."""

T = TypeVar("T")


class SqlStore(Store):
    """A handle on the tables; safe to use from several threads, and from a forked child.

    Rows of the registry and rows of the caller in one transaction::

        with store.engine.begin() as connection:
            connection.execute(insert(payments), ...)
            outcome = store.within(connection).swap_all(swaps)

    The swaps of such a store are part of the caller's transaction: DONE means done if the caller commits, and a
    rollback takes them back. An error means that the transaction must be rolled back.
    """

    guarantees: ClassVar[frozenset[Guarantee]] = frozenset(
        {
            Guarantee.DURABLE,
            Guarantee.LINEARIZABLE,
            Guarantee.ACROSS_PROCESSES,
            Guarantee.ACROSS_HOSTS,
            Guarantee.ATOMIC_ROWS,
        }
    )
    max_atomic: ClassVar[int] = 10_000

    def __init__(self, address: Address, settings: Settings) -> None:
        self.address = address
        self._driver = driver = driver_for(address.scheme)
        self._tables = Tables(address.options.get("table", "pxrs"), driver)
        look_ms = address.number("look_ms", LOOK_MS) if "look_ms" in address.options else None
        self._looks = Looks(look_ms, settings.beat_ms, SystemClock().monotonic)
        self._statements = statements_for(self._tables.rows, driver)
        self._connections = Connections(driver, address, address.timeout(settings), self._greet)
        self._ready = False

    @classmethod
    def open(cls, url: str, settings: Settings) -> SqlStore:
        scheme = url.partition(":")[0].lower()
        address = parse(url, driver_for(scheme).default_port, OPTIONS, any_option=True)
        store = cls(address, settings)
        try:
            store._open()
        except BaseException:
            store.close()
            raise
        return store

    def __repr__(self) -> str:
        return f"SqlStore({str(self.address)!r}, table={self._tables.name!r})"

    def _open(self) -> None:
        # Where many open a new registry at once, they queue for the right to make its tables.
        deadline = Deadline(_TIMES_TO_PREPARE * self._connections.seconds)
        self._asking(lambda cursor: self._tables.prepare(cursor, self.address), deadline)
        self._ready = True

    def _greet(self, cursor: Any) -> None:
        if self._ready:
            self._tables.check(cursor, self.address)

    @property
    def engine(self) -> Engine:
        """SQLAlchemy's engine on this database, with the same credentials."""
        return self._connections.engine

    def within(self, connection: Connection) -> Store:
        """This registry, in the caller's open transaction."""
        return _JoinedStore(self.address, self._statements, connection)

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        wanted = [encoded(key, self._driver.least_key) for key in keys]
        found = self._asking(lambda cursor: self._statements.read(cursor, wanted))
        return in_order(keys, as_rows(found))

    def scan(self, prefix: str) -> list[Row]:
        low, high = key_range(prefix, self._driver.least_key)
        return as_rows(self._asking(lambda cursor: self._statements.scan(cursor, low, high)))

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        writes = pending_writes(swaps, self._driver.least_key)
        if len(writes) == 1 and not writes[0].is_of_nothing:
            return [self._alone(writes[0])]
        outcomes: list[Outcome] = []
        for part in requests(writes):
            try:
                outcomes += self._each(part)
            except Unavailable as error:
                if not outcomes:
                    raise
                # The parts before this one are done, and the caller must get their outcomes.
                return outcomes + [unknown(str(error))] * (len(writes) - len(outcomes))
        return outcomes

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        if len(swaps) > self.max_atomic:
            raise Refused(f"{len(swaps)} rows in one atomic swap: {self.address} takes {self.max_atomic}")
        writes = pending_writes(swaps, self._driver.least_key)
        if not writes:
            return done(ABSENT)
        deadline = self._connections.deadline()
        try:
            return self._changing(lambda change: change.swap_all(writes), deadline)
        except _Doubt as doubt:
            mine = self._versions_that_exist(writes, deadline)
            return highest(writes) if mine else unknown(str(doubt))

    def wait(self, prefix: str, after: int, timeout: float) -> int:
        deadline = Deadline(timeout)
        low, high = key_range(prefix, self._driver.least_key)
        while True:
            text = self._asking(lambda cursor: self._statements.look(cursor, low, high))
            mark = xxhash.xxh3_64_intdigest(text.encode()) >> 1 or 1
            left = deadline.left
            pause = min(self._looks.pause(prefix, mark), left)
            if mark != after or left <= 0 or self._connections.pause(pause):
                return mark

    def close(self) -> None:
        self._connections.close()

    def _alone(self, write: PendingSwap) -> Outcome:
        """Swap by one statement that commits itself: without an answer it may always have been done."""
        deadline = self._connections.deadline()
        while True:
            try:
                return outcome_of(write, self._connections.run(self._commit_alone, deadline, write))
            except Trouble as trouble:
                if trouble.sort is Sort.LOST:
                    mine = self._versions_that_exist([write], deadline)
                    return outcome_of(write, True) if mine else unknown(f"{self.address}: {trouble}")
                self._back_off(trouble, deadline)

    def _commit_alone(self, cursor: Any, write: PendingSwap) -> bool:
        return self._statements.swap(cursor, write)

    def _each(self, writes: list[PendingSwap]) -> list[Outcome]:
        deadline = self._connections.deadline()
        try:
            return self._changing(lambda change: change.swap_each(writes), deadline)
        except _Doubt as doubt:
            mine = self._versions_that_exist(writes, deadline)
            return [done(write.new) if write.new in mine else unknown(str(doubt)) for write in writes]

    def _changing(self, work: Callable[[SwapAttempt], T], deadline: Deadline) -> T:
        """Do it in one transaction. Deadlocks, and connections that break before the commit, are tried again."""
        while True:
            change = OwnChange(self._statements)
            try:
                return self._try(change, work, deadline)
            except Trouble as trouble:
                if trouble.sort is Sort.LOST and change.committing:
                    raise _Doubt(f"{self.address}: {trouble}") from trouble
                self._back_off(trouble, deadline)

    def _try(self, change: SwapAttempt, work: Callable[[SwapAttempt], T], deadline: Deadline) -> T:
        return self._connections.run(lambda cursor: work(change.over(cursor)), deadline)

    def _asking(self, work: Callable[[Any], T], deadline: Deadline | None = None) -> T:
        """Ask again after any error: questions change nothing."""
        deadline = deadline or self._connections.deadline()
        while True:
            try:
                return self._connections.run(work, deadline)
            except Trouble as trouble:
                self._back_off(trouble, deadline)

    def _back_off(self, trouble: Trouble, deadline: Deadline) -> None:
        """Wait for the next try, or raise the error that the caller gets."""
        # A server gives up a little before we do. It must have the time to do so again, or we end in doubt.
        needed = self._connections.seconds / 2 if trouble.sort is Sort.AGAIN else 0.0
        if trouble.sort not in _PASSES or deadline.left <= needed:
            raise self._as_error(trouble) from trouble
        self._connections.pause(random.uniform(*_BACK_OFF_SECONDS))

    def _versions_that_exist(self, writes: Sequence[PendingSwap], deadline: Deadline) -> set[int]:
        """Read rows after a commit without an answer: those that have the version that only we can have written."""
        if deadline.left <= 0:
            return set()
        keys = [write.key for write in writes if write.value is not None]
        try:
            rows = self._connections.run(lambda cursor: self._statements.read(cursor, keys), deadline)
        except (Trouble, PxrsError):
            return set()
        return {version for _, _, version in rows} & {write.new for write in writes}

    def _as_error(self, trouble: Trouble) -> PxrsError:
        if trouble.sort is Sort.OTHER_TABLE:
            return Damaged(f"{self.address}: the tables {self._tables.name}_* are not of a registry: {trouble}")
        if trouble.sort is not Sort.NO_TABLE:
            return as_error(self.address, trouble)
        try:
            self._asking(lambda cursor: self._tables.check(cursor, self.address))
        except PxrsError as error:
            return error
        return WentBack(f"{self.address}: the table {self._tables.rows.name} is gone")


class _Doubt(Exception):
    """A commit without an answer."""


class _JoinedStore(Store):
    """A registry in the caller's transaction. It holds nothing of its own."""

    guarantees: ClassVar[frozenset[Guarantee]] = SqlStore.guarantees
    max_atomic: ClassVar[int] = SqlStore.max_atomic

    def __init__(self, address: Address, statements: Statements, connection: Connection) -> None:
        self._address = address
        self._statements = statements
        self._driver: Driver = statements.driver
        self._theirs = connection

    @contextmanager
    def _joined(self) -> Iterator[Any]:
        """A cursor of the driver's own, in a transaction that SQLAlchemy knows of."""
        if not self._theirs.in_transaction():
            self._theirs.begin()
        try:
            yield self._driver.cursor(self._theirs.connection.dbapi_connection)
        except self._driver.errors as error:
            trouble = self._driver.trouble(error)
            raise Unavailable(f"{self._address}: {trouble}; roll the transaction back, and try it again") from error

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        wanted = [encoded(key, self._driver.least_key) for key in keys]
        with self._joined() as cursor:
            return in_order(keys, as_rows(self._statements.read(cursor, wanted)))

    def scan(self, prefix: str) -> list[Row]:
        with self._joined() as cursor:
            return as_rows(self._statements.scan(cursor, *key_range(prefix, self._driver.least_key)))

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        writes = pending_writes(swaps, self._driver.least_key)
        with self._joined() as cursor:
            change = JoinedChange(self._statements).over(cursor)
            return [outcome for part in requests(writes) for outcome in change.swap_each(part)]

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        writes = pending_writes(swaps, self._driver.least_key)
        with self._joined() as cursor:
            return JoinedChange(self._statements).over(cursor).swap_all(writes) if writes else done(ABSENT)

    def wait(self, prefix: str, after: int, timeout: float) -> int:  # noqa: ARG002 - refused, whatever is asked
        raise Refused("a transaction is no place to wait in: ask the store itself")

    def close(self) -> None:
        """The connection is the caller's."""


def in_order(keys: Sequence[str], rows: Sequence[Row]) -> list[Row | None]:
    found = {row.key: row for row in rows}
    return [found.get(key) for key in keys]


# ---- how often to look ----------------------------------------------------------------------------------------------


LOOK_MS = 100
_SHARE = 0.1
"""The part of a time without changes after which to look again: a change is seen late by no more than that."""


class Looks:
    """Times of the next look: soon after a change, because the next is likely, and the rarer the longer nothing
    happens, but at least once a beat. A group at rest then costs its database no more looks than beats.
    """

    def __init__(self, look_ms: int | None, beat_ms: int, clock: Callable[[], float]) -> None:
        """``look_ms``: always after that much, whatever happens."""
        self._least = (look_ms or LOOK_MS) / 1000
        self._most = self._least if look_ms else max(self._least, beat_ms / 1000)
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}

    def pause(self, prefix: str, mark: int) -> float:
        """Seconds until the next look under a prefix, where this mark was seen just now."""
        now = self._clock()
        known, since = self._seen.get(prefix, (None, now))
        if known != mark:
            self._seen[prefix] = mark, now
            return self._least
        return min(max(self._least, _SHARE * (now - since)), self._most)
