"""Promises about single rows: create, replace, delete, read and scan."""

from __future__ import annotations

import json
import time

import pytest

from pxrs.errors import Refused
from pxrs.io.clock import SystemClock
from pxrs.stores.base import ABSENT, CONFLICT, Guarantee, Row, Store, Swap, Verdict
from pxrs.testing.stores.hooks import Promises, get, put, swap, value_of


class RowPromises(Promises):
    def test_an_absent_key_reads_as_none(self, store: Store) -> None:
        assert store.read(["a"]) == [None]
        assert store.scan("") == []

    def test_a_created_row_is_read_back_with_its_version(self, store: Store) -> None:
        version = put(store, "a", b"one")
        assert version > ABSENT
        assert get(store, "a") == Row("a", b"one", version)

    def test_create_only_if_absent(self, store: Store) -> None:
        put(store, "a", b"first")
        assert swap(store, "a", ABSENT, b"second") == CONFLICT
        assert value_of(store, "a") == b"first"

    def test_replace_needs_the_present_version(self, store: Store) -> None:
        first = put(store, "a", b"one")
        second = put(store, "a", b"two", first)
        assert swap(store, "a", first, b"late") == CONFLICT
        assert get(store, "a") == Row("a", b"two", second)

    def test_a_version_that_never_was_is_a_conflict(self, store: Store) -> None:
        version = put(store, "a", b"one")
        assert swap(store, "a", version + 1_000, b"two") == CONFLICT
        assert swap(store, "b", version, b"two") == CONFLICT
        assert get(store, "a") == Row("a", b"one", version) and get(store, "b") is None

    def test_a_conflict_changes_nothing_and_leaves_the_version_usable(self, store: Store) -> None:
        version = put(store, "a", b"one")
        swap(store, "a", ABSENT, b"no")
        put(store, "a", b"two", version)

    def test_every_write_changes_the_version_even_of_equal_bytes(self, store: Store) -> None:
        first = put(store, "a", b"same")
        second = put(store, "a", b"same", first)
        assert second != first
        assert swap(store, "a", first, b"same") == CONFLICT

    def test_compare_is_by_version_and_not_by_value(self, store: Store) -> None:
        first = put(store, "a", b"A")
        second = put(store, "a", b"B", first)
        third = put(store, "a", b"A", second)
        assert swap(store, "a", first, b"C") == CONFLICT
        assert get(store, "a") == Row("a", b"A", third)

    def test_compare_is_by_version_and_not_by_epoch(self, store: Store) -> None:
        # A forced release that read before a checkpoint must not take the checkpoint back.
        first = put(store, "p", _row(epoch=1, checkpoint=0))
        put(store, "p", _row(epoch=1, checkpoint=7), first)
        assert swap(store, "p", first, _row(epoch=2, checkpoint=0)) == CONFLICT
        assert value_of(store, "p") == _row(epoch=1, checkpoint=7)

    def test_delete_removes_the_row(self, store: Store) -> None:
        version = put(store, "a", b"one")
        outcome = swap(store, "a", version, None)
        assert (outcome.verdict, outcome.version) == (Verdict.DONE, ABSENT)
        assert get(store, "a") is None and store.scan("") == []

    def test_delete_needs_the_present_version(self, store: Store) -> None:
        first = put(store, "a", b"one")
        put(store, "a", b"two", first)
        assert swap(store, "a", first, None) == CONFLICT
        assert swap(store, "a", ABSENT, None) == CONFLICT
        assert value_of(store, "a") == b"two"

    def test_deleting_what_is_absent_is_done_and_changes_nothing(self, store: Store) -> None:
        assert swap(store, "a", ABSENT, None).verdict is Verdict.DONE
        assert get(store, "a") is None
        put(store, "a", b"one")

    def test_a_version_is_never_used_again_after_a_delete(self, store: Store) -> None:
        seen = set()
        for _ in range(5):
            version = put(store, "a", b"one")
            assert version not in seen
            seen.add(version)
            swap(store, "a", version, None)
            assert swap(store, "a", version, b"late") == CONFLICT

    def test_reads_come_in_the_order_asked_with_none_in_the_gaps(self, store: Store) -> None:
        put(store, "a", b"1")
        put(store, "b", b"2")
        values = [row and row.value for row in store.read(["b", "x", "a", "b"])]
        assert values == [b"2", None, b"1", b"2"]
        assert store.read([]) == []

    def test_many_keys_in_one_read(self, store: Store) -> None:
        put(store, "k/7", b"7")
        put(store, "k/1999", b"1999")
        rows = store.read([f"k/{number}" for number in range(2_000)])
        assert [row.key for row in rows if row] == ["k/7", "k/1999"]
        assert len(rows) == 2_000 and rows[7] is not None

    def test_scan_is_exact_by_prefix(self, store: Store) -> None:
        for key in ("a/1", "a/10", "a/2", "a0", "a", "b/a/1", "A/1", "a_1", "a%1"):
            put(store, key, key.encode())
        assert _keys(store, "a/") == ["a/1", "a/10", "a/2"]
        assert _keys(store, "a/1") == ["a/1", "a/10"]
        assert _keys(store, "a_") == ["a_1"]
        assert _keys(store, "a%") == ["a%1"]
        assert _keys(store, "x") == []

    def test_scan_is_sorted_by_key(self, store: Store) -> None:
        for number in (9, 10, 1, 100, 5):
            put(store, f"s/{number}", b"x")
        assert _keys(store, "s/") == ["s/1", "s/10", "s/100", "s/5", "s/9"]

    def test_scan_of_the_empty_prefix_gives_every_row_with_value_and_version(self, store: Store) -> None:
        first, second = put(store, "b", b"2"), put(store, "a", b"1")
        assert store.scan("") == [Row("a", b"1", second), Row("b", b"2", first)]

    def test_every_byte_survives(self, store: Store) -> None:
        value = bytes(range(256)) * 2
        put(store, "a", value)
        assert value_of(store, "a") == value
        assert store.scan("a")[0].value == value

    def test_an_empty_value_is_a_row(self, store: Store) -> None:
        version = put(store, "a", b"")
        assert get(store, "a") == Row("a", b"", version)

    def test_the_largest_value_survives(self, store: Store) -> None:
        value = (bytes(range(251)) * (self.largest_value // 251 + 1))[: self.largest_value]
        put(store, "a", value)
        assert value_of(store, "a") == value

    def test_odd_keys_are_kept_apart(self, store: Store) -> None:
        for key in self.odd_keys:
            put(store, key, key.encode())
        assert [value_of(store, key) for key in self.odd_keys] == [key.encode() for key in self.odd_keys]
        assert _keys(store, "") == sorted(self.odd_keys)

    def test_a_row_with_a_time_to_live_vanishes_where_that_is_promised(self, store: Store) -> None:
        brief, kept = Swap("ttl/brief", ABSENT, b"x", 1_000), Swap("ttl/kept", ABSENT, b"x", 1_000)
        [_, outcome] = store.swap_each([brief, kept])
        put(store, "ttl/kept", b"without one", outcome.version)
        if Guarantee.NATIVE_EXPIRY not in store.guarantees:
            assert _keys(store, "ttl/") == ["ttl/brief", "ttl/kept"]
            return
        deadline = SystemClock().monotonic() + self.patience
        while get(store, "ttl/brief") is not None:
            assert SystemClock().monotonic() < deadline, "a row outlives its time to live"
            time.sleep(0.05)
        assert _keys(store, "ttl/") == ["ttl/kept"], "a row vanished whose last write gave it no time to live"
        put(store, "ttl/brief", b"made again")

    def test_a_key_without_bytes_is_refused_before_anything_is_written(self, store: Store) -> None:
        with pytest.raises(Refused):
            put(store, "lone \ud800 surrogate", b"")
        assert store.scan("") == []


def _keys(store: Store, prefix: str) -> list[str]:
    return [row.key for row in store.scan(prefix)]


def _row(epoch: int, checkpoint: int) -> bytes:
    return json.dumps({"epoch": epoch, "checkpoint": checkpoint}).encode()
