"""The same client's bare loop on each store: one row, compared and set, again and again. No rules, no rows of ours."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.harness import PeerFailed
from benchmarks.parts.registry_stores import Place

VALUE = b"x" * 250
"""About as large as a partition's row."""

_CAS = """
local row = redis.call('GET', KEYS[1])
if row and tonumber(string.sub(row, 1, 16)) ~= tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[2] .. ARGV[3])
return 1
"""
_UPDATE = "UPDATE bare SET value = {0}, version = {0} WHERE name = {0} AND version = {0}"

Swap = Callable[[], None]


@contextmanager
def bare_loop(place: Place, directory: Path) -> Iterator[Swap]:
    """One compare-and-set, to be called again and again; PeerFailed if one does not succeed."""
    loops = {"sqlite": _sqlite, "postgresql": _postgres, "mariadb": _mariadb, "etcd": _etcd, "valkey": _valkey,
             "nats": _nats}  # fmt: skip
    with loops[place.name](place, directory) as swap:
        yield swap


def _check(done: object, where: str) -> None:
    if not done:
        raise PeerFailed(f"a bare compare-and-set on {where} did not succeed")


class _Table:
    """A row in a table of SQL, with a version."""

    def __init__(self, execute: Callable[[str, tuple[Any, ...]], Any], mark: str, where: str) -> None:
        self._execute = execute
        self._update = _UPDATE.format(mark)
        self._where = where
        self._version = 0

    def swap(self) -> None:
        values = (VALUE, self._version + 1, "a", self._version)
        _check(self._execute(self._update, values) == 1, self._where)
        self._version += 1


@contextmanager
def _sqlite(place: Place, directory: Path) -> Iterator[Swap]:
    with closing(sqlite3.connect(directory / "bare.db", isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE bare(name TEXT PRIMARY KEY, value BLOB, version INTEGER) WITHOUT ROWID")
        database.execute("INSERT INTO bare VALUES ('a', x'00', 0)")

        def execute(statement: str, values: tuple[Any, ...]) -> int:
            database.execute("BEGIN IMMEDIATE")
            changed = database.execute(statement, values).rowcount
            database.execute("COMMIT")
            return changed

        yield _Table(execute, "?", place.name).swap


@contextmanager
def _postgres(place: Place, directory: Path) -> Iterator[Swap]:  # noqa: ARG001 - as the others
    import psycopg

    with psycopg.connect(place.url("bare").partition("?")[0], autocommit=True) as database, database.cursor() as cursor:
        cursor.execute("CREATE TABLE bare(name TEXT PRIMARY KEY, value BYTEA, version BIGINT)")
        cursor.execute("INSERT INTO bare VALUES ('a', '', 0)")
        yield _Table(lambda sql, values: cursor.execute(sql, values).rowcount, "%s", place.name).swap


@contextmanager
def _mariadb(place: Place, directory: Path) -> Iterator[Swap]:  # noqa: ARG001 - as the others
    import pymysql

    at = urlsplit(place.url("bare"))
    with (
        closing(
            pymysql.connect(
                host=at.hostname,
                port=at.port or 0,
                user=at.username,
                password=at.password or "",
                database=at.path[1:],
                autocommit=True,
            )
        ) as database,
        database.cursor() as cursor,
    ):
        cursor.execute("CREATE TABLE bare(name VARCHAR(99) PRIMARY KEY, value LONGBLOB, version BIGINT)")
        cursor.execute("INSERT INTO bare VALUES ('a', '', 0)")
        yield _Table(cursor.execute, "%s", place.name).swap


@contextmanager
def _valkey(place: Place, directory: Path) -> Iterator[Swap]:  # noqa: ARG001 - as the others
    import redis

    with closing(redis.Redis(port=place.port)) as client:
        swap, version = client.register_script(_CAS), [0]

        def once() -> None:
            _check(swap(keys=["bare"], args=[version[0], f"{version[0] + 1:016d}", VALUE]), place.name)
            version[0] += 1

        yield once


@contextmanager
def _etcd(place: Place, directory: Path) -> Iterator[Swap]:  # noqa: ARG001 - as the others
    import grpc
    from aetcd import rpc

    with grpc.insecure_channel(f"127.0.0.1:{place.port}") as channel:
        store, revision = rpc.KVStub(channel), [0]

        def once() -> None:
            compare = rpc.Compare(
                key=b"bare", target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=revision[0]
            )
            put = rpc.RequestOp(request_put=rpc.PutRequest(key=b"bare", value=VALUE))
            answer = store.Txn(rpc.TxnRequest(compare=[compare], success=[put]))
            _check(answer.succeeded, place.name)
            revision[0] = answer.header.revision

        yield once


@contextmanager
def _nats(place: Place, directory: Path) -> Iterator[Swap]:  # noqa: ARG001 - as the others
    import nats

    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(nats.connect(f"nats://127.0.0.1:{place.port}"))
    bucket = loop.run_until_complete(connection.jetstream().create_key_value(bucket="bare"))
    revision = [loop.run_until_complete(bucket.create("a", VALUE))]

    def once() -> None:
        revision[0] = loop.run_until_complete(bucket.update("a", VALUE, last=revision[0]))

    try:
        yield once
    finally:
        loop.run_until_complete(connection.close())
        loop.close()
