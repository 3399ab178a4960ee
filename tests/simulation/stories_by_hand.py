"""Helpers of stories by hand: a member, a clock that stands until it is moved, a store that loses answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from pxrs.model import Grant, MemberRow
from pxrs.runtime.group.member import Member
from pxrs.runtime.registry.registry import Registry
from pxrs.settings import Settings
from pxrs.stores.base import Outcome, Row, Swap, Verdict, unknown
from pxrs.stores.memory import MemoryStore, SharedRows
from tests.tools.calm_work import CalmWork

SETTINGS = Settings(lease_ms=9_000, poll_ms=60_000, drain_ms=2_000, commit_interval_ms=1_000)


class HandClock:
    """Time that passes when the story says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1.7e9 + self.now


class HandWork(CalmWork):
    """Work that only writes down what it is told; the story sets the positions, and who is drained."""

    def __init__(self) -> None:
        self.started: list[tuple[Grant, int | None]] = []
        self.stopped: list[tuple[int, bool]] = []
        self.positions: dict[int, int | None] = {}
        self.busy: set[int] = set()
        self.draining: set[int] = set()
        self.until = 0.0

    def start(self, grant: Grant, checkpoint: int | None, paused: bool, note: str) -> None:
        self.draining.discard(grant.partition)
        self.started.append((grant, checkpoint))
        self.positions[grant.partition] = checkpoint

    def position(self, partition: int) -> int | None:
        return self.positions[partition]

    def drain(self, partition: int) -> None:
        self.draining.add(partition)

    def drained(self, partition: int) -> bool:
        return partition in self.draining - self.busy

    def stop(self, partition: int, lost: bool) -> None:
        self.stopped.append((partition, lost))

    def pause(self, partition: int, paused: bool) -> None:
        pass

    def extend(self, until: float) -> None:
        self.until = until


class HandStore(MemoryStore):
    """A store in memory. ``loses`` says of which swaps the answer gets lost; what they ask for happens."""

    def __init__(self, table: SharedRows) -> None:
        super().__init__(table)
        self.loses: Callable[[Swap], bool] = lambda _: False
        self.before: Callable[[Sequence[Swap]], None] = lambda _: None
        self.before_read: Callable[[Sequence[str]], None] = lambda _: None

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        self.before_read(keys)
        return super().read(keys)

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        self.before(swaps)
        outcomes = super().swap_each(swaps)
        return [self._told(swap, outcome) for swap, outcome in zip(swaps, outcomes, strict=True)]

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        self.before(swaps)
        outcome = super().swap_all(swaps)
        return unknown("lost by the story") if any(map(self.loses, swaps)) else outcome

    def _told(self, swap: Swap, outcome: Outcome) -> Outcome:
        return unknown("lost by the story") if outcome.verdict is Verdict.DONE and self.loses(swap) else outcome


class Hand:
    """A group in memory whose members do a round when the story says so."""

    def __init__(self, partitions: int = 1) -> None:
        self.clock = HandClock()
        self.table = SharedRows()
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self._nonces = count()
        self.registry = Registry(MemoryStore(self.table), "q", "g", self.clock)
        self.registry.initialize(partitions, "xxh64-spark", "pmod")

    def member(self, name: str, settings: Settings = SETTINGS) -> tuple[Member, HandWork, HandStore]:
        store, work = HandStore(self.table), HandWork()
        registry = Registry(store, "q", "g", self.clock, waker=name)
        row = MemberRow(name, f"life-of-{name}", lease_ms=settings.lease_ms)
        return Member(registry, work, row, settings, self.clock, self._nonce, self._hear), work, store

    def _nonce(self) -> str:
        return f"{next(self._nonces):016x}"

    def _hear(self, kind: str, facts: Mapping[str, Any]) -> None:
        self.events.append((kind, facts))

    def heard(self, kind: str) -> list[Mapping[str, Any]]:
        return [facts for found, facts in self.events if found == kind]

    def rounds(self, *members: Member, times: int = 6) -> None:
        """So many rounds in turn, without any time passing."""
        for _ in range(times):
            for member in members:
                if not member.finished:
                    member.poll()
                    member.round()


def is_claim(swap: Swap) -> bool:
    """A partition row that somebody takes."""
    return "/partition/" in swap.key and b'"cause":"claim"' in (swap.value or b"")
