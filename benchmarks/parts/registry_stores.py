"""The registries that are measured: each on a server of its own, started and stopped here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from pxrs.testing.servers.etcd import EtcdServer
from pxrs.testing.servers.mariadb import MariadbServer
from pxrs.testing.servers.nats import NatsServer
from pxrs.testing.servers.postgres import PostgresServer
from pxrs.testing.servers.valkey import ValkeyServer


class Place(NamedTuple):
    """A store to measure: how it is called, a new empty registry on it, and where its server listens (0: none)."""

    name: str
    url: Callable[[str], str]
    port: int = 0


WATCHING = ("memory", "sqlite", "lockfiles", "etcd", "valkey", "nats")
"""Stores that wake a waiter by themselves; the others are looked at again and again."""

DURABLE_POSTGRES = {"fsync": "on"}
DURABLE_MARIADB = {"innodb-flush-log-at-trx-commit": "1"}
"""As these servers are when somebody installs them. In tests they do not wait for the disk."""


@contextmanager
def places(directory: Path) -> Iterator[list[Place]]:
    """All of them, running."""
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer(directory / "postgres", DURABLE_POSTGRES))
        mariadb = stack.enter_context(MariadbServer(directory / "mariadb", DURABLE_MARIADB))
        etcd = stack.enter_context(EtcdServer(directory / "etcd"))
        valkey = stack.enter_context(ValkeyServer(directory / "valkey"))
        nats = stack.enter_context(NatsServer(directory / "nats"))
        yield [
            Place("memory", lambda name: f"memory:{name}"),
            Place("sqlite", lambda name: f"sqlite:{directory}/{name}.db"),
            Place("lockfiles", lambda name: f"lockfiles:{directory}/{name}"),
            Place("postgresql", postgres.url, postgres.port),
            Place("mariadb", mariadb.url, mariadb.port),
            Place("etcd", etcd.url, etcd.port),
            Place("valkey", valkey.url, valkey.port),
            Place("nats", nats.url, nats.port),
        ]
