"""Promises about several swaps at once, and about replies that are lost."""

from __future__ import annotations

import pytest

from pxrs.errors import Unavailable
from pxrs.stores.base import ABSENT, CONFLICT, Guarantee, Outcome, Store, Swap, Verdict
from pxrs.testing.stores.hooks import Promises, get, put, value_of


class BatchPromises(Promises):
    def test_swap_each_judges_every_row_alone(self, store: Store) -> None:
        version = put(store, "taken", b"theirs")
        outcomes = store.swap_each(
            [Swap("new", ABSENT, b"1"), Swap("taken", ABSENT, b"2"), Swap("taken", version, b"3")]
        )
        assert [outcome.verdict for outcome in outcomes] == [Verdict.DONE, Verdict.CONFLICT, Verdict.DONE]
        assert value_of(store, "new") == b"1" and value_of(store, "taken") == b"3"

    def test_swap_each_answers_in_order_with_usable_versions(self, store: Store) -> None:
        keys = [f"r/{number}" for number in range(300)]
        outcomes = store.swap_each([Swap(key, ABSENT, key.encode()) for key in keys])
        again = store.swap_each(
            [Swap(key, outcome.version, b"next") for key, outcome in zip(keys, outcomes, strict=True)]
        )
        assert {outcome.verdict for outcome in again} == {Verdict.DONE}
        assert {row.value for row in store.scan("r/")} == {b"next"}

    def test_swap_each_of_nothing_is_nothing(self, store: Store) -> None:
        assert store.swap_each([]) == []

    def test_swap_all_does_all(self, store: Store) -> None:
        _needs_atomic_rows(store)
        version = put(store, "old", b"0")
        outcome = store.swap_all([Swap("a", ABSENT, b"1"), Swap("b", ABSENT, b"2"), Swap("old", version, None)])
        assert outcome.verdict is Verdict.DONE
        rows = store.scan("")
        assert [row.value for row in rows] == [b"1", b"2"]
        assert outcome.version == max(row.version for row in rows)

    def test_swap_all_does_none_after_a_conflict_in_the_last_row(self, store: Store) -> None:
        _check_none_was_done(store, [Swap("a", ABSENT, b"1"), Swap("gone", 999_999, b"2")])

    def test_swap_all_does_none_after_a_conflict_in_the_first_row(self, store: Store) -> None:
        _check_none_was_done(store, [Swap("gone", 999_999, b"2"), Swap("a", ABSENT, b"1")])

    def test_swap_all_does_none_of_its_replaces_and_deletes_after_a_conflict(self, store: Store) -> None:
        one, two = put(store, "one", b"1"), put(store, "two", b"2")
        _check_none_was_done(
            store,
            [Swap("one", one, b"x"), Swap("two", two, None), Swap("new", ABSENT, b"x"), Swap("one", ABSENT, b"y")],
        )
        put(store, "one", b"still usable", one)

    def test_swap_all_of_nothing_is_done(self, store: Store) -> None:
        assert store.swap_all([]).verdict is Verdict.DONE

    def test_a_lost_reply_is_unknown_and_never_a_conflict(self, store: Store) -> None:
        version = put(store, "a", b"before")
        with self.lose_reply(store, applied=True):
            told = _try_swap(store, Swap("a", version, b"after"))
        assert told is None or told.verdict is not Verdict.CONFLICT, "a write that happened was called a conflict"
        if told is None:
            assert value_of(store, "a") == b"before", "Unavailable was raised for a write that happened"

    def test_done_is_never_said_of_a_write_that_did_not_happen(self, store: Store) -> None:
        version = put(store, "a", b"before")
        with self.lose_reply(store, applied=False):
            told = _try_swap(store, Swap("a", version, b"after"))
        if told is not None and told.verdict is Verdict.DONE:
            assert value_of(store, "a") == b"after", "a write that did not happen was called done"

    def test_after_unknown_a_second_try_against_the_same_version_lands_once(self, store: Store) -> None:
        for applied in (True, False):
            key = f"applied-{applied}"
            version = put(store, key, b"before")
            with self.lose_reply(store, applied):
                _try_swap(store, Swap(key, version, b"first"))
            [again] = store.swap_each([Swap(key, version, b"second")])
            landed = b"second" if again.verdict is Verdict.DONE else b"first"
            assert value_of(store, key) == landed
            assert not applied or again == CONFLICT

    def test_a_lost_reply_of_swap_all_is_unknown_too(self, store: Store) -> None:
        with self.lose_reply(store, applied=True):
            told = store.swap_all([Swap("a", ABSENT, b"1"), Swap("b", ABSENT, b"2")])
        assert told.verdict is not Verdict.CONFLICT
        assert (get(store, "a") is None) == (get(store, "b") is None)


def _try_swap(store: Store, swap: Swap) -> Outcome | None:
    """The outcome; None if the store says that nothing was written."""
    try:
        [outcome] = store.swap_each([swap])
    except Unavailable:
        return None
    return outcome


def _needs_atomic_rows(store: Store) -> None:
    if Guarantee.ATOMIC_ROWS not in store.guarantees:
        pytest.skip("this store does not promise to swap several rows at once")


def _check_none_was_done(store: Store, swaps: list[Swap]) -> None:
    _needs_atomic_rows(store)
    before = store.scan("")
    assert store.swap_all(swaps).verdict is Verdict.CONFLICT
    assert store.scan("") == before
