"""The time until a crash is noticed, and the cost of the looking: whole groups on a virtual clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from pxrs.model import Owner
from pxrs.stores.base import Outcome, Swap
from tests.simulation.cluster import LEASES_MS, SETTINGS, Cluster, Process
from tests.simulation.timeline import Timeline

LEASE = LEASES_MS[0] / 1000
PHASES = 9


class Plain(random.Random):
    """Chance that gives every member the same lease, and no grace time."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


class Counted(Cluster):
    """A group on a quick store that counts its calls and knows when each member's last beat has landed."""

    calls = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.beats: dict[str, float] = {}

    def journey(self) -> float:
        self.calls += 1  # there and back: two for each call
        return self.timeline.random.uniform(0.0, 0.0002)

    def apply(self, by: Owner, swaps: Sequence[Swap]) -> list[Outcome]:
        if any("/member/" in swap.key for swap in swaps):
            self.beats[by.id] = self.timeline.now
        return super().apply(by, swaps)

    def leader(self) -> Process:
        [found] = [process for process in self.living() if process.member.leader.leads]
        return found


def at_rest(size: int, seed: int) -> Counted:
    """Members that joined one after another, so that each beats at a moment of its own."""
    timeline = Timeline(seed)
    timeline.random = Plain(seed)
    cluster = Counted(timeline, partitions=2 * size, settings=SETTINGS.with_(poll_ms=3_600_000))
    for number in range(size):
        cluster.start(f"m{number:02}")
        timeline.run_until(timeline.now + timeline.random.uniform(0, LEASE / 2))
    timeline.run_until(timeline.now + 5 * LEASE)
    return cluster


def noticed_after(cluster: Counted, victim: Process) -> float:
    """Leases from the last beat of the one that crashes until there is a plan without it."""
    known = len(cluster.events)
    victim.crash()
    cluster.timeline.run_until(cluster.timeline.now + 3 * LEASE)
    for moment, kind, facts in cluster.events[known:]:
        if kind == "planned" and victim.owner.id not in facts["members"]:
            return (moment - cluster.beats[victim.owner.id]) / LEASE
    raise AssertionError("nobody has noticed")


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("who", ["a member", "the leader"])
def test_a_crash_is_noticed_within_a_lease_and_a_tenth_of_the_last_beat(who: str, size: int) -> None:
    took = []
    for phase in range(PHASES):
        cluster = at_rest(size, seed=phase)
        cluster.timeline.run_until(cluster.timeline.now + phase * LEASE / PHASES)
        leader = cluster.leader()
        others = [process for process in cluster.living() if process is not leader]
        took.append(noticed_after(cluster, leader if who == "the leader" else others[-1]))
    assert min(took) >= 1.0, "nobody is judged before a whole lease has passed"
    assert max(took) <= 1.1


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 8, 20])
def test_looking_closely_costs_at_most_seven_calls_a_lease_however_large_the_group(size: int) -> None:
    cluster = at_rest(size, seed=size)
    leases = 20
    before = cluster.calls
    cluster.timeline.run_until(cluster.timeline.now + leases * LEASE)
    beats, looks = 3 * size, 3 * size if size > 1 else 0
    assert (cluster.calls - before) / 2 / leases <= beats + looks + 7 * (size > 1) + 0.1


def test_a_watcher_that_dies_with_its_leader_is_replaced_by_the_other_members() -> None:
    cluster = at_rest(4, seed=1)
    leader = cluster.leader()
    watcher = min((process for process in cluster.living() if process is not leader), key=lambda p: p.owner.id)
    watcher.crash()
    assert 1.0 <= noticed_after(cluster, leader) <= 1.5
