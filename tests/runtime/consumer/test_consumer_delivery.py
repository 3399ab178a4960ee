"""Delivery of messages to a handler, the start of a consumer, and subscriptions outside any group."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from pxrs.errors import BadSetting, BeyondEnd, HandlerFailed, Refused
from pxrs.model import Message
from tests.runtime.support import HASTY, PATIENT, Recorder, Site, eventually

# ---- delivery and where to start ----------------------------------------------------------------------------------


def test_lists_and_arrow_batches_are_bounded_and_complete() -> None:
    sizes: list[int] = []
    offsets: list[int] = []

    def take_list(messages: list[Message]) -> None:
        sizes.append(len(messages))
        offsets.extend(message.offset for message in messages)

    with Site(partitions=1, settings=PATIENT.with_(deliver_rows=100)) as site:
        site.send(450)
        with site.queue.consumer("lists", take_list, deliver="list"):
            eventually(lambda: len(offsets) == 450, "lists")
        assert offsets == list(range(450)) and max(sizes) <= 100
        sizes.clear()
        offsets.clear()
        with site.queue.consumer("arrows", arrow_taker(sizes, offsets), deliver="arrow"):
            eventually(lambda: len(offsets) == 450, "batches")
        assert offsets == list(range(450)) and max(sizes) <= 100
        with pytest.raises(BadSetting, match="deliver = 'rows'"):
            site.queue.consumer("g", print, deliver="rows")  # type: ignore[arg-type]  # what is tested


def arrow_taker(sizes: list[int], offsets: list[int]) -> Callable[..., None]:
    def take(batch: object) -> None:
        columns = batch.to_pydict()  # type: ignore[attr-defined]  # an Arrow batch, which has no types
        sizes.append(len(columns["offset"]))
        offsets.extend(columns["offset"])

    return take


def test_start_latest_takes_only_what_comes_after() -> None:
    handler = Recorder()
    with Site() as site:
        site.send(40)
        consumer = site.member("A", handler, start="latest")
        eventually(lambda: consumer.state == "live" and len(consumer.partitions) == 8, "the start")
        new = site.send(16, first=40)
        eventually(lambda: len(handler) >= 16, "the new ones")
        assert sorted(handler.values) == sorted(new)


def test_a_start_at_latest_is_remembered_even_where_the_log_is_empty() -> None:
    started = threading.Event()
    hold = threading.Event()

    def hang(_: Message) -> None:
        started.set()
        hold.wait(30)

    handler = Recorder()
    with Site(partitions=1, settings=HASTY) as site:
        consumer = site.member("A", hang, start="latest")
        eventually(lambda: consumer.state == "live", "the start")
        eventually(lambda: site.queue.group("g").registry.partition(0).checkpoint == 0, "the start, written down")
        [value] = site.send(1)
        assert started.wait(30)
        consumer.kill()
        hold.set()
        site.member("B", handler, start="latest")
        eventually(lambda: handler.values == [value], "the message that nobody has finished")


def test_start_at_a_time_and_only_where_no_checkpoint_is() -> None:
    handler = Recorder()
    with Site(partitions=1) as site:
        site.send(10)
        eventually(lambda: datetime.now(UTC) > site.queue.read(0, 9)[0].timestamp, "a later moment")
        moment = datetime.now(UTC)
        new = site.send(5, first=10)
        with site.queue.consumer("g", handler, start=moment):
            eventually(lambda: len(handler) >= 5, "what came after")
        assert handler.values == new
        with site.queue.consumer("g", handler, start=moment - timedelta(days=1)):
            new += site.send(1, first=15)
            eventually(lambda: len(handler) >= 6, "the next one")
        assert handler.values == new, "a checkpoint wins over start="


@pytest.mark.parametrize("start", ["bogus", datetime(2030, 1, 1), None, 1.5])  # noqa: DTZ001 - a time without a zone is the point
def test_a_start_that_means_nothing_is_refused_at_once(start: object) -> None:
    with Site() as site, pytest.raises(Refused):
        site.queue.consumer("g", print, start=start)  # type: ignore[arg-type]  # what is tested


# ---- outside any group --------------------------------------------------------------------------------------------


def test_a_manual_subscription_reads_from_given_offsets_and_leaves_no_trace() -> None:
    handler = Recorder()
    with Site(partitions=4) as site:
        site.send(40)
        with site.queue.subscribe({1: 4, 3: 0}, handler) as subscription:
            eventually(lambda: len(handler) >= 16, "six and ten messages")
            site.send(4, first=40)
            eventually(lambda: len(handler) >= 18, "the new ones too")
            assert subscription.positions == {1: 11, 3: 11}
        assert [h.offset for h in handler.seen if h.partition == 1] == list(range(4, 11))
        assert [h.offset for h in handler.seen if h.partition == 3] == list(range(11))
        assert site.queue.groups() == []
        assert site.queue.store.scan("") == []


@pytest.mark.parametrize("offsets", [{9: 0}, {0: -1}, {0: 41}, {0: None}, {0: 1.5}, {0: True}, {"0": 0}, {0: "x"}])
def test_a_subscription_outside_the_log_is_refused(offsets: dict[int, int]) -> None:
    with Site(partitions=4) as site:
        site.send(40)
        with pytest.raises(Refused):
            site.queue.subscribe(offsets, print)


def test_a_subscription_ends_with_its_handlers_error() -> None:
    def fail(_: Message) -> None:
        raise OSError("no disk")

    with Site(partitions=1, settings=PATIENT.with_(on_failure="stop", tries=1)) as site:
        site.send(1)
        with pytest.raises(HandlerFailed, match="no disk"):
            site.queue.subscribe({0: 0}, fail).run()


# ---- what is stored and cannot be true ----------------------------------------------------------------------------


def test_b27_a_checkpoint_beyond_the_end_is_an_error_and_not_a_silent_wait() -> None:
    with Site(partitions=2) as site:
        site.send(10)
        registry = site.queue.group("g").registry
        registry.initialize(2, site.queue.log.identity.hash, site.queue.log.identity.reduce)
        registry.seek({1: 50}, {})
        consumer = site.queue.consumer("g", Recorder(), member="A")
        with pytest.raises(BeyondEnd, match="50"):
            consumer.run()
        assert consumer.state == "stopped"
        assert registry.partition(1).checkpoint == 50, "it is for a person to decide where to go on"
        site.queue.group("g").seek({1: 5})
        handler = Recorder()
        with site.queue.consumer("g", handler):
            eventually(lambda: site.lag() == 0, "work after the seek")


def test_a_handler_that_exits_its_thread_stops_the_consumer_loudly() -> None:
    def leave(_: Message) -> None:
        raise SystemExit(3)

    with Site(partitions=1) as site:
        site.send(1)
        with pytest.raises(HandlerFailed, match=r"SystemExit: 3; sys.exit in a handler ends this member: raise"):
            site.queue.consumer("g", leave).run()
        assert site.queue.group("g").describe()[0].checkpoint == 0
