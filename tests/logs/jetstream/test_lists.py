"""Lists of what a stream holds that break off, bells that are told to stop twice, and questions nobody waits for."""

from __future__ import annotations

import asyncio

import pytest
from nats.aio.msg import Msg

from pxrs.errors import Unavailable
from pxrs.io.nats.client import NatsAddress, _Connection
from pxrs.logs.jetstream import chunks as jetstream_outlines
from pxrs.logs.jetstream.stream import Stream
from pxrs.testing.logs.hooks import covers, entries, numbered
from pxrs.testing.servers.nats import NatsServer
from tests.logs.jetstream.helpers import open_nats, opened, stream_state

pytestmark = pytest.mark.processes


def test_a_list_that_breaks_off_is_an_error_and_not_the_end(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream_outlines, "PAGE", 10)
    monkeypatch.setattr(jetstream_outlines, "READY_SECONDS", 0.1)
    page, pages = jetstream_outlines._page, []

    async def interrupted(stream: Stream, consumer: str) -> list[Msg]:
        pages.append(consumer)
        if len(pages) == 2:  # as when its server goes away
            await stream.client.api(f"CONSUMER.DELETE.{stream.name}.{consumer}")
        return await page(stream, consumer)

    with opened(nats_server.url("broken-off"), partitions=1) as log:
        for number in range(50):
            log.append({0: entries([b"%d" % number], 1_000 + number)})
        monkeypatch.setattr(jetstream_outlines, "_page", interrupted)
        with opened(nats_server.url("broken-off")) as other:
            with pytest.raises(Unavailable, match="broke off"):
                other.offset_at(0, 1_030)
            assert other.offset_at(0, 1_030) == 30
            assert covers(other.chunks(0), (0, 50))
        assert stream_state(nats_server.address, "broken-off")["consumer_count"] == 0


def test_what_is_remembered_of_many_batches_is_a_few_chunks(nats_server: NatsServer) -> None:
    with opened(nats_server.url("many"), partitions=1) as log:
        for number in range(300):
            log.append({0: entries(numbered(2), 10 * number)})
        (chunk,) = log.chunks(0)
        assert (chunk.start, chunk.end, chunk.last_us) == (0, 600, 2_990)
        assert [log.offset_at(0, 10 * number) for number in (0, 150, 299, 300)] == [0, 300, 598, 600]


def test_a_subscription_ends_after_its_log_was_closed(nats_server: NatsServer) -> None:
    log = open_nats(nats_server.url("closed"), partitions=1)
    cancel = log.subscribe(0, lambda: None)
    log.close()
    cancel()
    assert stream_state(nats_server.address, "closed")["messages"] == 0


def test_a_question_ends_with_its_caller() -> None:
    async def story() -> bool:
        connection = _Connection(NatsAddress(("127.0.0.1:1",)))
        connection._came_up()
        silent = asyncio.get_running_loop().create_future()  # an answer that never comes

        async def question() -> None:
            await silent

        asking = asyncio.ensure_future(connection.answer(question()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # now the question is under way
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.sleep(0)
        return silent.cancelled()

    assert asyncio.run(story())
