"""The registry in one SQLite file, shared by the processes of one machine: ``sqlite:PATH``.

Write-ahead log and ``synchronous = FULL``: an answered write survives a power cut. A swap alone is one statement that
commits itself: if it finds the file locked nothing has happened; any other error is UNKNOWN, since its frames may be
in the log. Several swaps are one transaction, from ``BEGIN IMMEDIATE`` on, so that none ever upgrades from reading to
writing: what fails before COMMIT was rolled back and raises Unavailable, and if COMMIT raises they are UNKNOWN.
Versions are random: no counter has to be read and written, and none is used twice, also if the file was restored from
a copy.

Beside PATH are SQLite's own ``PATH-wal`` and ``PATH-shm``, and ``PATH-bell``, a directory with a bell for each prefix
that somebody waits for. A writer rings those of its rows after its commit, to wake the waiters of other processes.
(The log file changes *before* a commit is visible: a waiter that it wakes looks too early and sleeps on.)
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from pxrs.drivers import split_url
from pxrs.errors import BadUrl, Damaged, NewerFormat, Refused, Unavailable, masked_url
from pxrs.io.file_system import check_home, network_file_system
from pxrs.io.watch.file_bell import Bells
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, CONFLICT, Guarantee, Outcome, Row, Store, Swap, Verdict, done, unknown
from pxrs.stores.sqlite.connections import ThreadConnections, is_busy, patiently
from pxrs.stores.versions import mark_of, new_version

logger = logging.getLogger(__name__)

SCHEMA = 1
KEYS_PER_SELECT = 500

# Earlier versions have kept a counter, its index and deleted keys as well. They stay in their files, and mean nothing.
_TABLES = (
    "CREATE TABLE IF NOT EXISTS meta(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS rows("
    "key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID",
    f"INSERT OR IGNORE INTO meta VALUES ('schema', {SCHEMA})",
)
_INSERT = "INSERT INTO rows(key, value, version) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_UPDATE = "UPDATE rows SET value = ?, version = ? WHERE key = ? AND version = ?"
_DELETE = "DELETE FROM rows WHERE key = ? AND version = ?"
_VERSIONS = "SELECT key, version FROM rows WHERE key >= ? AND key < ? ORDER BY key"
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
        self._bells = Bells(path + "-bell")
        self._connections = ThreadConnections(path, after_fork=self._bells.after_fork)
        # Threads of one process queue here instead of retrying against each other in SQLite. It is only held
        # inside of a connection's call, so it is free whenever a fork happens.
        self._writing = threading.Lock()

    @classmethod
    def exists(cls, url: str) -> bool:
        return os.path.exists(_path_of(url))

    @classmethod
    def open(cls, url: str, settings: Settings) -> SqliteStore:  # noqa: ARG003 - the signature of every driver
        path = _path_of(url)
        store = cls(path)
        try:
            store._connections.call(lambda connection: _prepare(connection, path), create=True)
        except BaseException:
            store.close()
            raise
        _warn_of_network(path)
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
        if len(swaps) == 1 and not _is_of_nothing(swaps[0]):
            return [self._connections.call(lambda connection: self._swap_alone(connection, swaps[0]))]
        return self._write(swaps, lambda change: [change.swap(swap) for swap in swaps])

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        return self._write(swaps, lambda change: [change.swap_all(swaps)])[0]

    def wait(self, prefix: str, after: int, timeout: float) -> int:
        return self._bells.wait(prefix, after, timeout, lambda: self._mark(prefix))

    def _mark(self, prefix: str) -> int:
        return mark_of(self._query(_VERSIONS, _range(prefix)))

    def close(self) -> None:
        self._connections.close()  # first: a commit that is under way still rings
        self._bells.close()

    def _query(self, select: str, values: Sequence[str | bytes] | Mapping[str, Any] = ()) -> list[Any]:
        return self._connections.call(lambda found: patiently(lambda: found.execute(select, values).fetchall()))

    def _swap_alone(self, connection: sqlite3.Connection, swap: Swap) -> Outcome:
        statement, values, version = _phrase(swap)
        try:
            with self._writing:
                if not patiently(_commit_alone, connection, statement, values):
                    return CONFLICT
            outcome = done(version)
        except sqlite3.Error as error:
            if is_busy(error):
                raise  # the lock comes first: without it nothing was written
            outcome = unknown(f"{self.path}: {error}")
        self._bells.ring([swap.key])
        return outcome

    def _write(self, swaps: Sequence[Swap], work: Callable[[_OpenTransaction], list[Outcome]]) -> list[Outcome]:
        return self._connections.call(lambda connection: self._transact(connection, swaps, work))

    def _transact(
        self, connection: sqlite3.Connection, swaps: Sequence[Swap], work: Callable[[_OpenTransaction], list[Outcome]]
    ) -> list[Outcome]:
        with self._writing:
            patiently(connection.execute, "BEGIN IMMEDIATE")
            change = _OpenTransaction(connection.execute)
            outcomes = work(change)
            if change.is_void:
                return outcomes  # the transaction is rolled back
            try:
                _commit(connection)
            except sqlite3.Error as error:
                outcomes = [_doubt(outcome, f"{self.path}: COMMIT: {error}") for outcome in outcomes]
        self._bells.ring(swap.key for swap in swaps)
        return outcomes


class _OpenTransaction:
    """The swaps of one open transaction."""

    def __init__(self, execute: Callable[..., sqlite3.Cursor]) -> None:
        self._execute = execute
        self.is_void = True
        """Whether there is nothing to commit."""

    def swap(self, swap: Swap) -> Outcome:
        if _is_of_nothing(swap):
            present = self._execute("SELECT 1 FROM rows WHERE key = ?", (swap.key,)).fetchone()
            return CONFLICT if present else done(ABSENT)
        statement, values, version = _phrase(swap)
        if not self._execute(statement, values).rowcount:
            return CONFLICT
        self.is_void = False
        return done(version)

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        highest = ABSENT
        for swap in swaps:
            outcome = self.swap(swap)
            if outcome.verdict is not Verdict.DONE:
                self.is_void = True
                return outcome
            highest = max(highest, outcome.version)
        return done(highest)


def _is_of_nothing(swap: Swap) -> bool:
    """Whether a swap deletes an absent row: that is done, and nothing is written."""
    return swap.expect == ABSENT and swap.value is None


def _phrase(swap: Swap) -> tuple[str, tuple[str | bytes | int, ...], int]:
    """The statement that does it, its values, and the version that the row then has."""
    key, expect, value, _ = swap
    if value is None:
        return _DELETE, (key, expect), ABSENT
    version = new_version()
    if expect == ABSENT:
        return _INSERT, (key, value, version), version
    return _UPDATE, (value, version, key, expect), version


def _commit_alone(connection: sqlite3.Connection, statement: str, values: Sequence[str | bytes | int]) -> int:
    """Commit one statement; the number of rows that it has changed."""
    return connection.execute(statement, values).rowcount


def _commit(connection: sqlite3.Connection) -> None:
    patiently(connection.execute, "COMMIT")


def _doubt(outcome: Outcome, reason: str) -> Outcome:
    return unknown(reason) if outcome.verdict is Verdict.DONE else outcome


def _path_of(url: str) -> str:
    _, place = split_url(url)
    if not place or "\0" in place or place == ":memory:":
        raise BadUrl(f"{masked_url(url)!r} names no file: write sqlite:PATH (and memory: for a registry in memory)")
    path = os.path.abspath(place)
    check_home(os.path.dirname(path), url)
    if os.path.isdir(path):
        raise Refused(f"{path} is a directory; a SQLite registry is a file")
    return path


def _warn_of_network(path: str) -> None:
    """SQLite's log is shared through memory of one machine: another one would not see what this one has written."""
    network = network_file_system(path)
    if network is not None:
        logger.warning(
            "%s is on a network file system (%s): all processes that use this registry must run on one machine. Use a "
            "registry server for several",
            path,
            network,
        )


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    """Make the file a registry, unless it is one. Many processes may do this at the same time."""
    [(mode,)] = patiently(lambda: connection.execute("PRAGMA journal_mode").fetchall())
    if mode != "wal":
        # SQLite's own patience does not cover this switch: two processes that make it at once get "locked".
        [(mode,)] = patiently(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchall())
    if mode != "wal":
        raise Unavailable(f"{path}: no write-ahead log possible on this file system (journal mode {mode!r})")
    patiently(connection.execute, "BEGIN IMMEDIATE")
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
