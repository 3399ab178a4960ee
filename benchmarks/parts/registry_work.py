"""What a registry does all day: commits, beats, rebalances. And a store that counts what they ask of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pxrs.drivers import find_driver
from pxrs.io.clock import SystemClock
from pxrs.model import Grant, MemberRow, Owner, Partition
from pxrs.runtime.registry.registry import Registry
from pxrs.runtime.registry.rows import Held
from pxrs.settings import Settings
from pxrs.stores.base import Guarantee, Outcome, Row, Store, Swap

ME = Owner("A", "life-1")
CLOCK = SystemClock()


def open_store(url: str) -> Store:
    store: Store = find_driver("pxrs.stores", url).open(url, Settings())
    return store


@dataclass
class Cost:
    """Calls of a store, the rows in them, and the bytes of their keys and values."""

    calls: int = 0
    rows: int = 0
    bytes: int = 0

    def add(self, rows: Sequence[Row | Swap | None]) -> None:
        self.calls += 1
        self.rows += len(rows)
        self.bytes += sum(len(row.key) + len(row.value or b"") for row in rows if row is not None)


class CountingStore(Store):
    """Passes everything on, and counts it."""

    guarantees = frozenset(Guarantee)

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self.cost = Cost()
        self.max_atomic = inner.max_atomic  # type: ignore[misc]  # of the store that is counted

    def measured(self, work: Callable[[], object]) -> Cost:
        self.cost = Cost()
        work()
        return self.cost

    def _count(self, rows: Sequence[Row | Swap | None]) -> None:
        with self._lock:
            self.cost.add(rows)

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        found = self._inner.read(keys)
        self._count(found)
        return found

    def scan(self, prefix: str) -> list[Row]:
        found = self._inner.scan(prefix)
        self._count(found)
        return found

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        self._count(swaps)
        return self._inner.swap_each(swaps)

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        self._count(swaps)
        return self._inner.swap_all(swaps)

    def wait(self, prefix: str, after: int, timeout: float) -> int:
        return self._inner.wait(prefix, after, timeout)

    def close(self) -> None:
        self._inner.close()


class Owning:
    """A member that owns partitions of a group and commits them."""

    def __init__(self, store: Store, partitions: int, name: str = "bench") -> None:
        self.registry = Registry(store, name, "g", CLOCK)
        self.registry.initialize(partitions, "xxh64-spark", "pmod")
        self.row = MemberRow("A", "life-1")
        self._member = self.registry.register(self.row)
        claimed = self.registry.claim(range(partitions), ME)
        self._held: dict[int, Held[Partition]] = {n: held for n, held in claimed.items() if isinstance(held, Held)}
        if len(self._held) != partitions:
            raise RuntimeError(f"claimed {len(self._held)} of {partitions} partitions")
        self._grants = {n: Grant(n, ME, 1) for n in range(partitions)}  # a member has them from its claims
        self._position = 0

    def commit(self, numbers: Sequence[int]) -> None:
        self._position += 1
        results = self.registry.commit({self._grants[n]: self._position for n in numbers}, self._held)
        for number, result in results.items():
            if not isinstance(result, Held):
                raise result
            self._held[number] = result

    def beat(self) -> None:
        self._member = self.registry.beat(self.row, self._member)


def per_second(work: Callable[[], object], seconds: float) -> float:
    """How often a second ``work`` can be done, one after the other."""
    began = time.perf_counter()
    ends, count = began + seconds, 0
    while (now := time.perf_counter()) < ends:
        work()
        count += 1
    return count / (now - began)
