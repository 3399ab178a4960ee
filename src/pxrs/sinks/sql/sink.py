"""Writes a table of the user's database in which each message's output is once, for readers without PXRS.

Where the registry is that very database, rows and checkpoints are one transaction. Elsewhere the rows wait in a table
beside it, under a guard that refuses late owners, and the commit of the checkpoints publishes them.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Protocol, runtime_checkable

import pyarrow as pa
from sqlalchemy import Connection

from pxrs.errors import BadSetting, Conflict, Fenced, HandlerFailed, NotFound, PxrsError, Refused, Unavailable, Unknown
from pxrs.io.address import Address
from pxrs.io.sql.connections import Sort, Trouble
from pxrs.model import Batch, Grant
from pxrs.runtime.ports.sink import Sink, check_sink
from pxrs.sinks.output import Output
from pxrs.sinks.sql.database import LONG_SECONDS, Database
from pxrs.sinks.sql.staging import SqlStaging
from pxrs.sinks.sql.table import TargetTable, create_target, find_target, insert_rows
from pxrs.sinks.staged import Note, refuse_others
from pxrs.stores.base import ABSENT, CONFLICT, Guarantee, Outcome, Row, Store, Swap, Verdict

logger = logging.getLogger(__name__)

_RACES = (Sort.EXISTS, Sort.DUPLICATE)
"""The error of members that make the same tables and rows at once."""


@runtime_checkable
class SharedStore(Protocol):
    """A registry's store that can work in the transaction of somebody else."""

    address: Address

    def within(self, connection: Connection) -> Store: ...


class SqlSink:
    """Output as rows of a table, columns by name. ``create`` makes the table from the first output, if there is none.

    ``database`` is a URL as that of a registry: ``postgresql://user@host/name``, ``mysql://…``. ``table`` may have a
    schema before it: ``sales.bills``. ``patience``: how many seconds a database that does not answer is waited for.
    ``instead_of`` is the sink that the group used before: it shows what it may have committed last.
    """

    kind = "sql"

    def __init__(
        self, database: str, table: str, create: bool = False, patience: float = 30.0, instead_of: Sink | None = None
    ) -> None:
        check_sink(instead_of)
        self._instead_of = instead_of
        self._schema, self._name = _split(table)
        self._database = Database(database, patience)
        self.target = table
        self._create = create
        self._staging = SqlStaging(self._name, self._schema)
        self._registry: SharedStore | None = None
        self._lock = threading.Lock()
        self._table: TargetTable | None = None
        self._took: TargetTable | None = None  # the table as it was when it last took output
        self._place = ""
        self._staged: dict[str, Output | Pending] = {}
        """Output by its batch: written aside, or in a transaction that waits for its checkpoints."""

    def __repr__(self) -> str:
        return f"SqlSink({str(self._database.address)!r}, {self.target!r})"

    # ---- the walk of one batch ----------------------------------------------------------------------------------

    def bind(self, store: Store) -> None:
        """Learn where the checkpoints are: in the same database, rows and checkpoints are one transaction."""
        self._registry = None
        if isinstance(store, SharedStore) and self._database.is_at(store.address):
            self._registry = store

    def stage(self, batch: Batch, output: Any) -> str:
        """Write the output of a batch: uncommitted, or aside. Returns the note to commit; "" if there are no rows."""
        found = Output(output, batch.rows)
        try:
            if found.rows:
                return self._stage_rows(batch, found)
            if found.schema.names and (target := self._find()):  # what no row could fit is refused without any
                self._fitted(target, found.schema.empty_table())
        except BaseException:
            found.close()
            raise
        found.close()
        return ""

    def _stage_rows(self, batch: Batch, output: Output) -> str:
        target = self._find() or self._make(output.schema)
        stage = self._stage_aside if self._registry is None else self._stage_joined
        note = stage(batch, output, target)
        self._took = self._table or self._took
        return note

    def publish(self, note: str) -> None:
        """Show what a committed note names. Harmless if it was shown before, here or elsewhere."""
        with self._lock:
            output = self._staged.get(_batch_in(note))
        if isinstance(output, Pending):
            self._forget(_batch_in(note))
            output = None
        found = Note.parse(note)
        if found is None:
            return
        if found.sink == self.kind:
            self._database.run(lambda connection: self._show(connection, found, output))
            self._forget(found.batch)
        elif self._instead_of is not None:
            self._instead_of.publish(note)
        else:
            refuse_others(found)

    def discard(self, batch: Batch) -> None:
        """Remove what was staged for a batch that failed or was refused. What cannot be removed now, the next owner
        of its partitions clears away."""
        if isinstance(self._forget(batch.name), Output):
            try:
                self._database.run(lambda connection: self._staging.drop(connection, [batch.name]))
            except Unavailable as error:
                logger.warning("batch %s stays in %s for now: %s", batch.name, self._staging.staged.fullname, error)

    def recover(self, queue: str, log: str, group: str, grant: Grant, note: str) -> None:  # noqa: ARG002 - the port's
        """A partition was claimed: show what its note names, shut earlier owners out, and clear away what they left."""
        self.publish(note)
        if self._registry is not None:
            return
        self._prepare()

        def take_over(connection: Connection) -> None:
            self._staging.raise_guard(connection, log, group, grant)
            self._staging.drop(connection, self._staging.dead(connection, log, group, grant))

        self._database.run(take_over, _RACES)

    def close(self) -> None:
        """Close the connections; what is not committed is rolled back."""
        for name in list(self._staged):
            self._forget(name)
        self._database.close()

    def _keep(self, batch: Batch, output: Output | Pending) -> None:
        with self._lock:
            self._staged[batch.name] = output

    def _forget(self, batch: str) -> Output | Pending | None:
        with self._lock:
            found = self._staged.pop(batch, None)
        if found is not None:
            found.close()
        return found

    # ---- one transaction with the registry ----------------------------------------------------------------------

    def _stage_joined(self, batch: Batch, output: Output, _: TargetTable) -> str:
        assert self._registry is not None
        pending = Pending(self._database, self._registry, output, self._insert)
        self._database.begin(pending.write)
        self._keep(batch, pending)
        return json.dumps({"batch": batch.name, "rows": output.rows})

    def join(self, note: str) -> Pending | None:
        """The transaction that holds the output which was staged under this note, begun anew if it was lost."""
        values = json.loads(note)
        if "rows" not in values:
            return None
        with self._lock:
            pending = self._staged.get(values["batch"])
        if not isinstance(pending, Pending):
            raise Fenced(f"the output of batch {values['batch']} was given up")
        return pending.resume()

    # ---- aside --------------------------------------------------------------------------------------------------

    def _stage_aside(self, batch: Batch, output: Output, target: TargetTable) -> str:
        for chunk in output.chunks():
            self._fitted(target, chunk)
        place = self._prepare()

        def keep(connection: Connection) -> None:
            if target.is_delicate:
                with connection.begin_nested() as trial:
                    self._insert(connection, output)
                    trial.rollback()
            self._staging.keep(connection, batch, output.chunks())
            self._staging.pass_guard(connection, batch)

        self._database.run(keep, _RACES)
        self._keep(batch, output)
        return Note(self.kind, self.target, place, batch.name).text

    def _show(self, connection: Connection, note: Note, output: Output | None) -> None:
        is_ours = note.target == self.target
        schema, name = _split(note.target)
        staging = self._staging if is_ours else SqlStaging(name, schema)
        if not (is_ours and note.staging == self._place) and staging.find(connection) != note.staging:
            raise Refused(
                f"batch {note.batch} was committed for table {note.target} of another database than "
                f"{self._database.address}: run the group with that sink once"
            )
        if numbers := staging.hold(connection, note.batch):
            target = self._find() if is_ours else find_target(connection, name, schema)
            if target is None:
                raise NotFound(f"{self._database.address} has no table {note.target} for what was committed to it")
            chunks = output.chunks() if output else staging.chunks(connection, note.batch, numbers)
            self._insert_committed(connection, target, chunks, note)
            staging.drop(connection, [note.batch])

    def _insert_committed(
        self, connection: Connection, target: TargetTable, chunks: Iterator[pa.Table], note: Note
    ) -> None:
        try:
            with self._database.sorted():
                insert_rows(connection, target.table, map(target.fitted, chunks))
        except (Trouble, HandlerFailed, Refused) as error:
            if isinstance(error, Trouble) and error.sort in (Sort.LOST, Sort.AGAIN):
                raise
            self._table = None  # it may have changed
            raise Refused(
                f"batch {note.batch} is committed, and table {note.target} of {self._database.address} does not take "
                f"it: {error}. It waits beside the table: repair that, and start again"
            ) from error

    # ---- tables -------------------------------------------------------------------------------------------------

    def _prepare(self) -> str:
        if not self._place:
            self._place = self._database.run(self._staging.prepare, _RACES)
        return self._place

    def _find(self) -> TargetTable | None:
        if self._table is None:
            self._table = self._database.run(lambda connection: find_target(connection, self._name, self._schema))
        if self._table is None and not self._create:
            raise NotFound(f"{self._database.address} has no table {self.target}: create it, or say create=True")
        return self._table

    def _make(self, columns: pa.Schema) -> TargetTable:
        self._database.run(lambda c: create_target(c, self._name, self._schema, columns), _RACES)
        found = self._find()
        assert found is not None
        return found

    def _fitted(self, target: TargetTable, chunk: pa.Table) -> pa.Table:
        """The output with the table's types. A table that took output before, and has changed since, is to blame."""
        try:
            return target.fitted(chunk)
        except Refused as error:
            self._table = None  # it may have changed after it was looked at
            if self._took is not None and self._took.shape != target.shape:
                raise self._changed(error) from error
            raise

    def _insert(self, connection: Connection, output: Output) -> None:
        target = self._find()
        assert target is not None
        try:
            with self._database.sorted():
                insert_rows(connection, target.table, (self._fitted(target, chunk) for chunk in output.chunks()))
        except Trouble as trouble:
            if trouble.sort in (Sort.LOST, Sort.AGAIN, Sort.DENIED):
                raise
            self._table = None  # it may have changed
            if trouble.sort is Sort.NO_TABLE:
                raise NotFound(f"{self._database.address} has no table {self.target} now: {trouble}") from trouble
            if trouble.sort is Sort.OTHER_TABLE or self._is_another(target):
                raise self._changed(trouble) from trouble
            raise HandlerFailed(f"table {self.target} does not take the output: {trouble}") from trouble

    def _is_another(self, target: TargetTable) -> bool:
        """Whether the table has changed since it was looked at: then its errors blame no message."""
        found = self._find()
        return found is None or found.shape != target.shape

    def _changed(self, error: Exception) -> NotFound:
        return NotFound(
            f"table {self.target} of {self._database.address} has other columns than before: {error}. Change them "
            "back, or let the output follow"
        )


def _split(table: object) -> tuple[str | None, str]:
    schema, _, name = table.rpartition(".") if isinstance(table, str) else ("", "", "")
    if not name or "\0" in f"{schema}{name}":
        raise BadSetting(f"table = {table!r}: the name of a table is needed, with its schema before it if need be")
    return schema or None, name


def _batch_in(note: str) -> str:
    try:
        return str(json.loads(note)["batch"]) if note else ""
    except (ValueError, KeyError, TypeError):
        return ""  # what it is, Note.parse says


# ---- one transaction with the registry ------------------------------------------------------------------------------


class Pending:
    """Output that is inserted and not committed. When its transaction is lost, the next one inserts it again.

    That second time it is inserted after the checkpoints were swapped: these wait for the end of an earlier try whose
    answer was lost, and then tell whether it has landed.
    """

    def __init__(
        self, database: Database, registry: SharedStore, output: Output, insert: Callable[[Connection, Output], None]
    ) -> None:
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
        """Close it: it is committed, or never will be."""
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


__all__ = ["SqlSink"]
