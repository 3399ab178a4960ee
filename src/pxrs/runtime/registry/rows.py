"""Rules applied to stored rows: read, decide, swap, and decide again when somebody was faster.

This is the only place that repeats a swap. It returns for each row the row as it now is, or the
error that says what to do: Fenced (stop), Conflict (give up for now), Unknown (read before acting).

Every commit of every partition comes through here: what is done once per row is kept short.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from pxrs.errors import Conflict, Damaged, PxrsError, Unknown
from pxrs.runtime.ports.sink import Transaction
from pxrs.runtime.registry.schema import RowKind
from pxrs.runtime.registry.wake_row import WakeRow
from pxrs.stores.base import ABSENT, Outcome, Row, Store, Swap, Verdict

N = TypeVar("N")
T = TypeVar("T")
M = TypeVar("M")
S = TypeVar("S")

WAY_OUT = (
    "nothing was written. `pxrs registry dump` shows the row; put a good one back with `pxrs registry load --force`"
)
"""The advice to an operator about a row that cannot be read."""

TRIES = 5
"""The number of new decisions for a swap that lost a race, before the caller gets the error."""


class Held(NamedTuple, Generic[T]):
    """A row as this process last saw it, with the version that a swap must name."""

    row: T
    version: int


Results = dict[N, Held[T] | PxrsError]

Rule = Callable[[T], T]
"""A function from the stored row to the new one; raises a PxrsError to refuse."""


class Rows(Generic[N, T]):
    """The rows of one kind in one store, and how they are changed."""

    def __init__(self, store: Store, kind: RowKind[N, T]) -> None:
        self._store = store
        self._kind = kind

    def read_one(self, name: N) -> Held[T]:
        return self._held(name, self._store.read([self._kind.key(name)])[0])

    def read_with(self, name: N, others: Rows[M, S], other: M) -> tuple[T, S]:
        """One row of this kind and one of another, in one read."""
        mine, theirs = self._store.read([self._kind.key(name), others._kind.key(other)])
        return self._held(name, mine).row, others._held(other, theirs).row

    def read(self, names: Collection[N]) -> dict[N, Held[T]]:
        rows = self._store.read(list(map(self._kind.key, names)))
        return {name: self._held(name, row) for name, row in zip(names, rows, strict=True)}

    def read_each(self, names: Collection[N]) -> dict[N, Held[T] | Damaged]:
        """Read rows with an answer for each: a damaged one spoils no other."""
        rows = self._store.read(list(map(self._kind.key, names)))
        return self._each(zip(names, rows, strict=True))

    def scan(self, prefix: str) -> dict[N, Held[T]]:
        rows = {self._kind.name(row.key): row for row in self._store.scan(prefix)}
        return {name: self._held(name, row) for name, row in rows.items()}

    def scan_each(self, prefix: str) -> dict[N, Held[T] | Damaged]:
        """Scan rows with an answer for each: a damaged one spoils no other."""
        return self._each([(self._kind.name(row.key), row) for row in self._store.scan(prefix)])

    def _each(self, rows: Iterable[tuple[N, Row | None]]) -> dict[N, Held[T] | Damaged]:
        found: dict[N, Held[T] | Damaged] = {}
        for name, row in rows:
            try:
                found[name] = self._held(name, row)
            except Damaged as error:
                if not is_bad_row(error):
                    raise
                found[name] = error
        return found

    def _held(self, name: N, row: Row | None) -> Held[T]:
        kind = self._kind
        if row is None:
            return Held(kind.absent(name), ABSENT)
        try:
            return Held(kind.decode(name, row.value), row.version)
        except Damaged as error:
            if not is_bad_row(error):
                raise
            raise Damaged(f"{row.key}: {error}; {WAY_OUT}") from error

    def create(self, rows: Mapping[N, T]) -> None:
        """Make these rows where they are absent; what is there stays as it is."""
        todo: Collection[N] = rows
        for _ in range(TRIES):
            swaps = [self._as_swap(name, ABSENT, rows[name]) for name in todo]
            outcomes = self._store.swap_each(swaps)
            for swap, outcome in zip(swaps, outcomes, strict=True):
                if outcome.verdict is Verdict.UNKNOWN:
                    raise _no_answer(swap.key, outcome)
            refused = [n for n, outcome in zip(todo, outcomes, strict=True) if outcome.verdict is Verdict.CONFLICT]
            # A store may refuse for another reason than that the row is there. All of them must be there in the end.
            rows_there = self._store.read([self._kind.key(name) for name in refused]) if refused else []
            todo = [name for name, row in zip(refused, rows_there, strict=True) if row is None]
            if not todo:
                return
        raise Conflict(f"{len(todo)} rows could not be made; the first is {self._kind.key(next(iter(todo)))}")

    def change(
        self,
        rules: Mapping[N, Rule[T]],
        known: Mapping[N, Held[T]] | None = None,
        wake: WakeRow | None = None,
    ) -> dict[N, Held[T] | PxrsError]:
        """Apply each rule to its row. ``known`` saves the first read; ``wake`` is written with the last swap."""
        results: Results[N, T] = {}
        todo: Collection[N] = rules
        held = known or {}
        for _ in range(TRIES):
            if not held.keys() >= rules.keys():
                held, todo = self._look(todo, held, results)
            self._try(todo, rules, held, results, wake)
            if len(results) == len(rules):
                return results
            todo, held = [name for name in rules if name not in results], {}
        lost = (f"{self._kind.key(name)} was changed by others {TRIES} times in a row" for name in todo)
        return results | dict(zip(todo, map(Conflict, lost), strict=True))

    def change_one(self, name: N, rule: Rule[T], known: Held[T] | None = None, wake: WakeRow | None = None) -> Held[T]:
        """Change a single row; the error is raised."""
        result = self.change({name: rule}, {name: known} if known else None, wake)[name]
        if isinstance(result, PxrsError):
            raise result
        return result

    def change_all(self, rules: Mapping[N, Rule[T]]) -> None:
        """Apply all rules in one atomic swap, or none of them: the first refusal is raised.

        Nothing is read after the swap: a read that failed then would hide from the caller that it is done.
        """
        for _ in range(TRIES):
            held = self.read(rules)
            wanted = {name: rule(held[name].row) for name, rule in rules.items()}
            outcome = self._store.swap_all([self._as_swap(n, held[n].version, row) for n, row in wanted.items()])
            if outcome.verdict is Verdict.DONE:
                return
            if outcome.verdict is Verdict.UNKNOWN:
                raise Unknown(f"no answer to a swap of {len(rules)} rows: {outcome.reason}")
        raise Conflict(f"one of {len(rules)} rows was changed by others {TRIES} times in a row")

    def change_within(
        self, transaction: Transaction, rules: Mapping[N, Rule[T]], has_landed: Callable[[T], bool]
    ) -> None:
        """Apply all rules inside of a transaction that holds the output of a batch, and commit it.

        An earlier try, whose answer was lost, may land at any moment, and its output must not be stored twice:
        ``has_landed`` finds it in the very row that is decided on.
        """

        def unless_landed(rule: Rule[T], row: T) -> T:
            if has_landed(row):
                raise _HasLanded
            return rule(row)

        try:
            inside = Rows(transaction.store, self._kind)
            inside.change_all({name: partial(unless_landed, rule) for name, rule in rules.items()})
            transaction.commit()
        except _HasLanded:
            return
        finally:
            transaction.rollback()

    def _look(
        self, names: Collection[N], known: Mapping[N, Held[T]], results: Results[N, T]
    ) -> tuple[dict[N, Held[T]], list[N]]:
        """All rows that are there, or may be absent, and their names. A damaged or missing one spoils no other."""
        held: dict[N, Held[T]] = {}
        unknown = [name for name in names if name not in known]
        for name, row in zip(unknown, self._store.read(list(map(self._kind.key, unknown))), strict=True):
            try:
                held[name] = self._held(name, row)
            except PxrsError as error:
                if row is not None and not is_bad_row(error):
                    raise
                results[name] = error
        return {**known, **held}, [name for name in names if name in held or name in known]

    def _try(
        self,
        todo: Collection[N],
        rules: Mapping[N, Rule[T]],
        held: Mapping[N, Held[T]],
        results: Results[N, T],
        wake: WakeRow | None,
    ) -> None:
        """Decide on each row and swap all that shall change in one call. What a race was lost for has no result."""
        pending: list[tuple[N, T]] = []
        swaps: list[Swap] = []
        for name in todo:
            stands = held[name]
            try:
                wanted = rules[name](stands.row)
            except PxrsError as refusal:
                results[name] = refusal
                continue
            if wanted == stands.row:
                results[name] = stands
            else:
                pending.append((name, wanted))
                swaps.append(self._as_swap(name, stands.version, wanted))
        if swaps:
            self._swap(pending, swaps, results, wake)

    def _swap(
        self, pending: list[tuple[N, T]], swaps: list[Swap], results: Results[N, T], wake: WakeRow | None
    ) -> None:
        if wake:
            swaps.append(wake.swap())
        outcomes = self._store.swap_each(swaps)
        for (name, row), swap, outcome in zip(pending, swaps, outcomes, strict=False):
            result = judge(swap.key, row, outcome)
            if result is not None:
                results[name] = result
        if wake:
            wake.sent(outcomes[-1])

    def _as_swap(self, name: N, expect: int, row: T) -> Swap:
        kind = self._kind
        return Swap(kind.key(name), expect, kind.encode(row), kind.ttl_ms(row))


class _HasLanded(Exception):
    """An earlier try of this commit was done."""


def is_bad_row(error: PxrsError) -> bool:
    """Whether it says that one row cannot be read; not that the whole store is old, or too new for this version."""
    return type(error) is Damaged


def judge(key: str, row: T, outcome: Outcome) -> Held[T] | Unknown | None:
    """The outcome of one swap: the row now held, Unknown, or None for "read and decide again"."""
    if outcome.verdict is Verdict.DONE:
        return Held(row, outcome.version)
    return _no_answer(key, outcome) if outcome.verdict is Verdict.UNKNOWN else None


def _no_answer(key: str, outcome: Outcome) -> Unknown:
    return Unknown(f"no answer to the swap of {key}: {outcome.reason}")


def raise_first(results: Mapping[N, Held[T] | PxrsError]) -> None:
    """Raise the first error among the results of single rows."""
    for result in results.values():
        if isinstance(result, PxrsError):
            raise result
