"""Rows of a registry where the store does not do what was hoped for: each outcome is told, for each row."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pxrs.errors import Conflict, WentBack
from pxrs.io.clock import SystemClock
from pxrs.model import Owner
from pxrs.runtime.registry.registry import Registry
from pxrs.runtime.registry.rows import TRIES, Held
from pxrs.stores.base import CONFLICT, Outcome, Swap
from pxrs.stores.memory import MemoryStore

ME = Owner("A", "life-1")


class Refusing(MemoryStore):
    """Refuses to make one row, for no reason, so many times."""

    def __init__(self, key: str, times: int) -> None:
        super().__init__()
        self._key, self._left = key, times

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        return [self._refused(swap) or super(Refusing, self).swap_each([swap])[0] for swap in swaps]

    def _refused(self, swap: Swap) -> Outcome | None:
        if not swap.key.endswith(self._key) or self._left == 0:
            return None
        self._left -= 1
        return CONFLICT


def registry_over(store: MemoryStore) -> Registry:
    return Registry(store, "orders", "g", SystemClock())


def test_a_row_that_the_store_refused_to_make_is_made_before_the_group() -> None:
    """The row of the group says that all partitions are there: nobody would ever make the missing one."""
    registry = registry_over(Refusing("partition/00002", TRIES - 1))
    registry.initialize(4, "xxh64-spark", "pmod")
    assert [row.number for row in registry.partitions()] == [0, 1, 2, 3]


def test_no_group_is_made_over_a_row_that_cannot_be_made() -> None:
    registry = registry_over(Refusing("partition/00002", TRIES))
    with pytest.raises(Conflict, match=r"1 rows could not be made; the first is .*partition/00002"):
        registry.initialize(4, "xxh64-spark", "pmod")
    assert registry.find_group() is None


def test_rows_that_are_there_stay_as_they_are() -> None:
    store = MemoryStore()
    registry_over(store).initialize(2, "xxh64-spark", "pmod")
    registry_over(store).claim([1], ME)
    registry_over(store)._partitions.create({row.number: row for row in registry_over(store).partitions()})
    assert registry_over(store).partition(1).owner == ME


def test_a_row_that_is_missing_spoils_no_other() -> None:
    store = MemoryStore()
    registry = registry_over(store)
    registry.initialize(3, "xxh64-spark", "pmod")
    lost = store.scan(f"{registry.keys.partitions}00001")[0]
    store.swap_each([Swap(lost.key, lost.version, None)])
    claimed = registry.claim(range(3), ME)
    assert isinstance(claimed[1], WentBack) and "partition 1" in str(claimed[1])
    assert isinstance(claimed[0], Held) and isinstance(claimed[2], Held)
    with pytest.raises(WentBack):
        registry.read_partitions([0, 1, 2])
