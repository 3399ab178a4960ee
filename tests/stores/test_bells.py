"""Whom a commit wakes where processes wake each other through files: nobody but who waits for its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pxrs.settings import Settings
from pxrs.stores.base import Store
from pxrs.stores.lockfiles.store import LockFileStore
from pxrs.stores.sqlite.store import SqliteStore
from pxrs.testing.servers.base import wait_until
from pxrs.testing.stores.hooks import Background, put

SOON = 30.0
LONG = 3_600.0
Open = Callable[[], Store]


@pytest.fixture(params=["sqlite", "lockfiles"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Each call is a process of its own, as far as bells are concerned."""
    made: list[Store] = []

    def open_store() -> Store:
        if request.param == "sqlite":
            made.append(SqliteStore.open(f"sqlite:{tmp_path}/registry.db", Settings()))
        else:
            made.append(LockFileStore.open(f"lockfiles:{tmp_path}/registry", Settings()))
        return made[-1]

    yield open_store
    for store in made:
        store.close()


class Looks:
    """Counts how often a store looks whether something has changed for one that waits."""

    def __init__(self, store: Any) -> None:
        self.count = 0
        self._mark = store._mark
        store._mark = self

    def __call__(self, prefix: str) -> int:
        self.count += 1
        return int(self._mark(prefix))


def bells(group: int) -> str:
    return f"/pxrs/q/g{group}/bell/"


def live_idly(store: Store, group: int) -> None:
    """What an idle group writes, and a busy one: beats and commits."""
    for key in ("member/A", "partition/00000", "group"):
        version = put(store, f"/pxrs/q/g{group}/{key}", b"1")
        put(store, f"/pxrs/q/g{group}/{key}", b"2", version)


def test_commits_and_beats_wake_nobody(opened: Open) -> None:
    waiting, writing = opened(), opened()
    looks = Looks(waiting)
    mark = waiting.wait(bells(0), 0, LONG)
    call = Background(waiting.wait, bells(0), mark, LONG)
    wait_until(lambda: looks.count == 2, "the wait has begun")
    for group in range(16):  # its own group among them
        live_idly(writing if group % 2 else waiting, group)
    put(writing, f"{bells(0)}A", b"{}")
    call.result(SOON, "a wait for the bell of this group")
    assert looks.count == 3


@pytest.mark.parametrize("count", [4, 12])
def test_what_many_groups_on_one_registry_cost_grows_with_their_number_not_with_its_square(
    opened: Open, count: int
) -> None:
    store = opened()
    looks = Looks(store)
    calls = [Background(store.wait, bells(group), store.wait(bells(group), 0, LONG), LONG) for group in range(count)]
    wait_until(lambda: looks.count == 2 * count, "all wait")
    for group in range(count):
        live_idly(store, group)
    assert looks.count == 2 * count, "beats and commits of other groups were looked at"
    for group, call in enumerate(calls):
        put(store, f"{bells(group)}A", b"{}")
        call.result(SOON, "a wait for its own bell")
    assert looks.count <= 4 * count, "a ring is heard directly, and perhaps once more through its file"


@pytest.mark.parametrize("prefix", ["", "w", "w/", "w/a", "w/a/", "w/a/b/1"])
def test_a_row_anywhere_below_the_prefix_ends_a_wait(opened: Open, prefix: str) -> None:
    waiting, writing = opened(), opened()
    mark = waiting.wait(prefix, 0, LONG)
    call = Background(waiting.wait, prefix, mark, LONG)
    put(writing, "w/a/b/1", b"x")
    assert call.result(SOON, "a wait for a row that stands deeper") != mark
