"""Vitals of a group, for people: when a look waits, for whom, and what a group of the dead looks like."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import pytest

from pxrs.io.clock import SystemClock
from pxrs.model import MemberRow, MemberState
from pxrs.runtime.group.admin import LOOKS, Vitals
from pxrs.runtime.registry.registry import Registry
from pxrs.stores.base import Row
from pxrs.stores.memory import MemoryStore
from tests.runtime.support import PATIENT, JumpingClock, Site, SwitchedStore, eventually

YEARS = 5 * 365 * 86_400.0
HOUR = 3_600.0


class Watched(SwitchedStore):
    """Does something just before the n-th look at the members."""

    def __init__(self, before_look: Mapping[int, Callable[[], object]]) -> None:
        super().__init__(MemoryStore())
        self.looks = 0
        self._before_look = before_look

    def scan(self, prefix: str) -> list[Row]:
        self.looks += 1
        self._before_look.get(self.looks, lambda: None)()
        return super().scan(prefix)


class SetClock(SystemClock):
    """A clock that stands still until it is set."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def member(name: str, **more: object) -> MemberRow:
    return replace(MemberRow(name, f"life-of-{name}", lease_ms=300), **more)  # type: ignore[arg-type]


class Scene:
    """The rows of some members, and one who looks at them."""

    def __init__(
        self,
        *rows: MemberRow,
        clock: SystemClock | None = None,
        before: Mapping[int, Callable[[Scene], object]] | None = None,
    ) -> None:
        self.store = Watched({look: partial(do, self) for look, do in (before or {}).items()})
        self.registry = Registry(self.store, "q", "g", SystemClock())
        for row in rows:
            self.registry.register(row)
        self.vitals = Vitals(self.registry, clock or SystemClock())

    def beat(self, row: MemberRow) -> None:
        self.registry.beat(row, None)

    def living(self) -> dict[str, bool]:
        return {vital.row.id: vital.lives for vital in self.vitals.look()}


def test_nobody_waits_for_a_healthy_group() -> None:
    scene = Scene(member("A", lease_ms=60_000, seen=time.time()))
    assert scene.living() == {"A": True} and scene.store.looks == 1


def test_nobody_waits_for_a_member_that_leaves() -> None:
    clock = SetClock()
    scene = Scene(member("A", lease_ms=60_000, state=MemberState.LEAVING), clock=clock)
    assert scene.living() == {"A": True} and scene.store.looks == 1
    clock.now = 25.0
    assert scene.living() == {"A": False}, "it has died while it was leaving: the later look tells"


def test_a_member_that_begins_to_leave_is_waited_for_no_longer() -> None:
    def drain(scene: Scene) -> None:
        scene.registry.drain("A")

    scene = Scene(member("A", lease_ms=3_000), before={2: drain})
    assert scene.living() == {"A": True} and scene.store.looks == 2


@pytest.mark.parametrize("skew", [-YEARS, YEARS])
def test_clocks_that_are_years_apart_make_nobody_dead(skew: float) -> None:
    row = member("A", lease_ms=3_000, seen=time.time() + skew)
    scene = Scene(row, before={3: lambda scene: scene.beat(row)})
    assert scene.living() == {"A": True} and scene.store.looks == 3


@pytest.mark.parametrize(
    "seen", [0.0, time.time() - HOUR, time.time() + YEARS], ids=["never", "an hour ago", "in years to come"]
)
def test_a_counter_that_does_not_move_for_a_beat_is_dead(seen: float) -> None:
    scene = Scene(member("A", seen=seen))
    assert scene.living() == {"A": False} and scene.store.looks <= LOOKS + 1


def test_the_wait_is_as_long_as_a_beat_and_not_as_the_lease() -> None:
    scene = Scene(member("A", lease_ms=3_600_000, beat_ms=100))
    began = time.monotonic()
    assert scene.living() == {"A": False}
    assert time.monotonic() - began < 600  # a third of the lease would be twice as long


def test_a_member_that_comes_during_the_look_is_not_called_dead() -> None:
    def join(scene: Scene) -> None:
        scene.registry.register(member("B"))

    scene = Scene(member("A"), before={LOOKS + 1: join})
    found = scene.living()
    assert not found["A"]
    assert found.get("B", True)


def test_a_look_at_many_groups_waits_for_one_beat() -> None:
    clock = SetClock()
    scenes = [Scene(member("A", lease_ms=60_000), clock=clock) for _ in range(3)]
    for scene in scenes:
        scene.vitals.look(patient=False)
    clock.now = 25.0
    assert [scene.living() for scene in scenes] == [{"A": False}] * 3
    assert [scene.store.looks for scene in scenes] == [2, 2, 2]


# ---- a whole group ---------------------------------------------------------------------------------------------------


def test_a_group_whose_members_are_all_dead_is_dead_and_says_for_how_long() -> None:
    with Site(partitions=2) as site:
        site.send(4)
        group = site.queue.make_group("g")
        row = member("A", seen=time.time() - HOUR)
        group.registry.register(row)
        group.registry.claim([0, 1], row.owner)
        view = group.describe()
        assert view.state == "Dead" and view.living == [] and view.is_left_alone
        assert view.silent_seconds is not None and HOUR <= view.silent_seconds < 2 * HOUR
        [line] = group.members()
        assert line.state == "Dead" and line.seen == row.seen and line.partitions == (0, 1)


def test_an_evicted_member_that_was_dead_leaves_no_ghost() -> None:
    with Site(partitions=2) as site:
        site.send(4)
        group = site.queue.make_group("g")
        row = member("A", seen=time.time() - HOUR)
        group.registry.register(row)
        group.registry.claim([0, 1], row.owner)
        group.evict("A")
        view = group.describe()
        assert (view.state, view.members, [line.owner for line in view]) == ("Empty", [], [None, None])
        assert view.is_left_alone


def test_a_dead_one_that_was_leaving_does_not_keep_the_mark_of_an_evicted_one() -> None:
    with Site(partitions=2) as site:
        group = site.queue.make_group("g")
        group.registry.register(member("A", seen=time.time() - HOUR))
        group.registry.register(member("B", seen=time.time() - HOUR, state=MemberState.LEAVING))
        group.evict("A")
        assert [line.member for line in group.members()] == ["B"]


def test_a_living_member_whose_clock_is_years_off_is_shown_as_alive() -> None:
    clock = JumpingClock()
    clock.offset = -YEARS
    settings = PATIENT.with_(lease_ms=60_000, beat_ms=100)
    with Site(partitions=2) as site:
        site.member("A", lambda _: None, settings=settings, clock=clock)
        site.await_owners("A")
        view = site.queue.group("g").describe()
        assert view.state == "Stable" and [m.state for m in view.members] == ["active"] and view.dead == []


def test_a_member_that_leaves_slowly_is_shown_without_a_wait() -> None:
    began, finish = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        began.set()
        finish.wait(60)

    clock = JumpingClock()
    clock.offset = YEARS  # its time says nothing, so only its state does
    with Site(partitions=1) as site:
        site.send(1)
        consumer = site.member("A", hold, clock=clock)
        assert began.wait(60)
        leaving = threading.Thread(target=consumer.stop)
        leaving.start()
        registry = site.queue.group("g").registry
        eventually(lambda: registry.members()[0].state is MemberState.LEAVING, "it has said that it leaves")
        watched = Watched({})
        watched.inner = site.queue.store
        [line] = site.queue_of_its_own(watched).group("g").members()
        assert line.state == "leaving" and line.lives and not line.stays
        assert watched.looks <= 2  # the members once, the partitions once
        finish.set()
        leaving.join(60)
