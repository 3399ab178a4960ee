"""B-39: a consumer that comes behind retention stops with the gap named, or skips it, says so and counts it."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pxrs.errors import Expired
from pxrs.model import Batch
from pxrs.sinks import ParquetSink
from tests.runtime.batches.test_batching import Yard, places
from tests.runtime.consumer.test_sink_consumer import places_of, shown
from tests.runtime.support import PATIENT, Diary, Recorder, Site, eventually

SKIP = PATIENT.with_(on_expired="skip", prefetch_rows=1)
STOP = PATIENT.with_(on_expired="stop", prefetch_rows=1)
ALL = [f"message-{number}".encode() for number in range(10)]


def fill(site: Site, count: int = 10, first: int = 0) -> None:
    """Messages that are stored one by one, so that any of them can be trimmed."""
    with site.queue.producer() as producer:
        for number in range(first, first + count):
            producer.send(None, b"message-%d" % number).result(20)


def make_group(site: Site, checkpoint: int) -> None:
    group, log = site.queue.group("g"), site.queue.log.identity
    group.registry.initialize(log.partitions, log.hash, log.reduce)
    group.seek({0: checkpoint})


def checkpoint(site: Site) -> int:
    return site.queue.group("g").describe()[0].checkpoint or 0


# ---- threads --------------------------------------------------------------------------------------------------------


def test_b39_threads_stop_and_name_the_gap_that_they_find_at_their_start() -> None:
    with Site(1, STOP) as site:
        fill(site)
        make_group(site, 2)
        site.queue.log.trim(0, 6)
        handler = Recorder()
        consumer = site.member("A", handler)
        assert consumer.wait(20)
        with pytest.raises(Expired, match=r"offsets 2 to 5 are no longer stored; the log starts at 6"):
            consumer.check()
        assert handler.values == [] and checkpoint(site) == 2


def test_b39_threads_skip_the_gap_that_they_find_at_their_start(caplog: pytest.LogCaptureFixture) -> None:
    with Site(1, SKIP) as site, caplog.at_level(logging.ERROR, "pxrs.consumer"):
        fill(site)
        make_group(site, 2)
        site.queue.log.trim(0, 6)
        handler = Recorder()
        consumer = site.member("A", handler)
        eventually(lambda: checkpoint(site) == 10, "the rest is handled and committed")
        assert handler.values == ALL[6:]
        assert consumer.tally.expired == 4 and consumer.tally.skipped == 0
        told = [{k: v for k, v in facts.items() if k != "epoch"} for facts in site.diaries["A"].of("expired")]
        assert told == [{"member": "A", "partition": 0, "start": 2, "end": 6, "messages": 4}]
        assert "partition 0: offsets 2 to 5 (4 messages) are no longer stored" in caplog.text
        samples = {s.metric.name: s.value for s in consumer.meter.samples()}
        assert samples["pxrs_expired_messages_total"] == 4


def test_b39_threads_commit_behind_a_gap_that_nothing_follows() -> None:
    with Site(1, SKIP) as site:
        fill(site)
        make_group(site, 2)
        site.queue.log.trim(0, 10)
        handler = Recorder()
        site.member("A", handler)
        eventually(lambda: checkpoint(site) == 10, "the gap is committed")
        assert handler.values == []


def slow_reader(site: Site, settings: Any) -> tuple[Recorder, Any]:
    """A consumer that has handled message 0 when the messages up to 5 are deleted under it."""
    first, trimmed = threading.Event(), threading.Event()

    def act(message: Any) -> None:
        if message.offset == 0:
            first.set()
            assert trimmed.wait(20)

    handler = Recorder(act)
    consumer = site.member("A", handler, settings)
    assert first.wait(20)
    site.queue.log.trim(0, 6)
    trimmed.set()
    return handler, consumer


def test_b39_threads_stop_when_messages_are_deleted_under_them() -> None:
    with Site(1, STOP) as site:
        fill(site)
        handler, consumer = slow_reader(site, STOP)
        assert consumer.wait(20)
        with pytest.raises(Expired, match=r"offsets 1 to 5 .* starts at 6"):
            consumer.check()
        assert handler.values == ALL[:1] and checkpoint(site) == 1


def test_b39_threads_skip_what_is_deleted_under_them() -> None:
    with Site(1, SKIP) as site:
        fill(site)
        handler, consumer = slow_reader(site, SKIP)
        eventually(lambda: checkpoint(site) == 10, "the rest is handled and committed")
        assert handler.values == [ALL[0], *ALL[6:]] and consumer.tally.expired == 5


# ---- threads with a sink --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_start", [True, False])
def test_b39_a_consumer_with_a_sink_skips_the_gap_and_shows_the_rest_once(tmp_path: Path, at_start: bool) -> None:
    first, trimmed = threading.Event(), threading.Event()

    def handle(batch: pa.RecordBatch, context: Any) -> pa.RecordBatch:
        if not at_start and batch.column("offset")[0].as_py() == 2:
            first.set()
            assert trimmed.wait(20)
        return places_of(batch, context)

    with Site(1, SKIP) as site:
        fill(site)
        make_group(site, 2)
        if at_start:
            site.queue.log.trim(0, 6)
        consumer = site.member("A", handle, deliver="arrow", sink=ParquetSink(tmp_path))
        if not at_start:
            assert first.wait(20)
            site.queue.log.trim(0, 6)
            trimmed.set()
        eventually(lambda: checkpoint(site) == 10, "the rest is committed")
        before = [] if at_start else ALL[2:3]
        eventually(lambda: shown(tmp_path) == Counter([*before, *ALL[6:]]), "what there was is shown once")
        assert consumer.tally.expired == 4 - len(before)


def test_b39_a_consumer_with_a_sink_stops_and_names_the_gap(tmp_path: Path) -> None:
    with Site(1, STOP) as site:
        fill(site)
        make_group(site, 2)
        site.queue.log.trim(0, 6)
        consumer = site.member("A", places_of, deliver="arrow", sink=ParquetSink(tmp_path))
        assert consumer.wait(20)
        with pytest.raises(Expired, match=r"offsets 2 to 5 .* starts at 6"):
            consumer.check()
        assert checkpoint(site) == 2


# ---- batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_sink", [True, False])
def test_b39_a_pipeline_skips_the_gap_at_its_start(with_sink: bool) -> None:
    with Yard(1, SKIP) as yard:
        fill(yard.site)
        make_group(yard.site, 2)
        yard.site.queue.log.trim(0, 6)
        engine = yard.engine("A", sink=yard.sink if with_sink else None)
        eventually(lambda: checkpoint(yard.site) == 10, "the rest is committed")
        assert yard.done == [(0, offset) for offset in range(6, 10)]
        assert engine.shares.tally().expired == 4
        [told] = [event for event in engine.events if event["kind"] == "expired"]
        assert (told["partition"], told["start"], told["end"], told["messages"]) == (0, 2, 6, 4)


def test_b39_a_pipeline_stops_at_its_start_and_names_the_gap() -> None:
    with Yard(1, STOP) as yard:
        fill(yard.site)
        make_group(yard.site, 2)
        yard.site.queue.log.trim(0, 6)
        engine = yard.engine("A")
        assert engine.life.wait(20) and isinstance(engine.life.error, Expired)
        assert "offsets 2 to 5 are no longer stored" in str(engine.life.error)
        assert yard.done == [] and checkpoint(yard.site) == 2


class Trimming:
    """Executes batches; what the first batch was planned for is deleted before it is read."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self.tries: list[Batch] = []

    def __call__(self, batch: Batch) -> Any:
        if batch.rows and not self.tries:
            self._yard.site.queue.log.trim(0, 6)
        self.tries.append(batch)
        for part in batch.ranges:
            self._yard.site.queue.log.read(part.partition, part.start)
        return self._yard.record(batch)


def test_b39_a_pipeline_skips_what_is_deleted_after_it_was_planned() -> None:
    with Yard(1, SKIP) as yard:
        fill(yard.site)
        execute = Trimming(yard)
        engine = yard.engine("A", execute)
        eventually(lambda: checkpoint(yard.site) == 10, "the rest is committed")
        assert yard.done == [(0, offset) for offset in range(6, 10)]
        assert [places(batch)[0] for batch in execute.tries] == [(0, 0), (0, 6)], "it was planned anew, not tried again"
        assert engine.shares.tally().expired == 6 and engine.shares.tally().dead_lettered == 0


def test_b39_a_pipeline_stops_when_what_it_planned_is_deleted() -> None:
    with Yard(1, STOP) as yard:
        fill(yard.site)
        engine = yard.engine("A", Trimming(yard))
        assert engine.life.wait(20) and isinstance(engine.life.error, Expired)
        assert "offsets 0 to 5 are no longer stored" in str(engine.life.error)
        assert yard.done == [] and checkpoint(yard.site) == 0


def test_a_subscription_skips_too() -> None:
    with Site(1, SKIP) as site:
        fill(site)
        handler, first, trimmed = Recorder(), threading.Event(), threading.Event()

        def handle(message: Any, context: Any) -> None:
            handler(message, context)
            first.set()
            assert trimmed.wait(20)

        with site.queue.subscribe({0: 0}, handle) as subscription:
            assert first.wait(20)
            site.queue.log.trim(0, 6)
            trimmed.set()
            eventually(lambda: subscription.positions == {0: 10}, "the rest is handled")
        assert handler.values == [ALL[0], *ALL[6:]] and subscription.tally.expired == 5


def test_a_diary_of_a_sound_log_has_no_gap() -> None:
    with Site(1, SKIP) as site:
        fill(site)
        diary = Diary()
        site.member("A", Recorder(), report=diary.report)
        eventually(lambda: checkpoint(site) == 10, "all is handled")
        assert diary.of("expired") == []
