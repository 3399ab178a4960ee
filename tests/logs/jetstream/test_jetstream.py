"""The promises of a log, kept by the one over NATS JetStream, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash

from pxrs.logs.base import Log
from pxrs.settings import Settings
from pxrs.testing.log_conformance import LogSuite
from pxrs.testing.servers.nats import NatsCluster, NatsServer
from tests.logs.jetstream.helpers import delete_streams, open_nats

pytestmark = pytest.mark.processes


def url_apart(server: NatsServer | NatsCluster, place: Path, name: str) -> str:
    """All tests share one server, and each has names of its own."""
    apart = xxhash.xxh3_64_hexdigest(str(place).encode())
    return server.url(f"{apart}-{name}" if name[:1].isalnum() else name)


class TestJetStreamLog(LogSuite):
    large_value = 1_000_000  # the server takes messages of up to 1 MiB unless it is told otherwise
    _server: NatsServer | NatsCluster

    @pytest.fixture(autouse=True)
    def server(self, nats_server: NatsServer) -> None:
        self._server = nats_server

    def make_log(
        self, place: Path, name: str = "q", create: bool = True, settings: Settings | None = None, **wish: Any
    ) -> Log:
        return open_nats(url_apart(self._server, place, name), create, settings, **wish)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with NatsCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.mark.slow
@pytest.mark.xdist_group("nats-cluster")
class TestReplicatedJetStreamLog(TestJetStreamLog):
    """Three nodes and three replicas: any of them may answer a reader, also one that is behind."""

    @pytest.fixture(autouse=True)
    def server(self, cluster: NatsCluster) -> Iterator[None]:
        """Streams go with their test: each is a group of replicas that vote and beat as long as it is there."""
        self._server = cluster
        yield
        delete_streams(cluster.nodes[0].address)
