"""Fixtures for registries in SQL: a server, and stores on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pxrs.stores.sql.store import SqlStore
from pxrs.testing.proxy import Proxy
from tests.stores.kinds.places import opened
from tests.stores.sql.helpers import OPTIONS, SqlServer


@pytest.fixture(params=["postgres_server", "mariadb_server"])
def server(request: pytest.FixtureRequest) -> SqlServer:
    """Each of the two, shared by all tests."""
    found: SqlServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A name that no other test has."""
    return str(tmp_path)


@pytest.fixture
def store(server: SqlServer, place: str) -> Iterator[SqlStore]:
    made = opened(server.url(place, options=OPTIONS))
    yield made
    made.close()


@pytest.fixture
def proxy(server: SqlServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", server.port) as between:
        yield between


@pytest.fixture
def far_store(server: SqlServer, place: str, proxy: Proxy) -> Iterator[SqlStore]:
    """Through the proxy."""
    made = opened(server.url(place, proxy.address, OPTIONS))
    yield made
    made.close()
