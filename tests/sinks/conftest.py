"""Databases for the tests of the SQL sink."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pxrs.testing.spark import spark
from tests.sinks.sql.support import DATABASES, Server, SqlPlace, place_name

__all__ = ["spark"]


@pytest.fixture(params=DATABASES)
def place(request: pytest.FixtureRequest) -> Iterator[SqlPlace]:
    """A table on each kind of server, not made yet."""
    fixture = {"postgresql": "postgres_server", "mysql": "mariadb_server"}[request.param]
    server: Server = request.getfixturevalue(fixture)
    place = SqlPlace(server, place_name(request.node.nodeid))
    yield place
    place.close()
