"""The registry in one SQLite file, shared by the processes of one machine: ``sqlite:PATH``.

Write-ahead log, ``synchronous = FULL`` (an answered write survives a power cut) and ``BEGIN IMMEDIATE`` for every
write, so that no transaction ever upgrades from reading to writing. A write that fails before COMMIT was rolled back
and raises Unavailable; one whose COMMIT raised is UNKNOWN, since its frames may stand in the log.

Beside PATH stand SQLite's own ``PATH-wal`` and ``PATH-shm``, and ``PATH-bell``, which a writer rings after its commit
to wake the waiters of other processes. (The log file changes *before* a commit is visible: whoever is woken by that
looks too early and sleeps on.)
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from pxrs.clients.bell import Bell
from pxrs.clients.sqlite import Connections, patiently, speaking_of
from pxrs.clock import SystemClock
from pxrs.errors import BadUrl, Closed, Damaged, NewerFormat, NotFound, Refused, Unavailable
from pxrs.plugins import split_url
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, CONFLICT, Guarantee, Outcome, Row, Store, Swap, Verdict, done, unknown

SCHEMA = 1
REMEMBERED_CHANGES = 10_000
"""Deletions are remembered for this many changes; a wait with an older mark ends at once."""
KEYS_PER_SELECT = 500
LOOK_EVERY_SECONDS = 0.005
"""A waiter looks at most this often, however often it is woken."""

_TABLES = (
    "CREATE TABLE IF NOT EXISTS meta(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS rows("
    "key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS rows_by_version ON rows(version)",
    "CREATE TABLE IF NOT EXISTS deleted(version INTEGER PRIMARY KEY, key TEXT NOT NULL)",
    # The revision starts at 1: the mark of an empty store must differ from 0, or a wait on it would never block.
    f"INSERT OR IGNORE INTO meta VALUES ('schema', {SCHEMA}), ('revision', 1)",
)
_REVISION = "SELECT value FROM meta WHERE name = 'revision'"
_CHANGED = (
    # Without the hint SQLite would walk the whole prefix instead of the few newest rows.
    "SELECT EXISTS(SELECT 1 FROM rows INDEXED BY rows_by_version"
    " WHERE version > :mark AND key >= :low AND key < :high)"
    " OR EXISTS(SELECT 1 FROM deleted WHERE version > :mark AND key >= :low AND key < :high)"
)
_BEYOND_ALL_KEYS = b""  # SQLite sorts every BLOB, also the empty one, after every TEXT


class SqliteStore(Store):
    """A handle on the file; safe to use from several threads, and from a forked child."""

    guarantees: ClassVar[frozenset[Guarantee]] = frozenset(
        {
            Guarantee.DURABLE,
            Guarantee.LINEARIZABLE,
            Guarantee.ACROSS_PROCESSES,
            Guarantee.WATCH,
            Guarantee.ATOMIC_ROWS,
        }
    )

    def __init__(self, path: str) -> None:
        self.path = path
        self._bell = Bell(path + "-bell")
        self._connections = Connections(path, after_fork=self._bell.after_fork)
        # Threads of one process queue here instead of retrying against each other in SQLite. It is only held
        # inside of a connection's use, so it is free whenever a fork happens.
        self._writing = threading.Lock()
        self._clock = SystemClock()

    @classmethod
    def open(cls, url: str, settings: Settings) -> SqliteStore:  # noqa: ARG003 - the signature of every driver
        path = _path_of(url)
        store = cls(path)
        try:
            with speaking_of(path), store._connections.use(create=True) as connection:
                _prepare(connection, path)
        except BaseException:
            store.close()
            raise
        return store

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        found: dict[str, Row] = {}
        for start in range(0, len(keys), KEYS_PER_SELECT):
            part = keys[start : start + KEYS_PER_SELECT]
            places = ",".join("?" * len(part))
            rows = self._query(f"SELECT key, value, version FROM rows WHERE key IN ({places})", part)
            found.update((row[0], Row(*row)) for row in rows)
        return [found.get(key) for key in keys]

    def scan(self, prefix: str) -> list[Row]:
        select = "SELECT key, value, version FROM rows WHERE key >= ? AND key < ? ORDER BY key"
        return [Row(*row) for row in self._query(select, _range(prefix))]

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        return self._write(lambda change: [change.swap(swap) for swap in swaps])

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        return self._write(lambda change: [change.swap_all(swaps)])[0]

    def wait(self, prefix: str, after: int, timeout: float) -> int:
        deadline = self._clock.monotonic() + timeout
        self._bell.listen()
        heard = self._bell.heard  # before each look: a ring during it ends the wait that follows
        changed, mark = self._look(prefix, after)
        looked = self._clock.monotonic()
        while not changed and self._bell.wait(heard, deadline - self._clock.monotonic()):
            self._bell.pause(looked + LOOK_EVERY_SECONDS - self._clock.monotonic())
            heard = self._bell.heard
            with suppress(Closed):  # closed while waiting: the wait ends, with the mark it has
                changed, mark = self._look(prefix, mark)
            looked = self._clock.monotonic()
        return mark

    def close(self) -> None:
        self._bell.close()
        self._connections.close()

    def _query(self, select: str, values: Sequence[str | bytes] | Mapping[str, Any] = ()) -> list[Any]:
        with speaking_of(self.path), self._connections.use() as connection:
            return patiently(lambda: connection.execute(select, values).fetchall())

    def _look(self, prefix: str, mark: int) -> tuple[bool, int]:
        """Whether something under the prefix changed since the mark, and the present mark."""
        [(revision,)] = self._query(_REVISION)
        if mark == revision:
            return False, revision
        if not revision - REMEMBERED_CHANGES < mark < revision or mark == 0:
            return True, revision
        low, high = _range(prefix)
        [(changed,)] = self._query(_CHANGED, {"mark": mark, "low": low, "high": high})
        return bool(changed), revision

    def _write(self, work: Callable[[_Change], list[Outcome]]) -> list[Outcome]:
        with speaking_of(self.path), self._connections.use() as connection, self._writing:
            patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
            change = _Change(connection)
            outcomes = work(change)
            if not change.finish():
                return outcomes  # nothing to commit: leaving the block rolls the transaction back
            try:
                _commit(connection)
            except sqlite3.Error as error:
                outcomes = [_doubt(outcome, f"{self.path}: COMMIT: {error}") for outcome in outcomes]
        self._bell.ring()
        return outcomes


class _Change:
    """The swaps of one open transaction. Versions come from one counter, so none is used twice."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute
        [(self._before,)] = self._execute(_REVISION)
        self._revision: int = self._before
        self._deletes = False
        self._refused = False

    def swap(self, swap: Swap) -> Outcome:
        version = self._revision + 1
        if swap.value is None:
            return self._delete(swap, version)
        if swap.expect == ABSENT:
            insert = "INSERT INTO rows(key, value, version) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
            cursor = self._execute(insert, (swap.key, swap.value, version))
        else:
            update = "UPDATE rows SET value = ?, version = ? WHERE key = ? AND version = ?"
            cursor = self._execute(update, (swap.value, version, swap.key, swap.expect))
        if not cursor.rowcount:
            return CONFLICT
        self._revision = version
        return done(version)

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        highest = ABSENT
        for swap in swaps:
            outcome = self.swap(swap)
            if outcome.verdict is not Verdict.DONE:
                self._refused = True
                return outcome
            highest = max(highest, outcome.version)
        return done(highest)

    def finish(self) -> bool:
        """Write the counter down. False if there is nothing to commit."""
        if self._refused or self._revision == self._before:
            return False
        self._execute("UPDATE meta SET value = ? WHERE name = 'revision'", (self._revision,))
        if self._deletes:
            self._execute("DELETE FROM deleted WHERE version <= ?", (self._revision - REMEMBERED_CHANGES,))
        return True

    def _delete(self, swap: Swap, version: int) -> Outcome:
        if swap.expect == ABSENT:
            present = self._execute("SELECT 1 FROM rows WHERE key = ?", (swap.key,)).fetchone()
            return CONFLICT if present else done(ABSENT)
        delete = "DELETE FROM rows WHERE key = ? AND version = ?"
        if not self._execute(delete, (swap.key, swap.expect)).rowcount:
            return CONFLICT
        self._execute("INSERT INTO deleted(version, key) VALUES (?, ?)", (version, swap.key))
        self._revision, self._deletes = version, True
        return done(ABSENT)


def _commit(connection: sqlite3.Connection) -> None:
    patiently(lambda: connection.execute("COMMIT"))


def _doubt(outcome: Outcome, reason: str) -> Outcome:
    return unknown(reason) if outcome.verdict is Verdict.DONE else outcome


def _path_of(url: str) -> str:
    _, place = split_url(url)
    if not place or "\0" in place or place == ":memory:":
        raise BadUrl(f"{url!r} names no file: write sqlite:PATH (and memory: for a registry in memory)")
    path = os.path.abspath(place)
    if not os.path.isdir(os.path.dirname(path)):
        raise NotFound(f"{os.path.dirname(path)}: no such directory, to hold the registry of {url!r}")
    if os.path.isdir(path):
        raise Refused(f"{path} is a directory; a SQLite registry is a file")
    return path


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    """Make the file a registry, unless it is one. Many processes may do this at the same time."""
    [(mode,)] = patiently(lambda: connection.execute("PRAGMA journal_mode").fetchall())
    if mode != "wal":
        # SQLite's own patience does not cover this switch: two processes that make it at once get "locked".
        [(mode,)] = patiently(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchall())
    if mode != "wal":
        raise Unavailable(f"{path}: no write-ahead log possible on this file system (journal mode {mode!r})")
    patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
    _check_schema(connection, path)
    for statement in _TABLES:
        connection.execute(statement)
    _commit(connection)


def _check_schema(connection: sqlite3.Connection, path: str) -> None:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
        return
    found = connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
    if found is None:
        raise Damaged(f"{path} has a table 'meta' without a schema number: not a registry of ours")
    if found[0] > SCHEMA:
        raise NewerFormat(f"{path} has schema {found[0]}; this version of PXRS knows up to {SCHEMA}")


def _range(prefix: str) -> tuple[str, str | bytes]:
    """The keys that begin with ``prefix``, as a half-open range in SQLite's order (that of UTF-8 bytes)."""
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return prefix, _BEYOND_ALL_KEYS
    following = ord(stem[-1]) + 1
    if following == 0xD800:  # surrogates are no characters; the next one is beyond them
        following = 0xE000
    return prefix, stem[:-1] + chr(following)
