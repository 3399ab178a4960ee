"""Beginnings and ends, and what goes wrong around them: nothing spins, nothing is left behind."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import pxrs
from pxrs.errors import BadSetting, Damaged, Fenced, Mismatch, PxrsError, Refused, Unavailable
from pxrs.io.clock import SystemClock
from pxrs.model import MemberRow, Message, Owner
from pxrs.runtime.group.heartbeat import Heartbeat
from pxrs.runtime.group.leader import Leader
from pxrs.runtime.ports.events import silent
from pxrs.runtime.registry.registry import Registry
from pxrs.settings import Settings
from pxrs.stores.base import Outcome, Row, Swap, unknown
from pxrs.stores.memory import MemoryStore
from pxrs.testing.stores.hooks import Background
from tests.runtime.support import HASTY, PATIENT, Diary, Recorder, Site, eventually
from tests.tools.calm_work import CalmWork

A, B = Owner("A", "1"), Owner("B", "1")


def a_registry(store: MemoryStore) -> Registry:
    registry = Registry(store, "q", "g", SystemClock())
    registry.initialize(4, "xxh64-spark", "pmod")
    return registry


# ---- what is refused, and leaves nothing behind --------------------------------------------------------------------


def test_two_logs_of_one_name_cannot_share_a_group(tmp_path: Path) -> None:
    registry = f"sqlite:{tmp_path}/registry.db"
    with (
        pxrs.open(log=f"file:{tmp_path}/one/events", registry=registry) as one,
        pxrs.open(log=f"file:{tmp_path}/two/events", registry=registry) as two,
    ):
        one.make_group("g")
        with pytest.raises(Mismatch, match="another log named 'events'"):
            two.consumer("g", print)
        two.consumer("other", print)
    with pxrs.open(log=f"file:{tmp_path}/one/events", registry=registry) as again:
        again.consumer("g", print)


@pytest.mark.parametrize(
    "wish",
    [
        {"assignor": "stiky"},
        {"require": [pxrs.Guarantee.ACROSS_HOSTS]},
        {"hash": "x"},
        {"reduce": "x"},
        {"registry": "x:"},
    ],
)
def test_what_is_refused_creates_nothing(tmp_path: Path, wish: dict[str, Any]) -> None:
    place = tmp_path / "orders"
    with pytest.raises(Refused):
        pxrs.open(log=f"file:{place}", **({"registry": f"sqlite:{place}/registry.db"} | wish))
    assert not place.exists()


@pytest.mark.parametrize("prefix", ["", "pxrs", "/pxrs", "pxrs/"])
def test_a_prefix_that_could_run_into_a_name_is_refused(prefix: str) -> None:
    with pytest.raises(BadSetting, match="begin and end"):
        Settings(prefix=prefix)


async def an_async_handler(message: Message) -> None: ...


def a_generator(message: Message) -> Any:
    yield message


class AsyncCall:
    async def __call__(self, message: Message) -> None: ...


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (an_async_handler, "async"), (AsyncCall(), "async"), (a_generator, "generator"), (5, "function"),
        (lambda: 1, "must take"), (lambda a, b, c: 1, "must take"),
    ],
)  # fmt: skip
def test_a_handler_that_would_lose_messages_is_refused_before_anything_happens(handler: Any, why: str) -> None:
    with pxrs.open("memory:") as queue:
        with pytest.raises(BadSetting, match=why):
            queue.consumer("g", handler)
        with pytest.raises(BadSetting, match=why):
            queue.subscribe({0: 0}, handler)
        assert queue.groups() == []


def test_a_parameter_with_a_default_is_the_users_own() -> None:
    seen: list[Any] = []
    with pxrs.open("memory:", partitions=1) as queue, queue.producer() as producer:
        producer.send("k", "v").result(20)
        queue.consumer("a", lambda message, name="mine": seen.append(name)).start()
        queue.consumer("b", lambda message, context=None: seen.append(context)).start()
        eventually(lambda: len(seen) == 2, "both")
    assert "mine" in seen and [type(x) for x in seen if x != "mine"] == [pxrs.Context]


def test_other_bad_values_are_named() -> None:
    wrong: Any = {"lease_ms": 3}
    with pytest.raises(BadSetting, match=r"must be pxrs\.Settings"):
        pxrs.open("memory:", settings=wrong)
    for url in (42, None):
        with pytest.raises(pxrs.errors.BadUrl):
            pxrs.open(url)  # type: ignore[arg-type]
    with pxrs.open("memory:") as queue:
        queue.consumer("g", print)
        five: Any = 5
        for act in (queue.group("g").pause, queue.group("g").seek):
            with pytest.raises(Refused, match="does not name partitions"):
                act(five)
        with pytest.raises(Refused, match="not an offset"):
            queue.read(0, -1)


def test_every_rebalance_has_one_line() -> None:
    """Also those whose leader leaves, and those that the next one overtakes."""
    with Site(partitions=4) as site:
        first = site.member("A", Recorder())
        site.member("B", Recorder())
        site.await_owners("A", "B")
        first.stop()
        site.await_owners("B")

        def ended() -> set[int]:
            return {f["generation"] for d in site.diaries.values() for f in d.of("settled")}

        def planned() -> set[int]:
            return set(range(1, site.queue.group("g").registry.group().generation + 1))

        eventually(lambda: ended() == planned(), "a line for each generation")


# ---- a log that cannot be read holds up its own partition only -----------------------------------------------------


@pytest.mark.parametrize("error", [Damaged("rotten"), Unavailable("the disk is gone")])
def test_a_partition_whose_log_cannot_be_read_waits_and_the_others_go_on(
    error: PxrsError, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, broken = Recorder(), {"now": True}
    with Site(partitions=4) as site:
        site.send(40)
        consumer = site.queue.consumer("g", handler, member="A")
        log = site.queue.log
        read = log.read

        def sometimes(partition: int, offset: int, max_rows: int = 10_000) -> Any:
            if partition == 1 and broken["now"]:
                raise error
            return read(partition, offset, max_rows)

        monkeypatch.setattr(log, "read", sometimes)
        consumer.start()
        eventually(lambda: len(handler) == 30, "the work on the other partitions")
        eventually(lambda: 1 in consumer.troubles, "the trouble to be shown")
        assert consumer.state in ("live", "replaying") and consumer.error is None
        lines = {line.partition: line for line in site.queue.group("g").describe()}
        assert str(error) in lines[1].error and not lines[0].error
        broken["now"] = False
        site.send(4, first=40)  # the log grows: that is a reason to look again
        eventually(lambda: len(handler) == 44, "the rest, once the log can be read again")
        assert consumer.troubles == {}


# ---- two handlers never run on one partition -----------------------------------------------------------------------


def test_a_seek_does_not_start_a_second_handler_beside_a_running_one() -> None:
    running, most, hold, began = [0], [0], threading.Event(), threading.Event()
    lock = threading.Lock()

    def act(message: Message) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        if message.offset == 3:
            began.set()
            hold.wait(30)
        with lock:
            running[0] -= 1

    handler = Recorder(act)
    with Site(partitions=1) as site:
        site.send(6)
        site.member("A", handler)
        assert began.wait(30)
        site.queue.group("g").seek({0: 0})
        diary: Diary = site.diaries["A"]
        eventually(lambda: len(diary.of("claimed")) == 2, "the second claim")
        assert len(diary.called("assigned")) == 1, "the first handler has not ended"
        hold.set()
        eventually(lambda: site.lag() == 0, "everything again")
        assert most[0] == 1
        assert [what for what, *_ in diary.calls][:3] == ["assigned", "revoked", "assigned"]


# ---- leaving -------------------------------------------------------------------------------------------------------


def test_a_leaver_that_waits_for_its_handlers_does_not_spin() -> None:
    began, hold, rounds = threading.Event(), threading.Event(), [0]

    def act(_: Message) -> None:
        began.set()
        hold.wait(30)

    with Site(partitions=2) as site:
        consumer = site.member("A", Recorder(act))
        site.send(1)
        assert began.wait(30)
        sound = consumer._membership.member.round

        def counted() -> float:
            rounds[0] += 1
            return sound()

        consumer._membership.member.round = counted  # type: ignore[method-assign]
        leaving = threading.Thread(target=consumer.stop)
        leaving.start()
        leaving.join(0.5)
        assert rounds[0] < 50, "it may look now and then, but not all the time"
        hold.set()
        leaving.join(30)
        assert not leaving.is_alive() and consumer.state == "stopped"


class Forgetful(MemoryStore):
    """Loses the reply to every swap of partition rows while ``lost`` is set."""

    lost = False

    def swap_each(self, swaps: Any) -> list[Outcome]:
        found = super().swap_each(swaps)
        return [
            unknown("lost") if self.lost and "/partition/" in s.key else o for s, o in zip(swaps, found, strict=True)
        ]


def test_commits_without_an_answer_are_paced() -> None:
    rounds = [0]
    with Site(partitions=1) as site:
        store = Forgetful(site.table)
        queue = site.open(store)
        consumer = queue.consumer("g", Recorder(), member="A").start()
        site.await_owners("A")
        sound = consumer._membership.member.round

        def counted() -> float:
            rounds[0] += 1
            return sound()

        consumer._membership.member.round = counted  # type: ignore[method-assign]
        store.lost = True
        site.send(5)
        eventually(lambda: rounds[0] > 0, "a first try")
        before = rounds[0]
        consumer.wait(0.5)
        assert rounds[0] - before < 50
        store.lost = False
        eventually(lambda: site.lag() == 0, "the commit")


def a_leader(store: MemoryStore) -> tuple[Registry, Leader]:
    """Member A, which has been elected just now."""
    registry = a_registry(store)
    coordinator = Leader(registry, A, PATIENT, SystemClock(), lambda: secrets.token_hex(4), silent)
    registry.register(MemberRow("A", "1"))
    assert coordinator.round(registry.group(), polled=True) and coordinator.leads
    return registry, coordinator


def test_a_leader_that_leaves_while_another_is_elected_leaves_cleanly() -> None:
    registry, coordinator = a_leader(MemoryStore())
    found = registry.group()
    registry.elect(B, found)
    coordinator.leave(found, now=0.0)
    assert not coordinator.leads
    assert registry.group().leader == B


def test_a_leader_whose_registry_is_wiped_in_the_middle_of_a_round_looks_again() -> None:
    store = MemoryStore()
    registry, coordinator = a_leader(store)
    coordinator.round(registry.group(), polled=True)
    found = registry.group()
    assert found.target
    store.swap_each([Swap(row.key, row.version, None) for row in store.scan("")])
    assert coordinator.round(found, polled=True), "it says that nothing has changed"
    assert registry.find_group() is None, "it has planned for a group that is gone"


class Asked(MemoryStore):
    """Notes which rows it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        self.asked += keys
        return super().read(keys)

    def scan(self, prefix: str) -> list[Row]:
        self.asked.append(prefix)
        return super().scan(prefix)


def a_leader_at_rest(store: MemoryStore) -> tuple[Registry, Leader]:
    """It has B beside it, and everything is where it belongs."""
    registry, coordinator = a_leader(store)
    registry.register(MemberRow("B", "1"))
    assert coordinator.round(registry.group(), polled=True)
    target = registry.target(registry.group().target or "")
    assert target is not None
    for owner in (A, B):
        registry.claim(target.of(owner.id), owner)
    assert not coordinator.round(registry.group(), polled=True) and not coordinator.is_busy
    return registry, coordinator


def test_a_leader_at_rest_looks_at_the_members_and_at_nothing_else() -> None:
    store = Asked()
    registry, coordinator = a_leader_at_rest(store)
    group = registry.group()
    store.asked.clear()
    assert not coordinator.round(group, polled=False)
    assert store.asked == [registry.keys.members]


def test_a_leader_at_rest_sees_members_that_come_restart_and_go() -> None:
    store = Asked()
    registry, coordinator = a_leader_at_rest(store)
    registry.register(MemberRow("B", "2"))
    assert not coordinator.round(registry.group(), polled=False)
    assert coordinator.is_busy, "what the earlier life of B holds has to be claimed again, or freed"
    for row in [MemberRow("C", "1"), None]:
        if row:
            registry.register(row)
        else:
            registry.deregister(Owner("B", "2"))
        assert coordinator.round(registry.group(), polled=False), "no new plan"
    assert registry.group().members == ("A", "C")


def test_a_leader_at_rest_plans_anew_at_its_next_poll_when_the_target_is_gone() -> None:
    store = MemoryStore()
    registry, coordinator = a_leader_at_rest(store)
    group = registry.group()
    [target] = store.scan(registry.keys.targets)
    store.swap_each([Swap(target.key, target.version, None)])
    assert coordinator.round(group, polled=True)
    assert registry.group().generation == group.generation + 1


def test_the_word_that_a_member_leaves_is_repeated_until_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = a_registry(MemoryStore())
    heartbeat = Heartbeat(registry, CalmWork(), MemberRow("A", "1"), PATIENT, silent, lambda: 0.0)  # type: ignore[arg-type]
    heartbeat.keep(0.0)
    sound = registry.set_state

    def down(*_: object) -> None:
        raise Unavailable("not now")

    monkeypatch.setattr(registry, "set_state", down)
    with pytest.raises(Unavailable):
        heartbeat.announce_leaving()
    monkeypatch.setattr(registry, "set_state", sound)
    heartbeat.announce_leaving()
    assert registry.members()[0].state == "leaving"


def test_closing_a_queue_closes_everything_although_its_producer_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = pxrs.open("memory:", partitions=2)
    consumer = queue.consumer("g", print, member="A").start()
    producer = queue.producer()

    def fails(*_: object, **__: object) -> None:
        raise Damaged("no more")

    monkeypatch.setattr(queue.log, "append", fails)
    producer.send("k", "v")
    with pytest.raises(Damaged, match="no more"):
        queue.close()
    assert consumer.state == "stopped"
    with pytest.raises(pxrs.errors.Closed):
        queue.store.read(["x"])


def test_a_subscription_that_fails_stops_as_a_whole_and_is_forgotten() -> None:
    def fails(_: Message) -> None:
        raise OSError("no")

    others = set(threading.enumerate())
    settings = PATIENT.with_(on_failure="stop", tries=1)
    with pxrs.open("memory:", partitions=8, settings=settings) as queue:
        with queue.producer() as producer:
            for _ in range(80):
                producer.send(None, "x")
        subscription = queue.subscribe(dict.fromkeys(range(8), 0), fails)
        with pytest.raises(pxrs.errors.HandlerFailed):
            subscription.run()
        subscription.stop()
        assert not queue._subscriptions
        assert not _workers_beside(others)


def _workers_beside(others: set[threading.Thread]) -> list[threading.Thread]:
    """The threads of partitions that are not among these."""
    found = (thread for thread in threading.enumerate() if thread not in others)
    return [thread for thread in found if thread.name.startswith("pxrs-p") and thread.name[6:].isdigit()]


@pytest.mark.processes
def test_a_forked_child_can_close_what_its_parent_runs(tmp_path: Path) -> None:
    with pxrs.open(f"file:{tmp_path}/orders", partitions=2) as queue:
        consumer = queue.consumer("g", print, member="A").start()
        eventually(lambda: len(consumer.partitions) == 2, "its partitions")
        child = os.fork()
        if child == 0:
            queue.close()
            os._exit(7)
        ended = Background(os.waitpid, child, 0).result(30, "the end of the child")
        assert os.waitstatus_to_exitcode(ended[1]) == 7
        assert consumer.state in ("live", "replaying"), "the parent's consumer is untouched"


# ---- operators -----------------------------------------------------------------------------------------------------


def test_an_evicted_process_that_was_asleep_does_not_come_back() -> None:
    with Site(partitions=2, settings=HASTY) as site:
        sleeper = site.member("A", Recorder())
        site.await_owners("A")
        site.stores["A"].down = True
        site.queue.group("g").evict("A")
        site.member("B", Recorder())
        site.await_owners("B")
        eventually(lambda: len(site.diaries["B"].of("settled")) > 0, "the end of the rebalance")
        registry = site.queue.group("g").registry
        eventually(lambda: [m.id for m in registry.members()] == ["B"], "the mark has done its work, and goes")
        site.stores["A"].down = False
        eventually(lambda: sleeper.state == "fenced", "the end of the evicted one")
        site.await_owners("B")
        assert [m.id for m in registry.members()] == ["B"]


def test_a_deletion_that_was_disturbed_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    with Site(partitions=4) as site:
        site.send(8)
        consumer = site.member("A", Recorder())
        eventually(lambda: site.lag() == 0, "its work")
        consumer.stop()
        group = site.queue.group("g")
        scan: Callable[[str], Any] = group.registry.store.scan

        def with_a_write_behind_it(prefix: str) -> Any:
            rows = scan(prefix)
            for row in rows[-1:]:
                group.registry.store.swap_each([Swap(row.key, row.version, row.value)])
            return rows

        with monkeypatch.context() as patch:
            patch.setattr(group.registry.store, "scan", with_a_write_behind_it)
            with pytest.raises(Refused, match="try again"):
                group.delete()
        assert group.describe().total_lag == 0, "nothing is gone"
        group.delete()
        assert site.queue.groups() == []


def test_a_callback_that_hangs_counts_as_no_progress() -> None:
    hold = threading.Event()
    settings = HASTY.with_(lease_ms=400, progress_limit_ms=500)
    with Site(partitions=2, settings=settings) as site:
        site.member("A", Recorder(), assigned=lambda *_: hold.wait(30))
        eventually(lambda: site.diaries["A"].of("stalled"), "the word that A makes no progress")
        hold.set()


def test_a_late_resignation_is_still_fenced_in_the_registry() -> None:
    registry = a_registry(MemoryStore())
    lead = registry.elect(A, registry.group())
    registry.elect(B, registry.group())
    with pytest.raises(Fenced):
        registry.resign(lead)
