"""Which dead letters were sent again: rows of the registry, one for each block of letters, so that none grows large."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pxrs.errors import Conflict, Damaged
from pxrs.stores.base import ABSENT, Row, Store, Swap, Verdict

BLOCK = 4_096
"""So many letters share a row. Of 32 KB at most, it fits into every store."""


class Retried:
    """The numbers of the letters of one box that were sent again.

    The row of the first block is the one that PXRS before 0.6 knows, and may hold any numbers that were written by it.
    A row names the box that it is about: numbers of a box that was deleted say nothing of the one made after it.
    """

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key

    def numbers(self, box: str, letters: int) -> set[int]:
        """Which of the first so many letters of this box were sent again."""
        keys = [self._key_of(block) for block in range(-(-letters // BLOCK))]
        return {number for row in self._store.read(keys) for number in _in(row, box)} if keys else set()

    def add(self, box: str, numbers: Iterable[int]) -> None:
        """Remember these as well."""
        blocks: dict[int, set[int]] = {}
        for number in numbers:
            blocks.setdefault(number // BLOCK, set()).add(number)
        for block, own in sorted(blocks.items()):
            self._add(self._key_of(block), box, own)

    def _add(self, key: str, box: str, numbers: set[int]) -> None:
        for _ in range(20):
            row = self._store.read([key])[0]
            value = {"v": 1, "box": box, "retried": sorted(_in(row, box) | numbers)}
            swap = Swap(key, row.version if row else ABSENT, json.dumps(value, separators=(",", ":")).encode())
            if self._store.swap_each([swap])[0].verdict is Verdict.DONE:
                return
        raise Conflict(f"{key} is being changed by others all the time")

    def _key_of(self, block: int) -> str:
        return f"{self._key}-{block:05d}" if block else self._key


def _in(row: Row | None, box: str) -> set[int]:
    if row is None:
        return set()
    try:
        fields = json.loads(row.value)
        return set(map(int, fields["retried"])) if fields.get("box", box) == box else set()
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Damaged(f"registry row {row.key!r} is no list of dead letters that were sent again: {error!r}") from error
