"""The store as a simulated process reaches it: over a wire on which everything takes time and may go wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from pxrs.errors import Unavailable
from pxrs.model import Owner
from pxrs.stores.base import Guarantee, Outcome, Row, Store, Swap, unknown
from tests.simulation.timeline import Weather

T = TypeVar("T")


class Far(Weather, Protocol):
    """The other end of the wire."""

    @property
    def store(self) -> Store: ...

    def journey(self) -> float: ...

    def apply(self, by: Owner, swaps: Sequence[Swap]) -> list[Outcome]: ...

    def apply_all(self, by: Owner, swaps: Sequence[Swap]) -> Outcome: ...


class Near(Protocol):
    """The process at this end."""

    @property
    def owner(self) -> Owner: ...

    def sleep(self, seconds: float) -> None: ...


class Wire(Store):
    """The store as one simulated process reaches it: every call takes time, and may go wrong on the way."""

    guarantees = frozenset({Guarantee.LINEARIZABLE, Guarantee.ATOMIC_ROWS})

    def __init__(self, cluster: Far, process: Near) -> None:
        self._cluster = cluster
        self._process = process

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        return self._ask(lambda: self._cluster.store.read(keys))

    def scan(self, prefix: str) -> list[Row]:
        return self._ask(lambda: self._cluster.store.scan(prefix))

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        answer = self._tell(lambda: self._cluster.apply(self._process.owner, swaps))
        return answer or [unknown("simulated loss")] * len(swaps)

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        answer = self._tell(lambda: self._cluster.apply_all(self._process.owner, swaps))
        return answer or unknown("simulated loss")

    def wait(self, prefix: str, after: int, timeout: float) -> int:
        raise NotImplementedError("the simulation wakes its members itself")

    def close(self) -> None:
        pass

    def _ask(self, read: Callable[[], T]) -> T:
        self._travel()
        if self._cluster.strikes("unavailable"):
            self._travel(slow=True)
            raise Unavailable("simulated outage")
        answer = read()
        self._travel()
        return answer

    def _tell(self, write: Callable[[], T]) -> T | None:
        """A write arrives by itself: it lands although its sender may be dead, paused or tired of waiting by then."""
        cluster = self._cluster
        box: list[T] = []
        journey = cluster.journey()
        if cluster.strikes("lost_write"):
            self._travel(slow=True)
            return None
        late = cluster.strikes("late_write")
        landing = cluster.timeline.now + journey + (cluster.timeline.random.uniform(0, 6) if late else 0)
        cluster.timeline.at(landing, lambda: box.append(write()))
        if late or cluster.strikes("lost_reply"):
            self._travel(slow=True)
            return None
        self._process.sleep(journey)
        self._travel()
        while not box:
            self._travel()
        return box[0]

    def _travel(self, slow: bool = False) -> None:
        self._process.sleep(1.0 if slow else self._cluster.journey())
