"""Wake-up rows: each member writes a row of its own under one prefix, and all of them watch that prefix.

Heartbeats and commits wake nobody; joins, leaves, plans, releases and seeks do. A member writes only its own wake
row, so there are no conflicts. The wake-up is a hint: a member that wakes reads the rows, and a lost wake-up costs
one poll interval.
"""

from __future__ import annotations

from contextlib import suppress

from pxrs.errors import Unavailable
from pxrs.stores.base import ABSENT, Outcome, Store, Swap, Verdict


class WakeRow:
    """The wake row of one member."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self._version = ABSENT

    def swap(self) -> Swap:
        """The wake-up as the last swap of a batch: nobody may wake before the rows have changed."""
        return Swap(self._key, self._version, b"{}")

    def sent(self, outcome: Outcome) -> None:
        """Take in the outcome of that swap; a lost one is sent again."""
        if outcome.verdict is Verdict.DONE:
            self._version = outcome.version
            return
        with suppress(Unavailable):  # a hint: its failure must not hide the outcome of the batch
            self.wake_all()

    def wake_all(self) -> None:
        row = self._store.read([self._key])[0]
        self._version = row.version if row else ABSENT
        outcome = self._store.swap_each([self.swap()])[0]
        if outcome.verdict is Verdict.DONE:
            self._version = outcome.version

    def remove(self) -> None:
        """The last wake-up of a member that leaves: its row goes away, and that wakes the others too."""
        row = self._store.read([self._key])[0]
        if row is not None:
            self._store.swap_each([Swap(self._key, row.version, None)])
