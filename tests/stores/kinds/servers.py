"""Places of registries on a server: one of its own, behind a proxy, with a stream of changes that can be cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from pxrs.testing.ground import Happening, ServerGround
from pxrs.testing.proxy import Proxy
from pxrs.testing.servers.base import wait_until
from pxrs.testing.servers.etcd import EtcdServer
from pxrs.testing.servers.mariadb import MariadbServer
from pxrs.testing.servers.nats import NatsServer
from pxrs.testing.servers.postgres import PostgresServer
from pxrs.testing.servers.valkey import ValkeyServer
from tests.stores.nats.helpers import delete_consumers, edit

_BUCKET = "ground"
_SECOND = 1_000_000_000


class PostgresGround(ServerGround):
    name: ClassVar[str] = "postgresql"
    lacks: ClassVar[dict[Happening, str]] = {"cut_watch": "it looks by itself"}
    server: PostgresServer

    def make_server(self, directory: Path) -> PostgresServer:
        return PostgresServer(directory)

    def url_at(self, address: str) -> str:
        return self.server.url("ground", address)


class MariadbGround(ServerGround):
    name: ClassVar[str] = "mariadb"
    lacks: ClassVar[dict[Happening, str]] = {"cut_watch": "it looks by itself"}
    server: MariadbServer

    def make_server(self, directory: Path) -> MariadbServer:
        return MariadbServer(directory)

    def url_at(self, address: str) -> str:
        return self.server.url("ground", address)


class EtcdGround(ServerGround):
    """Its stream of changes goes another way than the rest, which can be closed."""

    name: ClassVar[str] = "etcd"
    server: EtcdServer

    def make_server(self, directory: Path) -> EtcdServer:
        return EtcdServer(directory)

    def set_up(self) -> None:
        super().set_up()
        self._proxies.append(Proxy("127.0.0.1", self.server.port))

    def url_at(self, address: str) -> str:
        return f"etcd://{address}/ground?watch={self._proxies[1].address}"

    @contextmanager
    def without_watch(self) -> Iterator[None]:
        with self._proxies[1].refusing():
            yield


class RedisGround(ServerGround):
    """Its stream of changes is a subscription, which the server can be told to allow nobody."""

    name: ClassVar[str] = "redis"
    server: ValkeyServer

    def make_server(self, directory: Path) -> ValkeyServer:
        return ValkeyServer(directory)

    def url_at(self, address: str) -> str:
        return f"redis://{address}/0?prefix=ground"

    @contextmanager
    def without_watch(self) -> Iterator[None]:
        self.server.ask("ACL", "SETUSER", "default", "-subscribe")
        self.server.ask("CLIENT", "KILL", "TYPE", "pubsub")
        try:
            yield
        finally:
            self.server.ask("ACL", "SETUSER", "default", "+subscribe")


class NatsGround(ServerGround):
    """Its stream of changes is a consumer, of a kind that the bucket can be told to take no more."""

    name: ClassVar[str] = "nats"
    server: NatsServer

    def make_server(self, directory: Path) -> NatsServer:
        return NatsServer(directory)

    def url_at(self, address: str) -> str:
        return f"nats://{address}/{_BUCKET}"

    @contextmanager
    def without_watch(self) -> Iterator[None]:
        wait_until(self._forbid, "the bucket takes no more consumers")
        try:
            yield
        finally:
            edit(self.server.address, _BUCKET, consumer_limits={})

    def _forbid(self) -> bool:
        """Delete those that there are, before new ones come; the server refuses the limit while one exceeds it."""
        delete_consumers(self.server.address, _BUCKET)
        return "error" not in edit(self.server.address, _BUCKET, consumer_limits={"inactive_threshold": _SECOND})
