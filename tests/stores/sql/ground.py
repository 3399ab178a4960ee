"""Where a registry in SQL stands: on a PostgreSQL or a MariaDB server of its own."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pxrs.testing.ground import Happening, ServerGround
from pxrs.testing.servers.mariadb import MariadbServer
from pxrs.testing.servers.postgres import PostgresServer


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
