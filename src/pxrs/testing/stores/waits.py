"""Promises about waiting: hints that come at once, are not lost between two calls, and do not spin."""

from __future__ import annotations

from contextlib import suppress

import pytest

from pxrs.errors import Closed
from pxrs.io.clock import SystemClock
from pxrs.stores.base import ABSENT, Store, Swap
from pxrs.testing.stores.hooks import Background, Promises, get, put, swap

LONG = 3_600.0
"""A time-out that no test lives to see: a wait that ends was woken."""


class WaitPromises(Promises):
    def test_wait_from_mark_0_answers_at_once(self, store: Store) -> None:
        call = Background(store.wait, "w/", 0, LONG)
        assert call.result(self.patience, "wait from mark 0") > 0
        put(store, "w/1", b"x")
        call = Background(store.wait, "w/", 0, LONG)
        assert call.result(self.patience, "wait from mark 0 with a row") > 0

    def test_a_change_between_the_look_and_the_wait_is_not_lost(self, store: Store, second: Store) -> None:
        for number in range(5):
            mark = store.wait("w/", 0, LONG)
            put(second, f"w/{number}", b"x")
            call = Background(store.wait, "w/", mark, LONG)
            assert call.result(self.patience, "a change made before the wait") != mark

    def test_a_wait_is_woken_by_a_change_made_during_it(self, store: Store, second: Store) -> None:
        # Two waiters play ping-pong: when one writes, the other nearly always sleeps already.
        rounds = 25
        ping = Background(_answer, store, "ping/", "pong/", rounds)
        pong = Background(_answer, second, "pong/", "ping/", rounds)
        put(store, "ping/0", b"0")
        ping.result(self.patience, "a waiter was not woken by a change under its prefix")
        pong.result(self.patience, "a waiter was not woken by a change under its prefix")

    def test_a_wait_is_woken_by_a_delete(self, store: Store, second: Store) -> None:
        version = put(store, "w/1", b"x")
        mark = store.wait("w/", 0, LONG)
        call = Background(store.wait, "w/", mark, LONG)
        swap(second, "w/1", version, None)
        call.result(self.patience, "a wait during a delete")

    def test_a_wait_is_woken_by_swap_all(self, store: Store, second: Store) -> None:
        mark = store.wait("w/", 0, LONG)
        call = Background(store.wait, "w/", mark, LONG)
        second.swap_all([Swap("v/1", ABSENT, b"x"), Swap("w/1", ABSENT, b"x")])
        call.result(self.patience, "a wait during swap_all")

    def test_every_waiter_is_woken(self, store: Store, second: Store) -> None:
        mark = store.wait("w/", 0, LONG)
        calls = [Background(store.wait, "w/", mark, LONG) for _ in range(4)]
        put(second, "w/1", b"x")
        for call in calls:
            call.result(self.patience, "one of four waiters")

    def test_a_wait_that_ends_shows_the_change_to_a_read(self, store: Store, second: Store) -> None:
        mark = store.wait("w/", 0, LONG)
        call = Background(_wait_for_row, store, "w/", "w/1", mark)
        put(second, "w/1", b"seen")
        assert call.result(self.patience, "wait, then read") == b"seen"

    def test_a_wait_ends_after_its_time_out(self, store: Store) -> None:
        put(store, "w/1", b"x")
        mark = store.wait("w/", 0, 0.0)
        call = Background(store.wait, "w/", mark, 0.01)
        later = call.result(self.patience, "a wait of 10 ms")
        put(store, "w/2", b"x")
        call = Background(store.wait, "w/", later, LONG)
        call.result(self.patience, "a wait that goes on from the mark of one that timed out")

    def test_a_quiet_wait_does_not_spin(self, store: Store) -> None:
        # Hints may come for nothing, but a store that answers at once all the time would burn a core.
        clock = SystemClock()
        mark = store.wait("quiet/", 0, LONG)
        ends, answers = clock.monotonic() + 0.2, 0
        while clock.monotonic() < ends:
            mark = store.wait("quiet/", mark, 0.05)
            answers += 1
        assert answers < 30

    def test_a_wait_ends_when_its_store_is_closed(self, store: Store) -> None:
        mark = store.wait("w/", 0, LONG)
        calls = [Background(store.wait, "w/", mark, LONG) for _ in range(8)]
        store.close()
        for call in calls:
            with suppress(Closed):  # if that wait began after the close; with eight, some began before
                call.result(self.patience, "a wait whose store was closed")

    def test_a_closed_store_says_so_and_closes_twice(self, store: Store) -> None:
        store.close()
        store.close()
        for call in (lambda: get(store, "a"), lambda: store.scan(""), lambda: put(store, "a", b"x")):
            with pytest.raises(Closed):
                call()
        with pytest.raises(Closed):
            store.wait("", 0, 0.0)


def _answer(store: Store, mine: str, theirs: str, rounds: int) -> None:
    """Wait for row n under my prefix, answer with row n (or n + 1) under theirs."""
    step = 0 if mine == "ping/" else 1
    mark = store.wait(mine, 0, LONG)
    for number in range(rounds):
        while get(store, f"{mine}{number}") is None:
            mark = store.wait(mine, mark, LONG)
        put(store, f"{theirs}{number + step}", b"x")


def _wait_for_row(store: Store, prefix: str, key: str, mark: int) -> bytes:
    while True:
        mark = store.wait(prefix, mark, LONG)
        row = get(store, key)
        if row is not None:
            return row.value
