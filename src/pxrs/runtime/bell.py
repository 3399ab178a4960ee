"""How members wake each other: a row for each ringer, under one prefix that all of them watch.

Beats and commits do not ring; joins, leaves, plans, releases and seeks do. Each ringer writes only its own
row, so ringing never conflicts with anybody. It is a hint: who wakes reads the rows, and a lost ring costs one
poll interval.
"""

from __future__ import annotations

from contextlib import suppress

from pxrs.errors import Unavailable
from pxrs.stores.base import ABSENT, Outcome, Store, Swap, Verdict


class Bell:
    """The bell of one ringer."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self._version = ABSENT

    def swap(self) -> Swap:
        """A ring, to be sent as the last swap of a batch: it must not be heard before the rows have changed."""
        return Swap(self._key, self._version, b"{}")

    def heard(self, outcome: Outcome) -> None:
        """Take in what became of that swap; one that went astray is sent again."""
        if outcome.verdict is Verdict.DONE:
            self._version = outcome.version
            return
        with suppress(Unavailable):  # a ring is a hint: its failure must not hide what became of the batch
            self.ring()

    def ring(self) -> None:
        row = self._store.read([self._key])[0]
        self._version = row.version if row else ABSENT
        outcome = self._store.swap_each([self.swap()])[0]
        if outcome.verdict is Verdict.DONE:
            self._version = outcome.version

    def remove(self) -> None:
        """The last ring of a ringer that leaves: its row goes away, and that wakes the others too."""
        row = self._store.read([self._key])[0]
        if row is not None:
            self._store.swap_each([Swap(self._key, row.version, None)])
