"""The registry in this process's memory: the reference of what a store is, and the one for tests and trials.

``memory:`` is new at every open. ``memory:NAME`` is shared by all who open that name in this process, and lives
as long as the process. A forked child would have a copy of its own and two owners for every row, so it is refused.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from pxrs.drivers import split_url
from pxrs.errors import Closed, Refused
from pxrs.io.clock import SystemClock
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, CONFLICT, Guarantee, Outcome, Row, Store, Swap, Verdict, done, encoded_key

REMEMBERED_CHANGES = 10_000
"""A wait whose mark is older than this many changes ends at once, instead of being answered exactly."""


class SharedRows:
    """The rows behind one name: what several handles share."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.changed = threading.Condition()
        # 1, not 0: the mark of an empty store must differ from 0, or a wait on it would never block.
        self.revision = 1
        self.changes: deque[tuple[int, str]] = deque(maxlen=REMEMBERED_CHANGES)
        self.pid = os.getpid()

    def write(self, swap: Swap) -> int:
        """Carry the swap out, unconditionally; the row's new version."""
        self.revision += 1
        self.changes.append((self.revision, swap.key))
        if swap.value is None:
            self.rows.pop(swap.key, None)
            return ABSENT
        self.rows[swap.key] = Row(swap.key, bytes(swap.value), self.revision)
        return self.revision

    def changed_since(self, mark: int, prefix: str) -> bool:
        if mark == 0 or not self.revision - REMEMBERED_CHANGES < mark <= self.revision:
            return True
        for revision, key in reversed(self.changes):
            if revision <= mark:
                return False
            if key.startswith(prefix):
                return True
        return False


_named: dict[str, SharedRows] = {}
_named_lock = threading.Lock()


class MemoryStore(Store):
    """One handle on a table; closing it leaves the table to the others."""

    guarantees: ClassVar[frozenset[Guarantee]] = frozenset(
        {Guarantee.LINEARIZABLE, Guarantee.WATCH, Guarantee.ATOMIC_ROWS}
    )

    def __init__(self, table: SharedRows | None = None) -> None:
        self.table = table or SharedRows()
        self._closed = False
        self._clock = SystemClock()

    @classmethod
    def open(cls, url: str, settings: Settings) -> MemoryStore:  # noqa: ARG003 - the signature of every driver
        _, name = split_url(url)
        if not name:
            return cls()
        with _named_lock:
            return cls(_named.setdefault(name, SharedRows()))

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        table = self._shared()
        with table.changed:
            self._check_open()
            return list(map(table.rows.get, keys))

    def scan(self, prefix: str) -> list[Row]:
        table = self._shared()
        with table.changed:
            self._check_open()
            return sorted([row for key, row in table.rows.items() if key.startswith(prefix)])

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        check_keys(swaps)
        table = self._shared()
        with table.changed:
            self._check_open()
            outcomes = [self._swap(swap) for swap in swaps]
            table.changed.notify_all()
            return outcomes

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        check_keys(swaps)
        table = self._shared()
        with table.changed:
            self._check_open()
            before = {swap.key: table.rows.get(swap.key) for swap in swaps}
            highest = ABSENT
            for swap in swaps:
                outcome = self._swap(swap)
                if outcome.verdict is not Verdict.DONE:
                    _put_back(table, before)
                    return outcome
                highest = max(highest, outcome.version)
            table.changed.notify_all()
            return done(highest)

    def wait(self, prefix: str, after: int, timeout: float) -> int:
        deadline = self._clock.monotonic() + timeout
        table = self._shared()
        with table.changed:
            self._check_open()
            mark = after
            while not self._closed and not table.changed_since(mark, prefix):
                mark = table.revision
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    break
                table.changed.wait(left)
            return table.revision

    def close(self) -> None:
        if self.table.pid != os.getpid():
            return
        with self.table.changed:
            self._closed = True
            self.table.changed.notify_all()

    def _swap(self, swap: Swap) -> Outcome:
        row = self.table.rows.get(swap.key)
        if not self._matches(row, swap):
            return CONFLICT
        if row is None and swap.value is None:
            return done(ABSENT)
        return done(self.table.write(swap))

    def _matches(self, row: Row | None, swap: Swap) -> bool:
        return (row.version if row else ABSENT) == swap.expect

    def _shared(self) -> SharedRows:
        if self.table.pid != os.getpid():
            raise Refused("memory: belongs to the process that opened it; use sqlite: to share between processes")
        return self.table

    def _check_open(self) -> None:
        """Check that it is open, with the lock held: from here on nobody can close it."""
        if self._closed:
            raise Closed("the memory store was closed before this call")


def check_keys(swaps: Sequence[Swap]) -> None:
    """Refuse keys that a store with a disk or a wire could not take: memory is no more lenient than they are."""
    for swap in swaps:
        encoded_key(swap.key)


def _put_back(table: SharedRows, rows: dict[str, Row | None]) -> None:
    for key, row in rows.items():
        if row is None:
            table.rows.pop(key, None)
        else:
            table.rows[key] = row
