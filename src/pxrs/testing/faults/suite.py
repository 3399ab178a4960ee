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
from pxrs.testing.faults.scenario import HASTY, JumpingClock, Shop, eventually
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
    def shop(self, ground: Ground, tmp_path: Path) -> Iterator[Shop]:
        with Shop(ground.url, tmp_path) as shop:
            yield shop

    def needs(self, ground: Ground, happening: Happening) -> None:
        if happening in ground.lacks:
            pytest.skip(f"cannot happen to {ground.name}: {ground.lacks[happening]}")

    # ---- the server ------------------------------------------------------------------------------------------------

    def test_server_killed_and_restarted(self, ground: Ground, shop: Shop) -> None:
        self.needs(ground, "restart")
        shop.join("A", "B")
        shop.send()
        shop.await_settled("A", "B")
        for _ in range(2):
            ground.restart()
            shop.send()
            shop.await_settled("A", "B")
        shop.judge()

    def test_server_paused_past_the_lease(self, ground: Ground, shop: Shop) -> None:
        self.needs(ground, "pause")
        shop.join("A", "B")
        shop.send()
        shop.await_settled("A", "B")
        ground.pause()
        lease = HASTY.lease_ms / 1000
        eventually(lambda: all(c.beat_age > lease for c in shop.consumers.values()), "the leases run out")
        before = shop.processed
        shop.send()
        assert shop.processed == before, "a member went on working without a lease"
        ground.resume()
        shop.await_settled("A", "B")
        shop.judge()

    # ---- the network -----------------------------------------------------------------------------------------------

    def test_reply_lost_after_the_write(self, ground: Ground, shop: Shop) -> None:
        self.needs(ground, "lose")
        store = shop.queue.store
        version = put(store, "a", b"before")
        with ground.losing("replies"):
            [told] = store.swap_each([Swap("a", version, b"after")])
        assert told.verdict is Verdict.UNKNOWN
        eventually(lambda: value_of(store, "a") == b"after", "the write that nobody was told of is there")
        row = get(store, "a")
        assert row is not None and row.version != version
        [again] = store.swap_each([Swap("a", version, b"twice")])
        assert again.verdict is Verdict.CONFLICT and get(store, "a") == row, "it was written twice"

    def test_commits_whose_replies_are_lost_count_once(self, ground: Ground, shop: Shop) -> None:
        self.needs(ground, "lose")
        registry, me = registry_over(shop.queue.store), Owner("A", "life-1")
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

    def test_members_survive_a_network_that_loses_replies(self, ground: Ground, shop: Shop) -> None:
        self.needs(ground, "lose")
        shop.join("A", "B")
        shop.send()
        shop.await_settled("A", "B")
        troubles = len(shop.reports["A"])
        with ground.losing("replies"):
            shop.send()
            eventually(lambda: "troubled" in [k for k, _ in shop.reports["A"][troubles:]], "A has noticed")
        shop.await_settled("A", "B")
        shop.judge()

    # ---- the watch -------------------------------------------------------------------------------------------------

    def test_the_watch_alone_wakes(self, shop: Shop) -> None:
        self._come_and_go(shop, ON_WATCH_ALONE)

    def test_with_the_watch_cut_the_poll_heals(self, ground: Ground, shop: Shop) -> None:
        self.needs(ground, "cut_watch")
        with ground.without_watch():
            self._come_and_go(shop, ON_POLLS_ALONE)
        self._come_and_go(shop, ON_POLLS_ALONE)

    def _come_and_go(self, shop: Shop, settings: Settings) -> None:
        shop.join("A", settings=settings)
        shop.await_settled("A")
        shop.join("B", settings=settings)
        shop.send()
        shop.await_settled("A", "B")
        shop.leave("A")
        shop.send()
        shop.await_settled("B")
        shop.leave("B")
        shop.judge()

    # ---- the store goes back ---------------------------------------------------------------------------------------

    def test_b59_wiped(self, ground: Ground, shop: Shop) -> None:
        self.needs(ground, "wipe")
        shop.join("A", "B")
        shop.send()
        shop.await_settled("A", "B")
        ground.wipe()
        shop.await_refused("A", "B")
        shop.forget()
        shop.queue = shop.opened(HASTY)
        is_recorded = Guarantee.ACROSS_PROCESSES in shop.queue.store.guarantees
        if is_recorded:
            with pytest.raises(Mismatch, match="it was wiped"):
                shop.join("C")
            shop.queue.adopt_registry()
        shop.join("C")
        told = "created_behind" if is_recorded else "created"
        assert [facts["messages"] for kind, facts in shop.reports["C"] if kind == told] == [40]
        shop.send()
        shop.await_settled("C")
        shop.judge()

    def test_b50_restored_to_an_older_copy(self, ground: Ground, shop: Shop) -> None:
        self.needs(ground, "restore")
        shop.join("A", "B")
        shop.send()
        shop.await_settled("A", "B")
        ground.save()
        shop.join("C", "D")  # A and B each give something up: all four have seen what will be gone
        shop.send()
        shop.await_settled("A", "B", "C", "D")
        ground.restore()
        shop.await_refused("A", "B", "C", "D")
        shop.forget()
        shop.queue = shop.opened(HASTY)
        shop.join("E")
        shop.send()
        shop.await_settled("E")
        shop.judge()

    # ---- the member ------------------------------------------------------------------------------------------------

    def test_clock_jumps_on_a_member(self, shop: Shop) -> None:
        clock = JumpingClock()
        shop.join("A")
        shop.join("B", clock=clock)
        shop.send()
        shop.await_settled("A", "B")
        epochs = self._epochs(shop)
        for offset in (3_600.0, -3_600.0, 0.0):
            clock.offset = offset
            shop.send()
            shop.await_settled("A", "B")
        assert self._epochs(shop) == epochs, "a partition changed hands because a clock was set"
        shop.crash("B")
        clock.offset = -3_600.0
        shop.send()
        shop.await_settled("A")
        shop.judge()

    def _epochs(self, shop: Shop) -> list[int]:
        return [line.epoch for line in shop.queue.group("billing").describe()]

    def test_b46_fork_with_an_open_store(self, shop: Shop) -> None:
        if not self.in_processes:
            pytest.skip("no other process can share it: the child is refused, as the conformance suite shows")
        store = shop.queue.store
        shop.join("A")
        shop.send()
        shop.await_settled("A")
        for number in range(3):
            assert in_forked_child(_writes(store, f"child/{number}")) == 0
        assert [row.key for row in store.scan("child/")] == ["child/0", "child/1", "child/2"]
        shop.send()
        shop.await_settled("A")
        shop.judge()

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
