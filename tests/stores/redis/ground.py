"""Where a registry on Redis stands: on a Valkey server that syncs every write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from pxrs.testing.ground import ServerGround
from pxrs.testing.servers.valkey import ValkeyServer


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
