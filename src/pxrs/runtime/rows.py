"""Rules applied to stored rows: read, decide, swap, and decide again when somebody was faster.

This is the only place that repeats a swap. What comes back for each row is the row as it now stands, or the
error that says what to do: Fenced (stop), Conflict (give up for now), Unknown (read before acting).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pxrs.errors import Conflict, PxrsError, Unknown
from pxrs.runtime.bell import Bell
from pxrs.stores.base import ABSENT, Outcome, Store, Swap, Verdict

T = TypeVar("T")

TRIES = 5
"""How often a swap that lost a race is decided anew before the caller hears of it."""


@dataclass(frozen=True, slots=True)
class Held(Generic[T]):
    """A row as this process last saw it, with the version that a swap must name. ``row`` is None if absent."""

    row: T | None
    version: int


Rule = Callable[[T | None], T | None]
"""From the row that stands to the row that shall stand (None deletes); raises a PxrsError to refuse."""


class Rows(Generic[T]):
    """The rows of one kind: how they are decoded, and how they are changed."""

    def __init__(
        self,
        store: Store,
        decode: Callable[[str, bytes], T],
        encode: Callable[[T], bytes],
        ttl_ms: Callable[[T], int | None] = lambda _: None,
    ) -> None:
        self._store = store
        self._decode = decode
        self._encode = encode
        self._ttl_ms = ttl_ms

    def over(self, store: Store) -> Rows[T]:
        """The same rows through another handle: a transaction that somebody else has opened."""
        return self if store is self._store else Rows(store, self._decode, self._encode, self._ttl_ms)

    def read(self, keys: Sequence[str]) -> dict[str, Held[T]]:
        found = self._store.read(keys)
        return {
            key: Held(None, ABSENT) if row is None else Held(self._decode(key, row.value), row.version)
            for key, row in zip(keys, found, strict=True)
        }

    def scan(self, prefix: str) -> dict[str, Held[T]]:
        return {r.key: Held(self._decode(r.key, r.value), r.version) for r in self._store.scan(prefix)}

    def change(
        self,
        rules: Mapping[str, Rule[T]],
        known: Mapping[str, Held[T]] | None = None,
        bell: Bell | None = None,
    ) -> dict[str, Held[T] | PxrsError]:
        """Apply each rule to its row. ``known`` saves the first read; ``bell`` is rung with the last swap."""
        held = dict(known or {})
        results: dict[str, Held[T] | PxrsError] = {}
        for _ in range(TRIES):
            todo = [key for key in rules if key not in results]
            if not todo:
                break
            if missing := [key for key in todo if key not in held]:
                held |= self.read(missing)
            wishes = self._decide(todo, rules, held, results)
            self._swap(wishes, held, results, bell)
        for key in rules:
            results.setdefault(key, Conflict(f"{key} was changed by others {TRIES} times in a row"))
        return results

    def change_one(self, key: str, rule: Rule[T], known: Held[T] | None = None, bell: Bell | None = None) -> Held[T]:
        """The same for a single row; the error is raised."""
        result = self.change({key: rule}, {key: known} if known else None, bell)[key]
        if isinstance(result, PxrsError):
            raise result
        return result

    def change_all(self, rules: Mapping[str, Rule[T]]) -> None:
        """Apply all rules in one atomic swap, or none of them: the first refusal is raised.

        Nothing is read after the swap: a read that failed then would hide from the caller that it is done.
        """
        for _ in range(TRIES):
            held = self.read(list(rules))
            wanted = {key: rule(held[key].row) for key, rule in rules.items()}
            outcome = self._store.swap_all([self._as_swap(k, held[k].version, row) for k, row in wanted.items()])
            if outcome.verdict is Verdict.DONE:
                return
            if outcome.verdict is Verdict.UNKNOWN:
                raise Unknown(f"no answer to a swap of {len(rules)} rows: {outcome.reason}")
        raise Conflict(f"one of {len(rules)} rows was changed by others {TRIES} times in a row")

    def _decide(
        self,
        todo: list[str],
        rules: Mapping[str, Rule[T]],
        held: dict[str, Held[T]],
        results: dict[str, Held[T] | PxrsError],
    ) -> dict[str, T | None]:
        wishes: dict[str, T | None] = {}
        for key in todo:
            try:
                wanted = rules[key](held[key].row)
            except PxrsError as refusal:
                results[key] = refusal
                continue
            if wanted == held[key].row:
                results[key] = held[key]
            else:
                wishes[key] = wanted
        return wishes

    def _swap(
        self,
        wishes: dict[str, T | None],
        held: dict[str, Held[T]],
        results: dict[str, Held[T] | PxrsError],
        bell: Bell | None,
    ) -> None:
        if not wishes:
            return
        swaps = [self._as_swap(key, held[key].version, row) for key, row in wishes.items()]
        outcomes = self._store.swap_each([*swaps, bell.swap()] if bell else swaps)
        for (key, row), outcome in zip(wishes.items(), outcomes, strict=False):
            result = judge(key, row, outcome)
            if result is None:
                del held[key]
            else:
                results[key] = result
        if bell:
            bell.heard(outcomes[-1])

    def _as_swap(self, key: str, expect: int, row: T | None) -> Swap:
        if row is None:
            return Swap(key, expect, None)
        return Swap(key, expect, self._encode(row), self._ttl_ms(row))


def judge(key: str, row: T | None, outcome: Outcome) -> Held[T] | Unknown | None:
    """What one swap came to: the row now held, Unknown, or None for "read and decide again"."""
    if outcome.verdict is Verdict.DONE:
        return Held(row, outcome.version)
    if outcome.verdict is Verdict.UNKNOWN:
        return Unknown(f"no answer to the swap of {key}: {outcome.reason}")
    return None
