"""Promises about sharing: several handles, threads and processes on one store."""

from __future__ import annotations

import os
import select
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from typing import NoReturn, TypeVar

from pxrs.errors import Refused
from pxrs.stores.base import ABSENT, Guarantee, Store, Swap, Verdict
from pxrs.testing.stores.hooks import Background, Promises, get, put, swap, value_of

THREADS = 8

T = TypeVar("T")


class SharingPromises(Promises):
    def test_a_read_sees_every_write_that_was_answered(self, store: Store, second: Store) -> None:
        version = ABSENT
        for number in range(20):
            writer, reader = (store, second) if number % 2 else (second, store)
            version = put(writer, "a", b"%d" % number, version)
            row = get(reader, "a")
            assert row is not None and row.value == b"%d" % number and row.version == version
            assert reader.scan("a") == [row]

    def test_a_delete_that_was_answered_is_seen(self, store: Store, second: Store) -> None:
        version = put(store, "a", b"x")
        swap(store, "a", version, None)
        assert get(second, "a") is None and second.scan("") == []

    def test_of_two_handles_one_wins(self, store: Store, second: Store) -> None:
        version = put(store, "a", b"start")
        verdicts = [swap(store, "a", version, b"1").verdict, swap(second, "a", version, b"2").verdict]
        assert verdicts == [Verdict.DONE, Verdict.CONFLICT]
        assert value_of(second, "a") == b"1"

    def test_threads_that_race_on_one_row_lose_no_update(self, store: Store, second: Store) -> None:
        put(store, "count", b"0")
        won = self._race(lambda number: _count_up((store, second)[number % 2], 20))
        versions = [version for versions in won for version in versions]
        assert len(set(versions)) == len(versions) == 20 * THREADS, "one version was won twice"
        assert value_of(store, "count") == b"%d" % len(versions), "an update was lost"

    def test_threads_that_race_to_create_have_one_winner_for_each_row(self, store: Store, second: Store) -> None:
        wanted = [f"race/{number}" for number in range(32)]

        def claim(number: int) -> list[str]:
            handle = (store, second)[number % 2]
            return [key for key in wanted if swap(handle, key, ABSENT, b"%d" % number).verdict is Verdict.DONE]

        won = self._race(claim)
        assert Counter(key for keys in won for key in keys) == Counter(wanted)
        for number, keys in enumerate(won):
            assert {value_of(store, key) for key in keys} <= {b"%d" % number}

    def test_swap_all_is_never_seen_half_done(self, store: Store, second: Store) -> None:
        swaps = [Swap("pair/1", ABSENT, b"0"), Swap("pair/2", ABSENT, b"0")]
        if Guarantee.ATOMIC_ROWS not in store.guarantees:
            return
        assert store.swap_all(swaps).verdict is Verdict.DONE
        ended = threading.Event()
        reader = Background(_see_pairs, second, ended)
        try:
            for number in range(50):
                pair = store.scan("pair/")
                store.swap_all([Swap(row.key, row.version, b"%d" % number) for row in pair])
        finally:
            ended.set()
        assert reader.result(self.patience, "the reader of pairs") == set(), "half of a swap_all was seen"

    def test_a_forked_child_shares_the_store_or_is_refused(self, store: Store) -> None:
        version = put(store, "a", b"parent")
        if Guarantee.ACROSS_PROCESSES in store.guarantees or Guarantee.ACROSS_HOSTS in store.guarantees:
            assert in_forked_child(lambda: _write_as_child(store, version), self.patience) == 0
            assert value_of(store, "a") == b"child"
            put(store, "b", b"the parent goes on")
        else:
            assert in_forked_child(lambda: _is_refused(store), self.patience) == 0
            put(store, "a", b"parent again", version)

    def _race(self, run: Callable[[int], list[T]]) -> list[list[T]]:
        """Start threads together, and return what each of them won."""
        start = threading.Barrier(THREADS)

        def one(number: int) -> list[T]:
            start.wait(self.patience)
            return run(number)

        calls = [Background(one, number) for number in range(THREADS)]
        return [call.result(self.patience, "a racing thread") for call in calls]


def in_forked_child(check: Callable[[], bool], patience: float = 60.0) -> int:
    """Fork and run the check in the child: its exit status, 0 if the check was true. A child that hangs is killed."""
    ended, alive = os.pipe()
    child = os.fork()
    if not child:
        _run_as_child(check)
    os.close(alive)
    try:
        # The child's end of the pipe closes when the child ends, however it ends.
        if not select.select([ended], [], [], patience)[0]:
            os.kill(child, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        os.close(ended)


def _run_as_child(check: Callable[[], bool]) -> NoReturn:
    status = 99
    try:
        status = 0 if check() else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _write_as_child(store: Store, version: int) -> bool:
    seen = value_of(store, "a") == b"parent"
    return seen and swap(store, "a", version, b"child").verdict is Verdict.DONE


def _is_refused(store: Store) -> bool:
    try:
        store.read(["a"])
    except Refused:
        return True
    return False


def _count_up(store: Store, times: int) -> list[int]:
    """Add one to the stored number, this many times; return the versions that were won."""
    won: list[int] = []
    while len(won) < times:
        row = get(store, "count")
        assert row is not None
        outcome = swap(store, "count", row.version, b"%d" % (int(row.value) + 1))
        if outcome.verdict is Verdict.DONE:
            won.append(outcome.version)
    return won


def _see_pairs(store: Store, ended: threading.Event) -> set[tuple[bytes, ...]]:
    """The pairs whose two values differ."""
    torn = set()
    while not ended.is_set():
        values = tuple(row.value for row in store.scan("pair/"))
        if len(set(values)) != 1:
            torn.add(values)
    return torn
