"""The promises of a log, kept by the one over NATS JetStream, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import xxhash

from pxrs.testing.servers.nats import NatsCluster, NatsServer
from tests.logs.helpers import KindSuite, LogKind
from tests.logs.jetstream.helpers import delete_streams

pytestmark = pytest.mark.processes


def url_apart(server: NatsServer | NatsCluster, place: Path, name: str) -> str:
    """All tests share one server, and each has names of its own."""
    apart = xxhash.xxh3_64_hexdigest(str(place).encode())
    return server.url(f"{apart}-{name}" if name[:1].isalnum() else name)


class TestJetStreamLog(KindSuite):
    large_value = 1_000_000  # the server takes messages of up to 1 MiB unless it is told otherwise

    @pytest.fixture(autouse=True)
    def server(self, nats_server: NatsServer) -> None:
        self.kind = LogKind(partial(url_apart, nats_server))


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
        self.kind = LogKind(partial(url_apart, cluster))
        yield
        delete_streams(cluster.nodes[0].address)
