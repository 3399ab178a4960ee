"""The promises of a store, kept by each that needs a server, through a proxy that can lose what the server answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar

import pytest

from pxrs.drivers import find_driver
from pxrs.stores.base import Store
from pxrs.stores.etcd.store import EtcdStore
from pxrs.stores.nats.store import NatsStore
from pxrs.stores.redis.store import RedisStore
from pxrs.stores.sql.store import SqlStore
from pxrs.testing.conformance import StoreSuite
from pxrs.testing.proxy import Proxy
from tests.stores.kinds.places import new_place, opened
from tests.stores.kinds.table import KINDS


class ServerSuite(StoreSuite):
    kind: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _place(self, request: pytest.FixtureRequest) -> Iterator[None]:
        kind = KINDS[self.kind]
        self._server = request.getfixturevalue(kind.server)
        with Proxy("127.0.0.1", self._server.port) as self._proxy:
            self._direct = self._server.url(new_place(), options=kind.options)
            yield

    def make_store(self, tmp_path: Path) -> Store:
        store: Store = opened(self._direct.replace(self._server.address, self._proxy.address))
        return store

    def make_second(self, store: Store, tmp_path: Path) -> Store:
        second: Store = opened(self._direct)
        return second

    def lose_reply(self, store: Store, applied: bool) -> AbstractContextManager[object]:
        losing = KINDS[self.kind].losing
        assert losing is not None
        return losing(store, self._proxy, "replies" if applied else "requests")


class TestPostgresStore(ServerSuite):
    kind = "postgresql"


class TestMariadbStore(ServerSuite):
    kind = "mysql"


class TestEtcdStore(ServerSuite):
    kind = "etcd"


class TestRedisStore(ServerSuite):
    kind = "redis"


@pytest.mark.processes
class TestNatsStore(ServerSuite):
    kind = "nats"
    largest_value = 1_000_000  # the server takes messages of up to 1 MiB unless it is told otherwise


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("postgresql://h/d", SqlStore),
        ("mysql://h/d", SqlStore),
        ("etcd://h:1/x", EtcdStore),
        ("redis://h:1/0", RedisStore),
        ("rediss://h:1/0", RedisStore),
        ("nats://h:1/x", NatsStore),
    ],
)
def test_the_driver_answers_to_its_url(url: str, kind: type[Store]) -> None:
    assert find_driver("pxrs.stores", url) is kind
