"""The rows of a batch in an open transaction of the registry's own database, which its checkpoints join."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import ClassVar, Protocol, runtime_checkable

from sqlalchemy import Connection

from pxrs.errors import Conflict, PxrsError, Unavailable, Unknown
from pxrs.io.address import Address
from pxrs.io.sql.connections import Sort, Trouble
from pxrs.sinks.sql.database import LONG_SECONDS, Database
from pxrs.sinks.sql.output import Output
from pxrs.stores.base import ABSENT, CONFLICT, Guarantee, Outcome, Row, Store, Swap, Verdict

Insert = Callable[[Connection, Output], None]


@runtime_checkable
class SharedStore(Protocol):
    """A registry's store that can work in the transaction of somebody else."""

    address: Address

    def within(self, connection: Connection) -> Store: ...


class Pending:
    """Output that is inserted and not committed. When its transaction is lost, the next one inserts it again.

    That second time it is inserted after the checkpoints were swapped: these wait for the end of an earlier try whose
    answer was lost, and then tell whether it has landed.
    """

    def __init__(self, database: Database, registry: SharedStore, output: Output, insert: Insert) -> None:
        self._database = database
        self._registry = registry
        self._output = output
        self._insert = insert
        self._connection: Connection | None = None
        self._inserted = False
        self.store: Store

    def write(self, connection: Connection) -> None:
        """Insert in this new transaction, and leave it open."""
        self._insert(connection, self._output)
        self._connection, self._inserted = connection, True

    def resume(self) -> Pending:
        """Be ready for the swaps: in the transaction that is open, or in a new one."""
        try:
            with self._database.sorted():
                if self._connection is None:
                    self._connection = self._database.connect()
                elif not self._connection.in_transaction():
                    self._connection.begin()
                self._database.limit(self._connection)
        except Trouble as trouble:
            self._forget(trouble)
            raise self._database.as_error(trouble) from trouble
        self.store = _FirstReadStore(self._registry.within(self._connection))
        return self

    def commit(self) -> None:
        assert self._connection is not None
        committing = False
        try:
            with self._database.sorted():
                if not self._inserted:
                    self._database.limit(self._connection, LONG_SECONDS)
                    self._insert(self._connection, self._output)
                    self._database.limit(self._connection)
                committing = True
                self._connection.commit()
        except Trouble as trouble:
            self._forget(trouble)
            if committing and trouble.sort is Sort.LOST:
                raise Unknown(f"{self._database.address}: no answer to a COMMIT: {trouble}") from trouble
            if trouble.sort in (Sort.LOST, Sort.AGAIN):
                raise Unavailable(f"{self._database.address}: rolled back: {trouble}") from trouble
            raise self._database.as_error(trouble) from trouble
        self._inserted = False

    def rollback(self) -> None:
        if self._connection is not None and self._connection.in_transaction():
            self._inserted = False
            try:
                with self._database.sorted():
                    self._connection.rollback()
            except (Trouble, PxrsError) as error:
                self._forget(error)

    def _forget(self, error: Exception) -> None:
        self._inserted = False
        if self._connection is not None:
            self._database.let_go(self._connection, error)

    def close(self) -> None:
        """It has landed, or never will."""
        self.rollback()
        if self._connection is not None:
            self._database.give_back(self._connection)
        with suppress(OSError):
            self._output.close()


class _FirstReadStore(Store):
    """Rows that are swapped as they were first read in this transaction, or not at all: what has changed them since
    may be an earlier try of the same commit, and then this output must not land beside it."""

    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.ATOMIC_ROWS})

    def __init__(self, store: Store) -> None:
        self._store = store
        self._first: dict[str, int] = {}

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        found = self._store.read(keys)
        for key, row in zip(keys, found, strict=True):
            self._first.setdefault(key, ABSENT if row is None else row.version)
        return found

    def scan(self, prefix: str) -> list[Row]:
        return self._store.scan(prefix)

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        return self._store.swap_each(swaps)

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        as_read = all(self._first.get(swap.key, swap.expect) == swap.expect for swap in swaps)
        outcome = self._store.swap_all(swaps) if as_read else CONFLICT
        if outcome.verdict is Verdict.CONFLICT:
            raise Conflict(f"one of {len(swaps)} rows has changed while this commit waited for it")
        return outcome

    def wait(self, prefix: str, after: int, timeout: float) -> int:
        return self._store.wait(prefix, after, timeout)

    def close(self) -> None:
        self._store.close()
