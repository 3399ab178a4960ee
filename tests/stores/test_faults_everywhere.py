"""The faults that hit registries, on every store: real servers killed, paused, wiped, restored and cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

from pxrs.testing.faults.suite import FaultSuite
from pxrs.testing.ground import Ground
from tests.stores.etcd.ground import EtcdGround
from tests.stores.grounds_embedded import MemoryGround, SqliteGround
from tests.stores.lockfiles.ground import LockFilesGround
from tests.stores.nats.ground import NatsGround
from tests.stores.redis.ground import RedisGround
from tests.stores.sql.ground import MariadbGround, PostgresGround

pytestmark = [pytest.mark.processes, pytest.mark.slow]


class TestMemory(FaultSuite):
    in_processes = False

    def make_ground(self, directory: Path) -> Ground:
        return MemoryGround(directory)


class TestSqlite(FaultSuite):
    def make_ground(self, directory: Path) -> Ground:
        return SqliteGround(directory)


class TestLockFiles(FaultSuite):
    def make_ground(self, directory: Path) -> Ground:
        return LockFilesGround(directory)


class TestValkey(FaultSuite):
    def make_ground(self, directory: Path) -> Ground:
        return RedisGround(directory)


class TestPostgres(FaultSuite):
    def make_ground(self, directory: Path) -> Ground:
        return PostgresGround(directory)


class TestMariadb(FaultSuite):
    def make_ground(self, directory: Path) -> Ground:
        return MariadbGround(directory)


class TestNats(FaultSuite):
    def make_ground(self, directory: Path) -> Ground:
        return NatsGround(directory)


class TestEtcd(FaultSuite):
    def make_ground(self, directory: Path) -> Ground:
        return EtcdGround(directory)
