from __future__ import annotations

from pathlib import Path

import pytest

from pxrs.drivers import find_driver
from pxrs.errors import Closed
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, Guarantee, Store, Swap
from pxrs.stores.memory import REMEMBERED_CHANGES, MemoryStore
from pxrs.testing.stores.hooks import Background, get, put, value_of
from tests.stores.broken import LosesReplies, MemorySuite


def opened(url: str) -> MemoryStore:
    return MemoryStore.open(url, Settings())


class TestMemoryStore(MemorySuite):
    """One object, used by all."""


class TestMemoryStoreByName(MemorySuite):
    """Two handles that know each other by their name only."""

    def make_store(self, tmp_path: Path) -> Store:
        return LosesReplies.open(f"memory:{tmp_path}", Settings())

    def make_second(self, store: Store, tmp_path: Path) -> Store:
        return self.make_store(tmp_path)


def test_the_driver_answers_to_its_url() -> None:
    assert find_driver("pxrs.stores", "memory:x") is MemoryStore


def test_without_a_name_every_open_is_a_new_store() -> None:
    first, second = opened("memory:"), opened("memory:")
    put(first, "a", b"")
    assert get(second, "a") is None


def test_closing_one_handle_of_a_name_leaves_the_others() -> None:
    first, second = opened("memory:closing"), opened("memory:closing")
    put(first, "a", b"kept")
    first.close()
    assert value_of(second, "a") == b"kept"
    with pytest.raises(Closed):
        get(first, "a")


def test_it_promises_nothing_that_memory_cannot_keep() -> None:
    assert not MemoryStore.guarantees & {
        Guarantee.DURABLE,
        Guarantee.ACROSS_PROCESSES,
        Guarantee.ACROSS_HOSTS,
        Guarantee.NATIVE_EXPIRY,
    }


def test_a_write_under_another_prefix_does_not_end_a_wait() -> None:
    store = opened("memory:")
    mark = store.wait("x/", 0, 0.0)
    call = Background(store.wait, "x/", mark, 3_600.0)
    for number in range(50):
        put(store, f"y/{number}", b"")
    assert call.running()
    put(store, "x/1", b"")
    call.result(20, "the wait under x/")


def test_a_mark_older_than_what_is_remembered_ends_a_wait_at_once() -> None:
    store = opened("memory:")
    mark = store.wait("x/", 0, 0.0)
    store.swap_each([Swap(f"y/{number}", ABSENT, b"") for number in range(REMEMBERED_CHANGES)])
    call = Background(store.wait, "x/", mark, 3_600.0)
    assert call.result(20, "a wait with an old mark") > mark


def test_a_mark_of_another_life_ends_a_wait_at_once() -> None:
    store = opened("memory:")
    call = Background(store.wait, "x/", 1_000_000, 3_600.0)
    assert call.result(20, "a wait with a mark from the future") < 1_000_000
