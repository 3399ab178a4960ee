"""Where a registry on etcd stands: on one node, with a proxy before it, and another one for the watches alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from pxrs.testing.ground import ServerGround
from pxrs.testing.proxy import Proxy
from pxrs.testing.servers.etcd import EtcdServer


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
