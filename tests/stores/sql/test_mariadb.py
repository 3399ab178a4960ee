"""The registry in MariaDB: all promises of a store, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pxrs.drivers import find_driver
from pxrs.settings import Settings
from pxrs.stores.base import Store
from pxrs.stores.sql.store import SqlStore
from pxrs.testing.conformance import StoreSuite
from pxrs.testing.proxy import Proxy
from pxrs.testing.servers.mariadb import MariadbServer
from tests.stores.sql.helpers import losing_commits


class TestMariadbStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def _server(self, mariadb_server: MariadbServer) -> Iterator[None]:
        self.server = mariadb_server
        with Proxy("127.0.0.1", mariadb_server.port) as self.proxy:
            yield

    def make_store(self, tmp_path: Path) -> Store:
        url = self.server.url(str(tmp_path), self.proxy.address, "timeout_ms=5000&look_ms=10")
        return SqlStore.open(url, Settings())

    def lose_reply(self, store: Store, applied: bool) -> AbstractContextManager[object]:
        return losing_commits(store, self.proxy, "replies" if applied else "requests")


def test_the_driver_answers_to_its_url() -> None:
    assert find_driver("pxrs.stores", "mysql://h/d") is SqlStore
