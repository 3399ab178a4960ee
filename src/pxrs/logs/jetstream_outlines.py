"""What a partition of a stream holds, without the content: headers only, page by page.

This needs a consumer of the server's, for as long as it takes. Nothing depends on what it remembers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from nats.aio.msg import Msg

from pxrs.clients.nats import ApiError, status_of
from pxrs.clock import SystemClock
from pxrs.errors import Unavailable
from pxrs.logs.jetstream_names import message_id
from pxrs.logs.jetstream_stream import ABOUT, CONTENT, READY_SECONDS, Stream

PAGE = 2_000
_NO_MORE, _NOBODY_ANSWERS = ("404", "408"), "503"
_PAUSE_SECONDS = 0.02
_CLOCK = SystemClock()


class Outline(NamedTuple):
    """A batch, or a part of one, without its content."""

    sequence: int
    base: int
    rows: int
    bytes: int
    last_us: int
    id: str | None
    content: str = ""

    @property
    def end(self) -> int:
        return self.base + self.rows

    @property
    def is_later_part(self) -> bool:
        """Whether it belongs to the batch whose first part stands before it."""
        return self.id is not None and self.id.count(":") == 3


Take = Callable[[list[Outline]], bool]
"""Gets what is stored, some at a time and in order; says whether it wants more."""


class _Looker(NamedTuple):
    """A consumer of the server's, and the sequence it starts at."""

    name: str
    start: int


async def outlines(stream: Stream, partition: int, start: int | datetime, take: Take) -> None:
    """Hand over all batches of a partition from a sequence, or from the time they were stored at, on."""
    looker = await _begin(stream, partition, start)
    reached = looker.start if isinstance(start, datetime) else max(start, looker.start)
    try:
        while page := await _page(stream, looker.name):
            reached = page[-1].metadata.sequence.stream + 1
            if not take([found for found in map(_outline, page) if found is not None]):
                return
            if page[-1].metadata.num_pending == 0:
                break
    finally:
        await _end(stream, looker.name)
    if stream.replicas > 1:  # it may have run where the stream is behind
        await _late(stream, partition, reached, take)


async def _late(stream: Stream, partition: int, sequence: int, take: Take) -> None:
    """What the leader has from a sequence on."""
    while (stored := await stream.next(partition, sequence)) is not None:
        sequence = stored.sequence + 1
        if stored.last_us is None:
            continue  # a mark
        name, content = (message_id(stored.stamp, partition, 0), stored.stamp.content) if stored.stamp else (None, "")
        found = Outline(stored.sequence, stored.base, stored.rows, len(stored.data), stored.last_us, name, content)
        if not take([found]):
            return


async def _begin(stream: Stream, partition: int, start: int | datetime) -> _Looker:
    config = {
        **_from(start),
        "filter_subject": stream.subject(partition),
        "ack_policy": "none",
        "headers_only": True,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": 30_000_000_000,
    }
    try:
        body = {"stream_name": stream.name, "config": config}
        made = await stream.client.api(f"CONSUMER.CREATE.{stream.name}", body)
    except ApiError as error:
        raise stream.refused(error) from None
    return _Looker(str(made["name"]), int(made["delivered"]["stream_seq"]) + 1)


def _from(start: int | datetime) -> dict[str, Any]:
    if isinstance(start, datetime):
        return {"deliver_policy": "by_start_time", "opt_start_time": start.isoformat()}
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, start)}


async def _page(stream: Stream, consumer: str) -> list[Msg]:
    """The next messages; none at the end. Anything else that ends a list, as the loss of a server, is an error."""
    deadline = _CLOCK.monotonic() + READY_SECONDS
    while True:
        answers = await _ask_page(stream, consumer)
        status = status_of(answers[-1])
        if status is None or status in _NO_MORE:
            return [answer for answer in answers if status_of(answer) is None]
        if status != _NOBODY_ANSWERS or _CLOCK.monotonic() >= deadline:
            where = f"{stream.client.address}: stream {stream.name!r}"
            raise Unavailable(f"{where}: the list of what it holds broke off (status {status})")
        await asyncio.sleep(_PAUSE_SECONDS)  # in a cluster a new consumer is not known everywhere at once


async def _ask_page(stream: Stream, consumer: str) -> list[Msg]:
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream.name}.{consumer}"
    body = {"batch": PAGE, "no_wait": True}
    return await stream.client.collect(lambda inbox: stream.client.ask(subject, body, inbox), PAGE)


async def _end(stream: Stream, consumer: str) -> None:
    try:
        await stream.client.api(f"CONSUMER.DELETE.{stream.name}.{consumer}")
    except (ApiError, Unavailable):
        return  # it ends by itself when nobody asks it for a while


def _outline(message: Msg) -> Outline | None:
    headers = message.headers or {}
    words = headers.get(ABOUT, "").split()
    if len(words) != 3:
        return None  # a mark holds no messages
    base, rows, last_us = map(int, words)
    size = int(headers.get("Nats-Msg-Size", "0"))
    name, content = headers.get("Nats-Msg-Id"), headers.get(CONTENT, "")
    return Outline(message.metadata.sequence.stream, base, rows, size, last_us, name, content)
