"""Helpers of the tests of the SQL sink: tables on real servers, and a reader that knows no PXRS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, text

import pxrs
from pxrs.runtime.ports.sink import Sink
from pxrs.sinks import SqlSink
from pxrs.testing.servers import mariadb, postgres
from pxrs.testing.servers.mariadb import MariadbServer
from pxrs.testing.servers.names import table_name
from pxrs.testing.servers.postgres import PostgresServer

Server = PostgresServer | MariadbServer
DATABASES = ("postgresql", "mysql")
KEYED = 'CREATE TABLE {table} ("key" {word}, value {word} PRIMARY KEY)'
PLAIN = 'CREATE TABLE {table} ("key" {word}, value {word})'


@dataclass
class SqlPlace:
    """A table of one test on a server that many tests share."""

    server: Server
    name: str
    registry_elsewhere: str = ""
    """Where the checkpoints are; in the same database if nothing is said."""
    engine: Engine = field(init=False)
    _sinks: list[SqlSink] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = create_engine(_plain_url(self.server))

    @property
    def table(self) -> str:
        return table_name(self.name)

    @property
    def registry(self) -> str:
        return self.registry_elsewhere or self.server.url(self.name)

    def url(self, address: str = "") -> str:
        return self.server.url(self.name, address)

    def make(self, statement: str = KEYED) -> None:
        is_maria = isinstance(self.server, MariadbServer)
        quoted = statement.replace('"', "`") if is_maria else statement
        self.run(quoted.format(table=self.table, word="VARCHAR(100)"))

    def run(self, statement: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement))

    def sink(self, address: str = "", table: str = "", **options: Any) -> SqlSink:
        self._sinks.append(SqlSink(self.url(address), table or self.table, **options))
        return self._sinks[-1]

    def is_in_a_transaction(self) -> bool:
        """Whether anybody else is, as PostgreSQL sees it; MariaDB ends a transaction that stands still by itself."""
        if isinstance(self.server, MariadbServer):
            return False
        other = "FROM pg_stat_activity WHERE xact_start IS NOT NULL AND backend_type = 'client backend'"
        with self.engine.connect() as connection:
            return bool(connection.execute(text(f"SELECT count(*) {other} AND pid <> pg_backend_pid()")).scalar())

    def rows(self, what: str = "*") -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(text(f"SELECT {what} FROM {self.table}")))

    def values(self) -> list[str]:
        return sorted(row[0] for row in self.rows("value"))

    def tables(self) -> list[str]:
        with self.engine.connect() as connection:
            found = connection.dialect.get_table_names(connection)
        return sorted(name.removeprefix(self.table) for name in found if name.startswith(self.table))

    def count(self, suffix: str) -> int:
        with self.engine.connect() as connection:
            return _count(connection, f"{self.table}_pxrs_{suffix}")

    def staged(self) -> int:
        return self.count("staged") if "_pxrs_staged" in self.tables() else 0

    @contextmanager
    def opened(self, log: str, **more: Any) -> Iterator[pxrs.Queue]:
        with pxrs.open(log=log, registry=self.registry, **more) as queue:
            yield queue

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        self.engine.dispose()


def _count(connection: Connection, table: str) -> int:
    return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def _plain_url(server: Server) -> str:
    if isinstance(server, PostgresServer):
        return f"postgresql+psycopg://{postgres.USER}:{postgres.PASSWORD}@{server.address}/postgres"
    return f"mysql+pymysql://{mariadb.USER}:{mariadb.PASSWORD}@{server.address}/{mariadb.DATABASE}"


def place_name(nodeid: str) -> str:
    """A name for what one test makes on a server."""
    return re.sub(r"\W+", "-", nodeid.rpartition("::")[2])


def elsewhere(directory: Path) -> str:
    return f"sqlite:{directory}/registry.db"


def is_sink(sink: Sink) -> Sink:
    """For the type checker: whatever comes here has the port's shape."""
    return sink
