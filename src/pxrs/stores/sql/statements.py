"""The statements of a registry in SQL: written by SQLAlchemy for each database, run by the database's own driver.

A swap compares and sets by ``UPDATE … WHERE key = … AND version = …``, and learns from the number of rows whether it
was done. Nothing is locked from one request to the next, except by a transaction that is open.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Self

from sqlalchemy import Dialect, Table, and_, bindparam, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql import ClauseElement

from pxrs.errors import Refused
from pxrs.io.sql.connections import Driver, Sort
from pxrs.stores.base import ABSENT, CONFLICT, Outcome, Row, Swap, done, encoded_key
from pxrs.stores.sql.tables import LONGEST_KEY
from pxrs.stores.versions import new_version

Found = tuple[bytes, bytes, int]
"""A row as it is stored: key, value, version."""

_KEYS_PER_SELECT = 1_000
_ORACLE_READS = (1, 16, 256, 1_000)  # Oracle takes a thousand in a list


class PendingSwap(NamedTuple):
    """A swap that is being done: ``new`` is the version of the new row, and identifies this swap."""

    key: bytes
    old: int
    new: int
    value: bytes | None

    @property
    def is_of_nothing(self) -> bool:
        """Whether it deletes an absent row: that is done."""
        return self.old == ABSENT and self.value is None


class Statement:
    """One statement in the words of one database."""

    def __init__(self, clause: ClauseElement, dialect: Dialect) -> None:
        compiled: Any = clause.compile(dialect=dialect)
        self.text = str(compiled)
        self._in_order = itemgetter(*compiled.positiontup) if compiled.positional else None

    def values(self, **named: Any) -> Any:
        """The values of a cursor's call, by name, or in the order of the text."""
        return named if self._in_order is None else self._in_order(named)


class Statements:
    """The statements of all databases."""

    def __init__(self, rows: Table, driver: Driver) -> None:
        self.driver = driver
        key, version = rows.c.key, rows.c.version
        low, high = bindparam("low", type_=key.type), bindparam("high", type_=key.type)
        within = and_(key >= low, key < high)
        this = and_(key == bindparam("k", type_=key.type), version == bindparam("stale", type_=version.type))
        written = {"value": bindparam("v", type_=rows.c.value.type), "version": bindparam("fresh", type_=version.type)}
        self.scans = self.statement(select(rows).where(within).order_by(key))
        self.looks = self.statement(select(func.count(), func.sum(version)).where(within))
        self.replaces = self.statement(update(rows).where(this).values(**written))
        self.deletes = self.statement(delete(rows).where(this))
        self.creates = self.statement(self._create(rows, {"key": bindparam("k", type_=key.type), **written}))

    def statement(self, clause: ClauseElement) -> Statement:
        return Statement(clause, self.driver.dialect)

    def _create(self, rows: Table, written: dict[str, Any]) -> ClauseElement:
        return insert(rows).values(**written)

    def read(self, cursor: Any, keys: Sequence[bytes]) -> list[Found]:
        """The rows of these keys, in any order."""
        raise NotImplementedError

    def scan(self, cursor: Any, low: bytes, high: bytes) -> list[Found]:
        return self._fetch(cursor, self.scans.text, self.scans.values(low=low, high=high))

    def look(self, cursor: Any, low: bytes, high: bytes) -> str:
        """A text that changes with every change in the range: versions are random, so their sum does."""
        cursor.execute(self.looks.text, self.looks.values(low=low, high=high))
        return ":".join(map(str, cursor.fetchone()))

    def swap(self, cursor: Any, write: PendingSwap) -> bool:
        """Do one swap; whether it was done. One that only expects absence takes two statements, in a transaction."""
        if write.is_of_nothing:
            made = PendingSwap(write.key, ABSENT, write.new, b"")
            return self.swap(cursor, made) and self.swap(cursor, PendingSwap(write.key, write.new, write.new, None))
        statement, values = self._phrase(write)
        try:
            cursor.execute(statement.text, values)
        except self.driver.errors as error:
            if self.driver.sort_of(error) is not Sort.DUPLICATE:
                raise
            return False
        return bool(cursor.rowcount)

    def swap_many(self, cursor: Any, writes: Sequence[PendingSwap]) -> set[int]:
        """Do swaps of different keys in an open transaction; the new versions of those that were done."""
        raise NotImplementedError

    def swap_and_commit(self, cursor: Any, writes: Sequence[PendingSwap]) -> set[int]:
        """Do swaps in a transaction of their own."""
        raise NotImplementedError

    def can_all_at_once(self, writes: Sequence[PendingSwap]) -> bool:  # noqa: ARG002 - a hook
        """Whether all or none of them can be done in one request that commits itself."""
        return False

    def swap_all_at_once(self, cursor: Any, writes: Sequence[PendingSwap]) -> bool:
        raise NotImplementedError

    def _phrase(self, write: PendingSwap) -> tuple[Statement, Any]:
        if write.value is None:
            return self.deletes, self.deletes.values(k=write.key, stale=write.old)
        if write.old == ABSENT:
            return self.creates, self.creates.values(k=write.key, v=write.value, fresh=write.new)
        return self.replaces, self.replaces.values(k=write.key, stale=write.old, v=write.value, fresh=write.new)

    def _fetch(self, cursor: Any, text: str, values: Any) -> list[Found]:
        cursor.execute(text, values)
        return [(bytes(key), bytes(value or b""), int(version)) for key, value, version in cursor.fetchall()]


class PostgresStatements(Statements):
    """A batch is one statement, whatever is in it.

    The rows are locked in the order of their keys before they are changed: two batches never wait for each other in
    a ring, of which PostgreSQL takes a second to find out.
    """

    def __init__(self, rows: Table, driver: Driver) -> None:
        super().__init__(rows, driver)
        table = driver.dialect.identifier_preparer.format_table(rows)
        self._columns = f"SELECT key, value, version FROM {table} WHERE key = ANY(%s::bytea[])"
        self.batch = _POSTGRES_BATCH.replace("{table}", table)

    def _create(self, rows: Table, written: dict[str, Any]) -> ClauseElement:
        return postgresql.insert(rows).values(**written).on_conflict_do_nothing()

    def read(self, cursor: Any, keys: Sequence[bytes]) -> list[Found]:
        return self._fetch(cursor, self._columns, (list(keys),))

    def can_all_at_once(self, writes: Sequence[PendingSwap]) -> bool:
        """Rows that are there can be locked first; whether one can be created shows when it is."""
        return all(write.old != ABSENT for write in writes)

    def swap_all_at_once(self, cursor: Any, writes: Sequence[PendingSwap]) -> bool:
        return bool(self._swap_if(cursor, writes, needed=len(writes)))

    def swap_many(self, cursor: Any, writes: Sequence[PendingSwap]) -> set[int]:
        return self._swap_if(cursor, writes, needed=0)

    swap_and_commit = swap_many  # a statement alone is a transaction

    def _swap_if(self, cursor: Any, writes: Sequence[PendingSwap], needed: int) -> set[int]:
        keys, olds, news, values = (list(column) for column in zip(*writes, strict=True))
        cursor.execute(self.batch, {"k": keys, "o": olds, "n": news, "v": values, "needed": needed})
        return {int(new) for (new,) in cursor.fetchall()}

    def _fetch(self, cursor: Any, text: str, values: Any) -> list[Found]:
        cursor.execute(text, values)
        found: list[Found] = cursor.fetchall()
        return found


# Nothing but the table's name is filled in, and that is a plain word.
_POSTGRES_BATCH = """
WITH write AS MATERIALIZED (
  SELECT * FROM unnest(%(k)s::bytea[], %(o)s::bigint[], %(n)s::bigint[], %(v)s::bytea[]) AS one(k, o, n, v)
), held AS MATERIALIZED (
  SELECT stored.key FROM {table} AS stored JOIN write ON stored.key = write.k AND stored.version = write.o
  ORDER BY stored.key FOR UPDATE OF stored
), enough AS MATERIALIZED (
  SELECT count(*) >= %(needed)s::bigint AS yes FROM held
), replaced AS (
  UPDATE {table} AS stored SET value = write.v, version = write.n FROM write JOIN held ON held.key = write.k, enough
  WHERE stored.key = write.k AND write.v IS NOT NULL AND enough.yes RETURNING write.n
), deleted AS (
  DELETE FROM {table} AS stored USING write JOIN held ON held.key = write.k, enough
  WHERE stored.key = write.k AND write.v IS NULL AND enough.yes RETURNING write.n
), created AS (
  INSERT INTO {table} (key, value, version) SELECT k, v, n FROM write WHERE o = 0 AND v IS NOT NULL ORDER BY k
  ON CONFLICT DO NOTHING RETURNING version
)
SELECT n FROM replaced UNION ALL SELECT n FROM deleted UNION ALL SELECT version FROM created
"""


class MysqlStatements(Statements):
    """A batch is one request of many statements, with the row count of each in the answer."""

    def __init__(self, rows: Table, driver: Driver) -> None:
        super().__init__(rows, driver)
        some = self.statement(select(rows).where(rows.c.key == bindparam("keys", type_=rows.c.key.type)))
        self.reads = some.text.replace("= %s", "IN %s")  # PyMySQL writes a list of values there

    def read(self, cursor: Any, keys: Sequence[bytes]) -> list[Found]:
        parts = [keys[start : start + _KEYS_PER_SELECT] for start in range(0, len(keys), _KEYS_PER_SELECT)]
        return [row for part in parts for row in self._fetch(cursor, self.reads, (list(part),))]

    def _create(self, rows: Table, written: dict[str, Any]) -> ClauseElement:
        # With keys that fit, a row that exists is the only thing there is to ignore; and an error would end the batch.
        return insert(rows).values(**written).prefix_with("IGNORE")

    def swap_many(self, cursor: Any, writes: Sequence[PendingSwap]) -> set[int]:
        return self._request(cursor, writes, alone=False)

    def swap_and_commit(self, cursor: Any, writes: Sequence[PendingSwap]) -> set[int]:
        return self._request(cursor, writes, alone=True)

    def _request(self, cursor: Any, writes: Sequence[PendingSwap], alone: bool) -> set[int]:
        ordered = sorted(writes)  # in the order of the keys, so that batches do not lock each other out
        phrases = [self._phrase(write) for write in ordered]
        texts = [statement.text for statement, _ in phrases]
        if alone:
            texts = ["START TRANSACTION", *texts, "COMMIT"]
        cursor.execute(";".join(texts), [value for _, values in phrases for value in values])
        counts = [int(cursor.rowcount)]
        while cursor.nextset():
            counts.append(int(cursor.rowcount))
        return _done(ordered, counts[1:-1] if alone else counts)


class OracleStatements(Statements):
    """A batch is one request for each kind of change. Compiled and parsed in tests, never run."""

    def __init__(self, rows: Table, driver: Driver) -> None:
        super().__init__(rows, driver)
        self.reads = {size: self._read(rows, size) for size in _ORACLE_READS}

    def _read(self, rows: Table, size: int) -> Statement:
        names = [bindparam(f"k{number}", type_=rows.c.key.type) for number in range(size)]
        return self.statement(select(rows).where(rows.c.key.in_(names)))

    def read(self, cursor: Any, keys: Sequence[bytes]) -> list[Found]:
        """In few sizes, so that the database sees few statements: the last key fills up."""
        found: list[Found] = []
        for start in range(0, len(keys), _ORACLE_READS[-1]):
            part = list(keys[start : start + _ORACLE_READS[-1]])
            size = next(size for size in _ORACLE_READS if size >= len(part))
            part += [part[-1]] * (size - len(part))
            named = {f"k{number}": key for number, key in enumerate(part)}
            found += self._fetch(cursor, self.reads[size].text, self.reads[size].values(**named))
        return found

    def swap_and_commit(self, cursor: Any, writes: Sequence[PendingSwap]) -> set[int]:
        self.driver.begin(cursor)
        done = self.swap_many(cursor, writes)
        self.driver.commit(cursor)
        return done

    def swap_many(self, cursor: Any, writes: Sequence[PendingSwap]) -> set[int]:
        ordered = sorted(writes)
        done = self._create_many(cursor, [write for write in ordered if write.old == ABSENT])
        done |= self._change_many(cursor, self.replaces, [w for w in ordered if w.old and w.value is not None])
        done |= self._change_many(cursor, self.deletes, [w for w in ordered if w.old and w.value is None])
        return done

    def _create_many(self, cursor: Any, writes: list[PendingSwap]) -> set[int]:
        if not writes:
            return set()
        cursor.executemany(self.creates.text, [self._phrase(write)[1] for write in writes], batcherrors=True)
        failed = {error.offset: error.code for error in cursor.getbatcherrors()}
        if any(code != 1 for code in failed.values()):  # ORA-00001: there is such a row
            raise self.driver.errors[0](f"{len(failed)} rows could not be written: {sorted(set(failed.values()))}")
        return {write.new for number, write in enumerate(writes) if number not in failed}

    def _change_many(self, cursor: Any, statement: Statement, writes: list[PendingSwap]) -> set[int]:
        if not writes:
            return set()
        cursor.executemany(statement.text, [self._phrase(write)[1] for write in writes], arraydmlrowcounts=True)
        return _done(writes, cursor.getarraydmlrowcounts())


def _done(writes: Iterable[PendingSwap], counts: Iterable[int]) -> set[int]:
    return {write.new for write, count in zip(writes, counts, strict=True) if count}


def statements_for(rows: Table, driver: Driver) -> Statements:
    kinds = {"postgresql": PostgresStatements, "mysql": MysqlStatements, "oracle": OracleStatements}
    return kinds[driver.dialect.name](rows, driver)


# ---- swaps, in a transaction of our own or in the caller's: which requests they become ------------------------------


ROWS_PER_REQUEST = 1_000
BYTES_PER_REQUEST = 1_000_000
"""MariaDB takes 16 MiB in one request, and a byte is written as two."""


class SwapAttempt(ABC):
    """One try at some swaps, over one connection."""

    alone: bool
    """Whether a request may be a transaction by itself."""

    cursor: Any
    committing = False
    """From here on, a statement without an answer may have been done."""

    def __init__(self, statements: Statements) -> None:
        self.statements = statements

    def over(self, cursor: Any) -> Self:
        self.cursor = cursor
        return self

    @abstractmethod
    def begin(self) -> None:
        """Begin a part that can be undone."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def undo(self) -> None: ...

    def swap_each(self, writes: Sequence[PendingSwap]) -> list[Outcome]:
        if not are_plain(writes):
            return self._one_by_one(writes)
        self.committing = self.alone
        if len(writes) == 1:
            return [outcome_of(writes[0], self.statements.swap(self.cursor, writes[0]))]
        swap = self.statements.swap_and_commit if self.alone else self.statements.swap_many
        news = swap(self.cursor, writes)
        return [outcome_of(write, write.new in news) for write in writes]

    def swap_all(self, writes: Sequence[PendingSwap]) -> Outcome:
        if self.alone and are_plain(writes) and self.statements.can_all_at_once(writes):
            self.committing = True
            return highest(writes) if self.statements.swap_all_at_once(self.cursor, writes) else CONFLICT
        self.begin()
        if self._do_all(writes):
            self.commit()
            return highest(writes)
        self.undo()
        return CONFLICT

    def _one_by_one(self, writes: Sequence[PendingSwap]) -> list[Outcome]:
        """Several swaps of one key are judged in their order."""
        self.begin()
        outcomes = [outcome_of(write, self.statements.swap(self.cursor, write)) for write in writes]
        self.commit()
        return outcomes

    def _do_all(self, writes: Sequence[PendingSwap]) -> bool:
        if not are_plain(writes):
            return all(self.statements.swap(self.cursor, write) for write in writes)
        parts = list(requests(writes))
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


def are_plain(writes: Sequence[PendingSwap]) -> bool:
    """Whether their order does not matter, and each is one statement."""
    if len(writes) == 1:
        return not writes[0].is_of_nothing
    return len({write.key for write in writes}) == len(writes) and not any(write.is_of_nothing for write in writes)


def requests(writes: Sequence[PendingSwap]) -> Iterator[list[PendingSwap]]:
    """Cut swaps into requests, in their order: the wake-up row comes last."""
    part: list[PendingSwap] = []
    size = 0
    for write in writes:
        more = len(write.key) + len(write.value or b"")
        if part and (len(part) == ROWS_PER_REQUEST or size + more > BYTES_PER_REQUEST):
            yield part
            part, size = [], 0
        part.append(write)
        size += more
    if part:
        yield part


def outcome_of(write: PendingSwap, was_done: bool) -> Outcome:
    if not was_done:
        return CONFLICT
    return done(ABSENT if write.value is None else write.new)


def highest(writes: Sequence[PendingSwap]) -> Outcome:
    return done(max((write.new for write in writes if write.value is not None), default=ABSENT))


def pending_writes(swaps: Sequence[Swap], least_key: bytes) -> list[PendingSwap]:
    return [PendingSwap(encoded(key, least_key), expect, new_version(), value) for key, expect, value, _ in swaps]


def encoded(key: str, least_key: bytes = b"") -> bytes:
    found = encoded_key(key)
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
