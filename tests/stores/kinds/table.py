"""The table of registry stores: where tests find each, how its answers get lost, and the ground for its faults."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from pxrs.testing.ground import Ground
from pxrs.testing.proxy import Direction, Proxy
from tests.stores.etcd.helpers import losing_everything
from tests.stores.kinds import embedded, servers
from tests.stores.kinds.lockfiles import LockFilesGround
from tests.stores.nats.helpers import losing_from_the_next_swap as losing_nats
from tests.stores.redis.helpers import losing_from_the_next_swap as losing_redis
from tests.stores.sql.helpers import losing_commits

Losing = Callable[[Any, Proxy, Direction], AbstractContextManager[None]]


class StoreKind(NamedTuple):
    """One kind of store. Those without a server lose answers in ways of their own, which their own tests know."""

    ground: type[Ground]
    server: str = ""
    """The fixture that is its server."""
    options: str = "timeout_ms=2000"
    losing: Losing | None = None
    """From the next swap on, one direction is lost."""


_SQL = "timeout_ms=5000&look_ms=10"

KINDS = {
    "memory": StoreKind(embedded.MemoryGround),
    "sqlite": StoreKind(embedded.SqliteGround),
    "lockfiles": StoreKind(LockFilesGround),
    "postgresql": StoreKind(servers.PostgresGround, "postgres_server", _SQL, losing_commits),
    "mysql": StoreKind(servers.MariadbGround, "mariadb_server", _SQL, losing_commits),
    "etcd": StoreKind(servers.EtcdGround, "etcd_server", losing=losing_everything),
    "redis": StoreKind(servers.RedisGround, "valkey_server", losing=losing_redis),
    "nats": StoreKind(servers.NatsGround, "nats_server", losing=losing_nats),
}
