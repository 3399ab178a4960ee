"""Helpers of the tests of SQL registries."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from pxrs.stores.base import Store
from pxrs.stores.sql import store as sql
from pxrs.stores.sql.statements import OwnChange
from pxrs.stores.sql.store import SqlStore
from pxrs.testing.proxy import Direction, Proxy
from pxrs.testing.servers.base import wait_until
from pxrs.testing.servers.mariadb import MariadbServer
from pxrs.testing.servers.postgres import PostgresServer
from tests.stores.kinds.places import SOON

SqlServer = PostgresServer | MariadbServer
OPTIONS = "timeout_ms=5000&look_ms=10"


@contextmanager
def at_the_next_commit(act: Any) -> Iterator[None]:
    """While the block runs: enter ``act`` just before the next request that commits, and leave it at the end."""
    with ExitStack() as stack:

        class Watched(OwnChange):
            def __setattr__(self, name: str, value: Any) -> None:
                super().__setattr__(name, value)
                if name == "committing" and value:
                    enter()

        def commit_alone(store: SqlStore, *request: Any) -> bool:
            enter()
            return sound(store, *request)

        def enter() -> None:
            if not entered:
                entered.append(stack.enter_context(act))

        entered: list[Any] = []
        sound = SqlStore._commit_alone
        with mock.patch.object(sql, "OwnChange", Watched), mock.patch.object(SqlStore, "_commit_alone", commit_alone):
            yield
        assert entered, "there was no commit"


def hasty(store: SqlStore, seconds: float) -> Any:
    """While the block runs, answers may take only so long."""
    return mock.patch.object(store._connections, "seconds", seconds)


@contextmanager
def losing_commits(store: Store, proxy: Proxy, direction: Direction, seconds: float = 0.7) -> Iterator[None]:
    """Everything of one direction is lost, from the next commit on, and nobody waits long for it."""
    assert isinstance(store, SqlStore)
    with hasty(store, seconds), at_the_next_commit(proxy.losing(direction)):
        yield
    assert proxy.lost[direction] > 0


@contextmanager
def hanging_up(proxy: Proxy, direction: Direction) -> Iterator[None]:
    """The next bytes of one direction are lost, then all connections break; new ones work."""
    lost, entered = proxy.lost[direction], threading.Event()

    def run() -> None:
        with proxy.losing(direction):
            entered.set()
            wait_until(lambda: proxy.lost[direction] > lost, "something was lost", SOON)

    thread = threading.Thread(target=run, daemon=True)
    look = SqlStore._versions_that_exist

    def look_afterwards(self: SqlStore, *arguments: Any) -> set[int]:
        thread.join(SOON)  # a connection that is made while the others break would lose its answers too
        return look(self, *arguments)

    thread.start()
    assert entered.wait(SOON)
    with mock.patch.object(SqlStore, "_versions_that_exist", look_afterwards):
        yield
    thread.join(SOON)
    assert not thread.is_alive()
