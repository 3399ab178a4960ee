"""A consumer by itself and with others: everything once, nothing lost, nothing stopped that does not move."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import pxrs
from pxrs.errors import Closed
from pxrs.model import Message
from pxrs.testing.faults.checker import check
from tests.runtime.support import HASTY, PATIENT, Diary, Recorder, Site, eventually


@pytest.fixture(params=["memory:", "file"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[pxrs.Queue]:
    url = "memory:" if request.param == "memory:" else f"file:{tmp_path}/orders"
    with pxrs.open(url, partitions=8, settings=PATIENT) as opened:
        yield opened


def send(queue: pxrs.Queue, count: int, first: int = 0) -> list[bytes]:
    values = [b"message-%d" % number for number in range(first, first + count)]
    with queue.producer() as producer:
        for value in values:
            producer.send(f"acct-{hash_free(value)}", value)
    return values


def hash_free(value: bytes) -> int:
    """One of 20 accounts, the same in every run."""
    return sum(value) % 20


# ---- each message once --------------------------------------------------------------------------------------------


def test_800_messages_sent_before_the_first_consumer_are_handled_800_times(queue: pxrs.Queue) -> None:
    values = send(queue, 800)
    handler = Recorder()
    with queue.consumer(group="billing", handler=handler, member="A") as consumer:
        eventually(lambda: len(handler) >= 800, "800 messages")
        eventually(lambda: consumer.state == "live", "the end of the replay")
    assert sorted(handler.values) == sorted(values)
    assert queue.group("billing").describe().total_lag == 0


def test_nothing_is_skipped_or_repeated_between_replay_and_live(queue: pxrs.Queue) -> None:
    handler = Recorder()
    values = send(queue, 100)
    with queue.consumer(group="billing", handler=handler):
        for start in range(100, 600, 100):
            values += send(queue, 100, start)
        eventually(lambda: len(handler) >= len(values), "all messages")
    assert sorted(handler.values) == sorted(values)


def test_messages_of_a_key_come_in_the_order_in_which_they_were_sent(queue: pxrs.Queue) -> None:
    handler = Recorder()
    values = send(queue, 400)
    with queue.consumer(group="billing", handler=handler):
        eventually(lambda: len(handler) >= 400, "all messages")
    for account in range(20):
        sent = [value for value in values if hash_free(value) == account]
        assert [h.value for h in handler.seen if h.key == b"acct-%d" % account] == sent


def test_a_later_consumer_goes_on_where_the_first_one_left(queue: pxrs.Queue) -> None:
    first, second = Recorder(), Recorder()
    send(queue, 100)
    with queue.consumer(group="billing", handler=first):
        eventually(lambda: len(first) >= 100, "the first hundred")
    more = send(queue, 50, first=100)
    with queue.consumer(group="billing", handler=second):
        eventually(lambda: len(second) >= 50, "the next fifty")
    assert sorted(second.values) == sorted(more)


def test_each_group_gets_everything(queue: pxrs.Queue) -> None:
    billing, audit = Recorder(), Recorder()
    values = send(queue, 60)
    with queue.consumer(group="billing", handler=billing), queue.consumer(group="audit", handler=audit):
        eventually(lambda: len(billing) >= 60 and len(audit) >= 60, "both groups")
    assert sorted(billing.values) == sorted(audit.values) == sorted(values)
    assert queue.groups() == ["audit", "billing"]


# ---- joining and leaving under load -------------------------------------------------------------------------------


class Load:
    """A thread that sends until it is stopped."""

    def __init__(self, site: Site) -> None:
        self.values: list[bytes] = []
        self._site = site
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self._site.queue.producer() as producer:
            while not self._stop.is_set():
                for _ in range(40):
                    self.values.append(b"message-%d" % len(self.values))
                    producer.send(None, self.values[-1])
                producer.flush()

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_b14_join_and_leave_under_load_repeat_nothing_and_lose_nothing() -> None:
    handler = Recorder()
    with Site() as site:
        write_down = site.recorder()

        def both(message: Message, context: pxrs.Context) -> None:
            write_down(message, context)
            handler(message, context)

        with Load(site) as load:
            site.member("A", both)
            site.await_owners("A")
            site.member("B", both)
            site.await_owners("A", "B")
            eventually(lambda: {"A", "B"} <= handler.members(), "work of both")
            site.consumers["A"].stop()
            site.await_owners("B")
        eventually(lambda: site.lag() == 0, "everything committed")
        assert sorted(handler.values) == sorted(load.values)
        assert check(site.history) == []
        flushes = site.diaries["A"].of("released") + site.diaries["B"].of("released")
        assert len(flushes) == 4 + 4, "every hand-over was a release with its final checkpoint"
        for diary in site.diaries.values():
            assert diary.of("lost") == diary.of("refused") == diary.of("fenced") == []


def test_a_partition_that_does_not_move_is_neither_stopped_nor_started() -> None:
    with Site() as site, Load(site):
        site.member("A", Recorder())
        site.await_owners("A")
        site.member("B", Recorder())
        site.await_owners("A", "B")
        kept = [p for p, owner in site.owners().items() if owner == "A"]
        moved = [p for p, owner in site.owners().items() if owner == "B"]
        site.consumers["B"].stop()
        site.await_owners("A")
        eventually(lambda: len(site.diaries["A"].called("assigned")) == 12, "the four that came back")
        assert sorted(site.diaries["A"].called("revoked")) == moved
        assert sorted(site.diaries["A"].called("assigned")) == sorted([*range(8), *moved])
        assert sorted(site.diaries["B"].called("assigned")) == sorted(site.diaries["B"].called("revoked")) == moved
        assert len(kept) == 4


def test_callbacks_frame_the_messages_of_a_partition() -> None:
    diary, seen = Diary(), []
    with Site(partitions=1) as site:
        site.send(5)

        def handle(message: Message) -> None:
            seen.append((message.offset, list(diary.calls)))

        first = site.queue.consumer("g", handle, "A", assigned=diary.assigned, revoked=diary.revoked).start()
        eventually(lambda: len(seen) == 5, "five messages")
        first.stop()
    assert seen[0] == (0, [("assigned", 0, 0, 1)])
    assert diary.calls == [("assigned", 0, 0, 1), ("revoked", 0, 5, 1)]


def test_idle_members_stand_by_are_named_and_take_over() -> None:
    handler = Recorder()
    with Site(partitions=2) as site:
        for name in "ABC":
            site.member(name, handler)
        eventually(lambda: len(site.queue.group("g").members()) == 3, "three members")
        eventually(lambda: len(site.queue.group("g").describe().idle) == 1, "one idle one")
        [idle] = site.queue.group("g").describe().idle
        assert site.consumers[idle].state == "waiting"
        assert site.consumers[idle].partitions == []
        working = next(name for name in site.consumers if name != idle)
        site.consumers[working].stop()
        others = sorted({"A", "B", "C"} - {working})
        site.await_owners(*others)
        assert site.queue.group("g").describe().idle == []
        site.send(20)
        eventually(lambda: len(handler) == 20, "their work")
        assert handler.members() == set(others)


# ---- states and life ----------------------------------------------------------------------------------------------


def test_states_of_a_consumer() -> None:
    go_on = threading.Event()
    with Site(partitions=1) as site:
        site.send(1)
        consumer = site.queue.consumer("g", lambda _: go_on.wait(30), member="A")
        assert consumer.state == "registering"
        consumer.start()
        eventually(lambda: consumer.state == "replaying", "work on the stored message")
        go_on.set()
        eventually(lambda: consumer.state == "live", "the live phase")
        consumer.stop()
        assert consumer.state == "stopped"
        assert consumer.error is None


def test_a_consumer_starts_once() -> None:
    with Site() as site:
        consumer = site.queue.consumer("g", print).start()
        with pytest.raises(Closed):
            consumer.start()


def test_a_handler_may_stop_its_own_consumer() -> None:
    with Site(partitions=1) as site:
        handler = Recorder(lambda _: consumer.stop())
        consumer = site.queue.consumer("g", handler)
        site.send(3)
        consumer.run()
        assert consumer.state == "stopped"
        assert site.queue.group("g").describe()[0].checkpoint == len(handler) >= 1


def test_stop_before_start_is_harmless_and_twice_too() -> None:
    with Site() as site:
        consumer = site.queue.consumer("g", print)
        consumer.stop()
        consumer.stop()
        assert consumer.state == "stopped"
        assert site.queue.groups() == [] and site.queue.store.scan("") == [], "nothing is made before the start"


def test_a_closed_queue_refuses_and_has_stopped_its_consumers() -> None:
    queue = pxrs.open("memory:", partitions=2)
    consumer = queue.consumer("g", print).start()
    queue.close()
    queue.close()
    assert consumer.state == "stopped"
    with pytest.raises(Closed):
        queue.consumer("g", print)


@pytest.mark.parametrize("round_", range(20))
def test_kill_stops_everything_also_in_the_middle_of_a_claim(round_: int) -> None:
    handler = Recorder()
    with Site(partitions=16) as site:
        consumer = site.member("A", handler)
        eventually(lambda: site.stores["A"].writes, "its first write")
        time.sleep(round_ / 4000)  # another moment of its start in each round
        consumer.kill()
        workers = [t for t in threading.enumerate() if t.name.startswith("pxrs-p") and t in threads_of(consumer)]
        for thread in workers:
            thread.join(30)
        before = len(handler)
        site.send(64)
        assert not any(thread.is_alive() for thread in threads_of(consumer))
        assert len(handler) == before


def threads_of(consumer: pxrs.Consumer) -> list[threading.Thread]:
    return [worker.thread for worker in consumer._workforce._all()]


def test_kill_flushes_nothing_and_the_next_one_repeats() -> None:
    first, second = Recorder(), Recorder()
    settings = HASTY.with_(commit_interval_ms=3_600_000, commit_every=1_000_000)
    with Site(partitions=1, settings=settings) as site:
        consumer = site.member("A", first)
        eventually(lambda: site.queue.group("g").registry.partition(0).checkpoint == 0, "the start, written down")
        site.send(10)
        eventually(lambda: len(first) == 10, "ten messages")
        consumer.kill()
        row = site.queue.group("g").describe()[0]
        assert (row.owner, row.checkpoint) == ("A", 0)
        site.member("B", second)
        eventually(lambda: len(second) >= 10, "the same again")
        assert [h.offset for h in second.seen] == list(range(10))
