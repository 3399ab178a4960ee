"""Stores that are broken on purpose, one fault each: the conformance suite must catch every one.

``BROKEN`` says which promise must break for which fault. A suite that lets one pass proves nothing about a driver.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import ClassVar

from pxrs.stores.base import CONFLICT, Guarantee, Outcome, Row, Store, Swap, Verdict, done, unknown
from pxrs.stores.memory import MemoryStore, SharedRows, check_keys
from pxrs.testing.conformance import StoreSuite


class LosesReplies(MemoryStore):
    """A sound store behind a line that can be cut: the writer is told UNKNOWN, as it should be."""

    def __init__(self, table: SharedRows | None = None) -> None:
        super().__init__(table)
        self.losing: bool | None = None

    @contextmanager
    def lose_replies(self, applied: bool) -> Iterator[None]:
        self.losing = applied
        try:
            yield
        finally:
            self.losing = None

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        if self.losing is None:
            return super().swap_each(swaps)
        if self.losing:
            super().swap_each(swaps)
        return [self.told(swap) for swap in swaps]

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        if self.losing is None:
            return super().swap_all(swaps)
        if self.losing:
            super().swap_all(swaps)
        return self.told(swaps[0])

    def told(self, swap: Swap) -> Outcome:
        return unknown(f"the reply for {swap.key} was lost")


class MemorySuite(StoreSuite):
    """The conformance suite over a store in memory: the sound one, or any class that derives from it."""

    kind: type[LosesReplies] = LosesReplies

    def make_store(self, tmp_path: Path) -> Store:
        return self.kind()

    def make_second(self, store: Store, tmp_path: Path) -> Store:
        return store

    def lose_reply(self, store: Store, applied: bool) -> AbstractContextManager[object]:
        assert isinstance(store, LosesReplies)
        return store.lose_replies(applied)


class NoCompare(LosesReplies):
    """Writes whatever the stored version is."""

    def _matches(self, row: Row | None, swap: Swap) -> bool:
        return True


class _Remembers(LosesReplies):
    """Knows what every version held."""

    def __init__(self, table: SharedRows | None = None) -> None:
        super().__init__(table)
        self.held: dict[tuple[str, int], bytes] = {}

    def _swap(self, swap: Swap) -> Outcome:
        outcome = super()._swap(swap)
        if outcome.verdict is Verdict.DONE and swap.value is not None:
            self.held[swap.key, outcome.version] = swap.value
        return outcome


class ComparesValue(_Remembers):
    """Compares the bytes that were read with those stored: A, B, A looks like no change."""

    def _matches(self, row: Row | None, swap: Swap) -> bool:
        if row is None:
            return super()._matches(row, swap)
        return row.value == self.held.get((swap.key, swap.expect))


class ComparesEpoch(_Remembers):
    """Compares the epoch inside of the value: a checkpoint in between goes unseen and is taken back."""

    def _matches(self, row: Row | None, swap: Swap) -> bool:
        expected = self.held.get((swap.key, swap.expect))
        if row is None or expected is None or _epoch(row.value) is None:
            return super()._matches(row, swap)
        return _epoch(row.value) == _epoch(expected)


class VersionPerRow(LosesReplies):
    """Counts versions in the row itself, so they start again after a delete."""

    def _swap(self, swap: Swap) -> Outcome:
        before = self.table.rows.get(swap.key)
        outcome = super()._swap(swap)
        if outcome.verdict is not Verdict.DONE or swap.value is None:
            return outcome
        row = Row(swap.key, swap.value, before.version + 1 if before else 1)
        self.table.rows[swap.key] = row
        return done(row.version)


class VersionOnlyOfChanges(LosesReplies):
    """A write of equal bytes keeps the version (as a database that counts changed rows would)."""

    def _swap(self, swap: Swap) -> Outcome:
        row = self.table.rows.get(swap.key)
        if row is not None and row.value == swap.value and row.version == swap.expect:
            return done(row.version)
        return super()._swap(swap)


class ForgetsToWake(LosesReplies):
    """Writes wake nobody who sleeps already."""

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        check_keys(swaps)
        with self._shared().changed:
            return [self._swap(swap) for swap in swaps]


class WaitsForTheNext(LosesReplies):
    """A wait listens from its own beginning: what changed since the mark is lost."""

    def wait(self, prefix: str, after: int, timeout: float) -> int:
        return super().wait(prefix, self.table.revision if after else 0, timeout)


class ForgetsDeletes(LosesReplies):
    """Deletes wake nobody."""

    def _swap(self, swap: Swap) -> Outcome:
        outcome = super()._swap(swap)
        if swap.value is None and outcome.verdict is Verdict.DONE and self.table.changes:
            self.table.changes.pop()
        return outcome


class AlwaysWakes(LosesReplies):
    """A wait never blocks: its caller spins."""

    def wait(self, prefix: str, after: int, timeout: float) -> int:
        return super().wait(prefix, after, 0.0)


class WaitOutlivesClose(LosesReplies):
    """Closing leaves the waits of other threads asleep."""

    def close(self) -> None:
        self._closed = True


class HalfOfAll(LosesReplies):
    """``swap_all`` keeps what it did before the conflict."""

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        outcomes = []
        for swap in swaps:
            outcomes += self.swap_each([swap])
            if outcomes[-1].verdict is not Verdict.DONE:
                return outcomes[-1]
        return max(outcomes, default=done(0), key=lambda outcome: outcome.version)


class AllInsteadOfEach(LosesReplies):
    """``swap_each`` in one transaction: one conflict spoils the others."""

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        if len(swaps) < 2 or self.losing is not None:
            return super().swap_each(swaps)
        together = self.swap_all(swaps)
        if together.verdict is not Verdict.DONE:
            return [together] * len(swaps)
        rows = self.read([swap.key for swap in swaps])
        return [done(row.version if row else 0) for row in rows]


class CreateOverwrites(LosesReplies):
    """A create does not mind that the row is there."""

    def _matches(self, row: Row | None, swap: Swap) -> bool:
        return (swap.expect == 0 and swap.value is not None) or super()._matches(row, swap)


class DeleteIgnoresVersion(LosesReplies):
    """A delete removes whatever is there."""

    def _matches(self, row: Row | None, swap: Swap) -> bool:
        return swap.value is None or super()._matches(row, swap)


class StaleReads(LosesReplies):
    """Reads are answered by a follower that is one write behind."""

    def __init__(self, table: SharedRows | None = None) -> None:
        super().__init__(table)
        self.follower: dict[str, Row] = {}

    def _swap(self, swap: Swap) -> Outcome:
        self.follower = dict(self.table.rows)
        return super()._swap(swap)

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        super().read(keys)
        return [self.follower.get(key) for key in keys]


class ScansBySubstring(LosesReplies):
    """A scan finds the prefix anywhere in the key."""

    def scan(self, prefix: str) -> list[Row]:
        return [row for row in super().scan("") if prefix in row.key]


class ScansWithWildcards(LosesReplies):
    """``LIKE 'prefix%'``, where an underscore in the prefix stands for any character."""

    def scan(self, prefix: str) -> list[Row]:
        fits = [all(a in (b, "_") for a, b in zip(prefix, row.key, strict=False)) for row in super().scan("")]
        return [row for row, fit in zip(super().scan(""), fits, strict=True) if fit and len(row.key) >= len(prefix)]


class ScansUnsorted(LosesReplies):
    """A scan gives rows in the order of their last write."""

    def scan(self, prefix: str) -> list[Row]:
        return sorted(super().scan(prefix), key=lambda row: row.version)


class ReadsWithoutGaps(LosesReplies):
    """A read leaves absent keys out, and gives the rest in the order of the table."""

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        return [*sorted(row for row in super().read(keys) if row)] or [None]


class LostMeansConflict(LosesReplies):
    """A lost reply is called a conflict, although the write happened."""

    def told(self, swap: Swap) -> Outcome:
        return CONFLICT


class LostMeansDone(LosesReplies):
    """A lost reply is called done, although the write did not happen."""

    def told(self, swap: Swap) -> Outcome:
        return done(swap.expect + 1)


class CutsAtNul(LosesReplies):
    """Values end at the first NUL byte, as C strings do."""

    def _swap(self, swap: Swap) -> Outcome:
        value = swap.value.partition(b"\0")[0] if swap.value else swap.value
        return super()._swap(swap._replace(value=value))


class EmptyMeansAbsent(LosesReplies):
    """An empty value is stored as no value (Oracle's '' is NULL)."""

    def _swap(self, swap: Swap) -> Outcome:
        return super()._swap(swap._replace(value=swap.value or None))


class FoldsCase(LosesReplies):
    """Keys are compared without regard to case, as some databases' default collations do."""

    def _swap(self, swap: Swap) -> Outcome:
        return super()._swap(swap._replace(key=swap.key.lower()))

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        return super().read([key.lower() for key in keys])


class ComparesThenWrites(LosesReplies):
    """Compare and set are two steps (SELECT, then UPDATE): another thread fits in between."""

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        check_keys(swaps)
        table = self._shared()
        with table.changed:
            fits = [self._matches(table.rows.get(swap.key), swap) for swap in swaps]
        if self.losing is not None or not all(fits) or any(swap.value is None for swap in swaps):
            return super().swap_each(swaps)
        time.sleep(0)  # the window in which another thread passes the same comparison
        with table.changed:
            outcomes = [done(table.write(swap)) for swap in swaps]
            table.changed.notify_all()
            return outcomes


class NeverExpires(LosesReplies):
    """Promises that rows with a time to live vanish, and keeps them."""

    guarantees = LosesReplies.guarantees | {Guarantee.NATIVE_EXPIRY}


class ExpiresWhatIsKept(NeverExpires):
    """A row that ever had a time to live vanishes, though a later write gave it none."""

    def scan(self, prefix: str) -> list[Row]:
        return [] if prefix == "ttl/" else super().scan(prefix)

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        return [None if key.startswith("ttl/") else row for key, row in zip(keys, super().read(keys), strict=True)]


def _epoch(value: bytes) -> object:
    try:
        return json.loads(value)["epoch"]
    except (ValueError, KeyError, TypeError):
        return None


BROKEN: dict[str, tuple[type[LosesReplies], str]] = {
    "no compare": (NoCompare, "test_replace_needs_the_present_version"),
    "compares the value": (ComparesValue, "test_compare_is_by_version_and_not_by_value"),
    "compares the epoch": (ComparesEpoch, "test_compare_is_by_version_and_not_by_epoch"),
    "version used again after a delete": (VersionPerRow, "test_a_version_is_never_used_again_after_a_delete"),
    "equal bytes keep the version": (
        VersionOnlyOfChanges,
        "test_every_write_changes_the_version_even_of_equal_bytes",
    ),
    "create overwrites": (CreateOverwrites, "test_create_only_if_absent"),
    "delete ignores the version": (DeleteIgnoresVersion, "test_delete_needs_the_present_version"),
    "swap_all half applied": (HalfOfAll, "test_swap_all_does_none_after_a_conflict_in_the_last_row"),
    "swap_each all or nothing": (AllInsteadOfEach, "test_swap_each_judges_every_row_alone"),
    "compare and set in two steps": (
        ComparesThenWrites,
        "test_threads_that_race_on_one_row_lose_no_update",
    ),
    "stale reads": (StaleReads, "test_a_read_sees_every_write_that_was_answered"),
    "unknown reported as failed": (LostMeansConflict, "test_a_lost_reply_is_unknown_and_never_a_conflict"),
    "unknown reported as done": (LostMeansDone, "test_done_is_never_said_of_a_write_that_did_not_happen"),
    "lost wake-up of a sleeper": (ForgetsToWake, "test_a_wait_is_woken_by_a_change_made_during_it"),
    "lost wake-up before the wait": (
        WaitsForTheNext,
        "test_a_change_between_the_look_and_the_wait_is_not_lost",
    ),
    "delete wakes nobody": (ForgetsDeletes, "test_a_wait_is_woken_by_a_delete"),
    "wait spins": (AlwaysWakes, "test_a_quiet_wait_does_not_spin"),
    "wait outlives close": (WaitOutlivesClose, "test_a_wait_ends_when_its_store_is_closed"),
    "scan by substring": (ScansBySubstring, "test_scan_is_exact_by_prefix"),
    "scan with wildcards": (ScansWithWildcards, "test_scan_is_exact_by_prefix"),
    "scan unsorted": (ScansUnsorted, "test_scan_is_sorted_by_key"),
    "read without gaps": (ReadsWithoutGaps, "test_reads_come_in_the_order_asked_with_none_in_the_gaps"),
    "value cut at NUL": (CutsAtNul, "test_every_byte_survives"),
    "empty value is absent": (EmptyMeansAbsent, "test_an_empty_value_is_a_row"),
    "rows outlive their time": (NeverExpires, "test_a_row_with_a_time_to_live_vanishes_where_that_is_promised"),
    "rows that are kept vanish": (
        ExpiresWhatIsKept,
        "test_a_row_with_a_time_to_live_vanishes_where_that_is_promised",
    ),
    "keys without case": (FoldsCase, "test_odd_keys_are_kept_apart"),
}


class BrokenSuite(MemorySuite):
    """The suite over a broken store. What must happen happens in milliseconds here, so it waits less."""

    patience: ClassVar[float] = 0.5

    def __init__(self, kind: type[LosesReplies]) -> None:
        self.kind = kind
