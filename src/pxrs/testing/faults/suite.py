"""The fault suite: what must hold on every store when things go wrong, as tests on real servers.

    class TestMyStoreInTrouble(FaultSuite):
        def make_ground(self, directory):
            return MyGround(directory)

After each fault the promises are judged: nothing lost, one owner for each epoch, order kept, every partition owned.
What cannot happen to a store (a file has no network) is left out, and the ground says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from pxrs.errors import Mismatch, Unknown
from pxrs.model import Grant, Owner
from pxrs.runtime.registry.registry import Registry
from pxrs.runtime.registry.rows import Held
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, Guarantee, Store, Swap, Verdict
from pxrs.testing.faults.racing import race_processes
from pxrs.testing.faults.scenario import HASTY, JumpingClock, Scenario, eventually
from pxrs.testing.ground import Ground, Happening
from pxrs.testing.stores.hooks import get, put, value_of
from pxrs.testing.stores.ownership import registry_over
from pxrs.testing.stores.sharing import in_forked_child

HOUR_MS = 3_600_000
ON_WATCH_ALONE = HASTY.with_(lease_ms=30_000, poll_ms=HOUR_MS, revoke_timeout_ms=30_000)
"""Longer than any test: a member that waits for a poll or a lease must not help."""
ON_POLLS_ALONE = HASTY.with_(lease_ms=30_000, poll_ms=300, revoke_timeout_ms=30_000)


class FaultSuite:
    """Tests all faults. A subclass says where its store is."""

    in_processes: ClassVar[bool] = True
    """Whether other processes can reach the store."""

    def make_ground(self, directory: Path) -> Ground:
        raise NotImplementedError

    @pytest.fixture
    def ground(self, tmp_path: Path) -> Iterator[Ground]:
        with self.make_ground(tmp_path / "ground") as ground:
            yield ground

    @pytest.fixture
    def scenario(self, ground: Ground, tmp_path: Path) -> Iterator[Scenario]:
        with Scenario(ground.url, tmp_path) as scenario:
            yield scenario

    @pytest.fixture
    def shop(self, scenario: Scenario) -> Scenario:
        """The name until 0.6; suites of other packages may ask for it."""
        return scenario

    def needs(self, ground: Ground, happening: Happening) -> None:
        if happening in ground.lacks:
            pytest.skip(f"cannot happen to {ground.name}: {ground.lacks[happening]}")

    # ---- the server ------------------------------------------------------------------------------------------------

    def test_server_killed_and_restarted(self, ground: Ground, scenario: Scenario) -> None:
        self.needs(ground, "restart")
        scenario.join("A", "B")
        scenario.send()
        scenario.await_settled("A", "B")
        for _ in range(2):
            ground.restart()
            scenario.send()
            scenario.await_settled("A", "B")
        scenario.judge()

    def test_server_paused_past_the_lease(self, ground: Ground, scenario: Scenario) -> None:
        self.needs(ground, "pause")
        scenario.join("A", "B")
        scenario.send()
        scenario.await_settled("A", "B")
        ground.pause()
        lease = HASTY.lease_ms / 1000
        eventually(lambda: all(c.beat_age > lease for c in scenario.consumers.values()), "the leases run out")
        before = scenario.processed
        scenario.send()
        assert scenario.processed == before, "a member went on working without a lease"
        ground.resume()
        scenario.await_settled("A", "B")
        scenario.judge()

    # ---- the network -----------------------------------------------------------------------------------------------

    def test_reply_lost_after_the_write(self, ground: Ground, scenario: Scenario) -> None:
        self.needs(ground, "lose")
        store = scenario.queue.store
        version = put(store, "a", b"before")
        with ground.losing("replies"):
            [told] = store.swap_each([Swap("a", version, b"after")])
        assert told.verdict is Verdict.UNKNOWN
        eventually(lambda: value_of(store, "a") == b"after", "the write without an answer is there")
        row = get(store, "a")
        assert row is not None and row.version != version
        [again] = store.swap_each([Swap("a", version, b"twice")])
        assert again.verdict is Verdict.CONFLICT and get(store, "a") == row, "it was written twice"

    def test_commits_whose_replies_are_lost_count_once(self, ground: Ground, scenario: Scenario) -> None:
        self.needs(ground, "lose")
        registry, me = registry_over(scenario.queue.store), Owner("A", "life-1")
        [held] = registry.claim([3], me).values()
        grant = Grant(3, me, 1)
        for position in range(1, 6):
            assert isinstance(held, Held)
            with ground.losing("replies" if position % 2 else "requests"):
                assert isinstance(registry.commit({grant: position}, {3: held})[3], Unknown)
            eventually(partial(_is_committed, registry, grant, position), "the caller learns the outcome")
            row = registry.partition(3)
            assert (row.checkpoint, row.epoch, row.owner) == (position, grant.epoch, grant.owner)
            held = registry.read_partitions([3])[3]

    def test_members_survive_a_network_that_loses_replies(self, ground: Ground, scenario: Scenario) -> None:
        self.needs(ground, "lose")
        scenario.join("A", "B")
        scenario.send()
        scenario.await_settled("A", "B")
        troubles = len(scenario.reports["A"])
        with ground.losing("replies"):
            scenario.send()
            eventually(lambda: "troubled" in [k for k, _ in scenario.reports["A"][troubles:]], "A has noticed")
        scenario.await_settled("A", "B")
        scenario.judge()

    # ---- the watch -------------------------------------------------------------------------------------------------

    def test_the_watch_alone_wakes(self, scenario: Scenario) -> None:
        self._come_and_go(scenario, ON_WATCH_ALONE)

    def test_with_the_watch_cut_the_poll_heals(self, ground: Ground, scenario: Scenario) -> None:
        self.needs(ground, "cut_watch")
        with ground.without_watch():
            self._come_and_go(scenario, ON_POLLS_ALONE)
        self._come_and_go(scenario, ON_POLLS_ALONE)

    def _come_and_go(self, scenario: Scenario, settings: Settings) -> None:
        scenario.join("A", settings=settings)
        scenario.await_settled("A")
        scenario.join("B", settings=settings)
        scenario.send()
        scenario.await_settled("A", "B")
        scenario.leave("A")
        scenario.send()
        scenario.await_settled("B")
        scenario.leave("B")
        scenario.judge()

    # ---- the store goes back ---------------------------------------------------------------------------------------

    def test_b59_wiped(self, ground: Ground, scenario: Scenario) -> None:
        self.needs(ground, "wipe")
        scenario.join("A", "B")
        scenario.send()
        scenario.await_settled("A", "B")
        ground.wipe()
        scenario.await_refused("A", "B")
        scenario.forget()
        scenario.queue = scenario.opened(HASTY)
        is_recorded = Guarantee.ACROSS_PROCESSES in scenario.queue.store.guarantees
        if is_recorded:
            with pytest.raises(Mismatch, match="it was wiped"):
                scenario.join("C")
            scenario.queue.adopt_registry()
        scenario.join("C")
        told = "created_behind" if is_recorded else "created"
        assert [facts["messages"] for kind, facts in scenario.reports["C"] if kind == told] == [40]
        scenario.send()
        scenario.await_settled("C")
        scenario.judge()

    def test_b50_restored_to_an_older_copy(self, ground: Ground, scenario: Scenario) -> None:
        self.needs(ground, "restore")
        scenario.join("A", "B")
        scenario.send()
        scenario.await_settled("A", "B")
        ground.save()
        scenario.join("C", "D")  # A and B each give something up: all four have seen what will be gone
        scenario.send()
        scenario.await_settled("A", "B", "C", "D")
        ground.restore()
        scenario.await_refused("A", "B", "C", "D")
        scenario.forget()
        scenario.queue = scenario.opened(HASTY)
        scenario.join("E")
        scenario.send()
        scenario.await_settled("E")
        scenario.judge()

    # ---- the member ------------------------------------------------------------------------------------------------

    def test_clock_jumps_on_a_member(self, scenario: Scenario) -> None:
        clock = JumpingClock()
        scenario.join("A")
        scenario.join("B", clock=clock)
        scenario.send()
        scenario.await_settled("A", "B")
        epochs = self._epochs(scenario)
        for offset in (3_600.0, -3_600.0, 0.0):
            clock.offset = offset
            scenario.send()
            scenario.await_settled("A", "B")
        assert self._epochs(scenario) == epochs, "a partition changed hands because a clock was set"
        scenario.crash("B")
        clock.offset = -3_600.0
        scenario.send()
        scenario.await_settled("A")
        scenario.judge()

    def _epochs(self, scenario: Scenario) -> list[int]:
        return [line.epoch for line in scenario.queue.group("billing").describe()]

    def test_b46_fork_with_an_open_store(self, scenario: Scenario) -> None:
        if not self.in_processes:
            pytest.skip("no other process can share it: the child is refused, as the conformance suite shows")
        store = scenario.queue.store
        scenario.join("A")
        scenario.send()
        scenario.await_settled("A")
        for number in range(3):
            assert in_forked_child(_writes(store, f"child/{number}")) == 0
        assert [row.key for row in store.scan("child/")] == ["child/0", "child/1", "child/2"]
        scenario.send()
        scenario.await_settled("A")
        scenario.judge()

    def test_b03_eight_processes_race_for_256_partitions(self, ground: Ground) -> None:
        if not self.in_processes:
            pytest.skip("no other process can share it: threads race for it in another test")
        assert race_processes(ground.url, rounds=self.race_rounds) == []

    race_rounds: ClassVar[int] = 3


def _is_committed(registry: Registry, grant: Grant, position: int) -> bool:
    """Whether a commit that is asked for again is done; it must not matter that it was done before."""
    [result] = registry.commit({grant: position}).values()
    return isinstance(result, Held)


def _writes(store: Store, key: str) -> Callable[[], bool]:
    return lambda: store.swap_each([Swap(key, ABSENT, b"x")])[0].verdict is Verdict.DONE
