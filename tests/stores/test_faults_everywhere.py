"""The faults that hit registries, on every store: real servers killed, paused, wiped, restored and cut off."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from pxrs.testing.faults.suite import FaultSuite
from pxrs.testing.ground import Ground
from tests.stores.kinds.table import KINDS

pytestmark = [pytest.mark.processes, pytest.mark.slow]


class Faults(FaultSuite):
    kind: ClassVar[str]

    def make_ground(self, directory: Path) -> Ground:
        return KINDS[self.kind].ground(directory)  # type: ignore[call-arg]  # each takes the directory


class TestMemory(Faults):
    kind = "memory"
    in_processes = False


class TestSqlite(Faults):
    kind = "sqlite"


class TestLockFiles(Faults):
    kind = "lockfiles"


class TestValkey(Faults):
    kind = "redis"


class TestPostgres(Faults):
    kind = "postgresql"


class TestMariadb(Faults):
    kind = "mysql"


class TestNats(Faults):
    kind = "nats"


class TestEtcd(Faults):
    kind = "etcd"
