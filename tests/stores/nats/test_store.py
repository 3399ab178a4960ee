"""The promises of a store, kept by the one over NATS, on a real server, and on three of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import xxhash
from nats import errors

from pxrs.settings import Settings
from pxrs.stores.base import Store
from pxrs.stores.nats.store import NatsStore
from pxrs.testing.servers.nats import NatsCluster
from pxrs.testing.stores.batches import BatchPromises
from pxrs.testing.stores.rows import RowPromises
from pxrs.testing.stores.sharing import SharingPromises
from pxrs.testing.stores.waits import WaitPromises
from tests.stores.nats.helpers import ask

pytestmark = pytest.mark.processes


def bucket_of(place: Path) -> str:
    """All tests share one server, and each has a bucket of its own."""
    return xxhash.xxh3_64_hexdigest(str(place).encode())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with NatsCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.mark.slow
@pytest.mark.xdist_group("nats-cluster")
class TestReplicatedNatsStore(RowPromises, BatchPromises, WaitPromises, SharingPromises):
    """Three nodes and three replicas: any of them may answer a reader, also one that is behind."""

    largest_value = 1_000_000

    @pytest.fixture
    def store(self, cluster: NatsCluster, tmp_path: Path) -> Iterator[Store]:
        """A bucket that goes with its test: each is a group of replicas that vote and beat as long as it is there."""
        bucket = bucket_of(tmp_path)
        store = NatsStore.open(cluster.url(bucket), Settings())
        yield store
        store.close()
        with suppress(errors.Error, OSError):  # only to spare the servers the work
            ask(cluster.nodes[0].address, f"STREAM.DELETE.KV_{bucket}")

    @pytest.fixture
    def second(self, store: Store, cluster: NatsCluster, tmp_path: Path) -> Iterator[Store]:
        """Through another node."""
        second = NatsStore.open(cluster.nodes[2].url(bucket_of(tmp_path)), Settings())
        yield second
        second.close()
