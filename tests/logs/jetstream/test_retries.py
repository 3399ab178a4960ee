"""Retries over NATS that are easily taken for something else: the first append, lost parts, and batches far back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from nats.aio.msg import Msg

import pxrs
from pxrs.errors import Unavailable
from pxrs.io.nats.client import Client
from pxrs.logs.base import Log, Stamp
from pxrs.logs.jetstream import log as jetstream
from pxrs.logs.jetstream import writer as jetstream_writer
from pxrs.logs.jetstream.stream import Ack, Stream, end_marker
from pxrs.testing.logs.hooks import entries, numbered, read_all
from pxrs.testing.servers.nats import NatsServer
from tests.logs.jetstream.helpers import ask, opened, stream_state

pytestmark = pytest.mark.processes

LARGE = [b"%07d" % number * 100_000 for number in range(5)]
"""Values that do not fit into one message of the server."""


def no_answer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next publish gets no answer and is not stored."""
    publish = Stream.publish
    lost: list[int] = []

    async def once(self: Stream, partition: int, messages: list[bytes], headers: list[Mapping[str, str]]) -> Ack:
        if not lost:
            lost.append(partition)
            raise Unavailable("no answer; it may have done what it was asked")
        return await publish(self, partition, messages, headers)

    monkeypatch.setattr(Stream, "publish", once)


def test_the_first_append_ever_is_retried_if_it_was_not_stored(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, stamp = {0: entries(numbered(3))}, {0: Stamp("p", 0)}
    with opened(nats_server.url("first"), partitions=1) as log:
        no_answer_once(monkeypatch)
        with pytest.raises(Unavailable, match="no answer"):
            log.append(batch, stamp)
        assert log.append(batch, stamp) == {0: 0}
        assert read_all(log, 0) == list(enumerate(numbered(3)))


def test_an_append_that_no_node_hears_is_sent_again(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a node of a cluster that has not heard yet who leads a new stream."""
    request, unheard = Client.request, iter([True, True])

    async def deaf(self: Client, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> Msg:
        away = headers is not None and next(unheard, False)
        return await request(self, f"nobody.{subject}" if away else subject, payload, headers)

    monkeypatch.setattr(Client, "request", deaf)
    with opened(nats_server.url("unheard"), partitions=1) as log:
        assert log.append({0: entries(numbered(3))}, {}) == {0: 0}
        assert next(unheard, None) is None, "nothing went unheard"
        assert read_all(log, 0) == list(enumerate(numbered(3)))


def test_a_read_that_no_node_hears_is_asked_again(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(nats_server.url("unheard-reads"), partitions=1) as log:
        log.append({0: entries(numbered(3))}, {})
    ask, request, unheard = Client.ask, Client.request, iter([True, True, True])

    def away(subject: str) -> str:
        return f"nobody.{subject}" if ".DIRECT.GET." in subject and next(unheard, False) else subject

    monkeypatch.setattr(Client, "ask", lambda self, subject, *more: ask(self, away(subject), *more))
    monkeypatch.setattr(Client, "request", lambda self, subject, *more: request(self, away(subject), *more))
    with opened(nats_server.url("unheard-reads"), partitions=1) as log:
        assert read_all(log, 0) == list(enumerate(numbered(3)))
    assert next(unheard, None) is None, "nothing went unheard"


def test_a_producer_survives_an_unanswered_first_append(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pxrs.open(log=nats_server.url("survives"), registry=f"sqlite:{tmp_path}/r.db", partitions=1) as queue:
        no_answer_once(monkeypatch)
        with queue.producer() as producer:
            assert producer.send("a", b"first").result(30) == (0, 0)


@pytest.mark.parametrize("part", ["1", "2"])
def test_a_batch_of_which_a_part_was_lost_is_sent_again(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    publish = Client.publish
    lost: list[str] = []

    async def lossy(self: Client, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        if not lost and (headers or {}).get("Nats-Batch-Sequence") == part:
            lost.append(subject)  # a connection that breaks takes it along, and says nothing
        else:
            await publish(self, subject, payload, headers)

    monkeypatch.setattr(Client, "publish", lossy)
    with opened(nats_server.url(f"lossy-{part}"), partitions=1) as log:
        with pytest.raises(Unavailable, match="nothing was stored"):
            log.append({0: entries(LARGE)}, {0: Stamp("p", 0)})
        assert log.bounds(0) == (0, 0)
        assert log.append({0: entries(LARGE)}, {0: Stamp("p", 0)}) == {0: 0}
        assert read_all(log, 0) == list(enumerate(LARGE))


def look_back_over(monkeypatch: pytest.MonkeyPatch, messages: int) -> None:
    monkeypatch.setattr(jetstream_writer, "LOOK_BACK", 1)
    monkeypatch.setattr(jetstream_writer, "LOOK_BACK_AT_LEAST", messages)


def fill(log: Log, batches: int, producer: str = "others") -> None:
    for number in range(batches):
        log.append({0: entries([b"%d" % number])}, {0: Stamp(producer, number)})


def test_a_batch_in_parts_is_found_in_the_window_however_far_back(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_back_over(monkeypatch, 2)
    monkeypatch.setattr(jetstream_writer, "_REMEMBERED", 3)
    with opened(nats_server.url("far"), partitions=1) as log:
        fill(log, 4)
        assert log.append({0: entries(LARGE)}, {0: Stamp("p", 0)}) == {0: 4}
        fill(log, 10, "more")
        with opened(nats_server.url("far")) as other:
            assert other.append({0: entries(LARGE)}, {0: Stamp("p", 0)}) == {0: 4}
        assert log.append({0: entries(LARGE)}, {0: Stamp("p", 0)}) == {0: 4}
        assert log.bounds(0) == (0, 19)


def test_a_batch_that_the_server_knows_and_has_not_is_said_to_be_so(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream, "_APPEND_SECONDS", 0.1)
    with opened(nats_server.url("gone"), partitions=1) as log:
        log.append({0: entries(LARGE)}, {0: Stamp("p", 0)})
        assert log.trim(0, 5) == 5
    with (
        opened(nats_server.url("gone")) as late,
        pytest.raises(Unavailable, match="the server knows batch 'p:0:0', and does not have it"),
    ):
        late.append({0: entries(LARGE)}, {0: Stamp("p", 0)})


# ---- what retention leaves for retries -------------------------------------------------------------------------------


def test_retention_leaves_the_batches_that_a_retry_is_looked_for_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_back_over(monkeypatch, 4)
    settings = pxrs.Settings(housekeeping_ms=60_000, retention_bytes=1)
    with NatsServer(tmp_path / "nats") as server:
        names = server.url("orders"), f"sqlite:{tmp_path}/registry.db"
        with pxrs.open(log=names[0], registry=names[1], partitions=1, settings=settings) as queue:
            fill(queue.log, 13)
            queue.housekeep()
            assert queue.log.bounds(0) == (8, 13), "chunks of four: the last, with one batch, and the one before it"
        server.stop()
        server.start()  # it learns the ids of its window from what it has
        with opened(server.url("orders")) as fresh:
            for number in (8, 9, 12):
                assert fresh.append({0: entries([b"%d" % number])}, {0: Stamp("others", number)}) == {0: number}
            assert fresh.bounds(0) == (8, 13)


def test_a_retry_of_what_was_deleted_is_not_stored_again_within_the_window(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_back_over(monkeypatch, 2)
    with opened(nats_server.url("deleted"), partitions=1) as log:
        fill(log, 9)
        assert log.trim(0, 6) == 6
    with opened(nats_server.url("deleted")) as late:
        given = late.append({0: entries([b"1"])}, {0: Stamp("others", 1)})
        assert given == {0: 5}, "the last offset that it can have had"
        assert late.bounds(0) == (6, 9)


def test_chunks_reach_as_far_as_a_retry_is_looked_for(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    look_back_over(monkeypatch, 10)
    with opened(nats_server.url("reach"), partitions=1) as log:
        fill(log, 25)
        assert [(chunk.start, chunk.end) for chunk in log.chunks(0)] == [(0, 10), (10, 20), (20, 25)]
        assert [log.trim(0, offset) for offset in (9, 10, 19)] == [0, 10, 10]
        assert stream_state(nats_server.address, "reach")["messages"] == 15
        assert [(chunk.start, chunk.end) for chunk in log.chunks(0)] == [(10, 20), (20, 25)]


def test_chunks_end_at_the_size_of_a_segment_and_never_inside_a_batch(nats_server: NatsServer) -> None:
    settings = pxrs.Settings(segment_bytes=100_000)
    with opened(nats_server.url("sized"), settings=settings, partitions=1) as log:
        for number in range(4):
            log.append({0: entries([b"x" * 60_000])}, {0: Stamp("p", number)})
        log.append({0: entries(LARGE)}, {0: Stamp("p", 4)})
        fill(log, 1)
        assert [(chunk.start, chunk.end) for chunk in log.chunks(0)] == [(0, 2), (2, 4), (4, 9), (9, 10)]
        assert stream_state(nats_server.address, "sized")["messages"] > 8


def test_chunks_are_counted_again_after_a_trim_by_somebody_whose_chunks_are_others(nats_server: NatsServer) -> None:
    with opened(nats_server.url("mixed"), partitions=1) as log:
        fill(log, 6)
        (before,) = log.chunks(0)
        with opened(nats_server.url("mixed"), settings=pxrs.Settings(segment_bytes=1)) as finer:
            assert finer.trim(0, 4) == 4
        (after,) = log.chunks(0)
        assert (after.start, after.end) == (4, 6)
        assert 0 < after.bytes < before.bytes


def test_a_crash_between_the_mark_and_the_purge_of_a_trim_hides_nothing(nats_server: NatsServer) -> None:
    with opened(nats_server.url("crash"), partitions=1) as log:
        for number in range(3):
            log.append({0: entries([b"%d" % number], 1_000 * number)})
        ask(nats_server.address, "pxrs.crash.0", end_marker(3))
    with opened(nats_server.url("crash")) as after:
        assert after.bounds(0) == (0, 3)
        assert [(chunk.start, chunk.end) for chunk in after.chunks(0)] == [(0, 3)]
        assert [after.offset_at(0, time_us) for time_us in (0, 1_000, 1_001, 3_000)] == [0, 1, 2, 3]
        assert after.append({0: entries([b"3"], 3_000)}) == {0: 3}
        assert [(chunk.start, chunk.end) for chunk in after.chunks(0)] == [(0, 4)]
        assert after.offset_at(0, 3_000) == 3
        assert after.trim(0, 4) == 4
        assert (list(after.chunks(0)), after.bounds(0)) == ([], (4, 4))
