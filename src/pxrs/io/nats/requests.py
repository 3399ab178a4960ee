"""Many requests at once over one connection to NATS, and all answers to one of them. Used in the loop's thread only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import nats.errors
from nats.aio.client import Client as NatsConnection
from nats.aio.msg import Msg


class Send(NamedTuple):
    """A message to send. ``answered`` if somebody is going to answer it."""

    subject: str
    payload: bytes = b""
    headers: Mapping[str, str] | None = None
    answered: bool = True


def status_of(message: Msg) -> str | None:
    """The status that an answer without content has instead, as in "404"."""
    return (message.headers or {}).get("Status")


class _Burst:
    """The answers to requests that were sent together."""

    def __init__(self, first: int, size: int, awaited: int) -> None:
        self.first = first
        self.answers: list[Msg | None] = [None] * size
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited = awaited
        if not awaited:
            self.done.set_result(None)

    def take(self, token: int, answer: Msg) -> None:
        self.answers[token - self.first] = answer
        self._awaited -= 1
        if not self._awaited:
            self.end()

    def end(self, *_: object) -> None:
        """End it: no more answers come."""
        if not self.done.done():
            self.done.set_result(None)


class Mailbox:
    """One inbox for the answers to all requests of a connection; a number identifies each."""

    def __init__(self, live: NatsConnection) -> None:
        self._live = live
        self._inbox = ""
        self._opening = asyncio.Lock()
        self._next = 0
        self._bursts: dict[int, _Burst] = {}

    def belongs_to(self, live: NatsConnection) -> bool:
        return self._live is live

    async def ask(self, sends: Sequence[Send], lost: asyncio.Future[None], seconds: float) -> list[Msg | None]:
        """The answers, in order; None for each that has not come before the connection is lost, or the time is up."""
        if not self._inbox:
            await self._open()
        burst = _Burst(self._next, len(sends), sum(send.answered for send in sends))
        tokens = range(self._next, self._next + len(sends))
        self._next += len(sends)
        for token, send in zip(tokens, sends, strict=True):
            if send.answered:
                self._bursts[token] = burst
        lost.add_done_callback(burst.end)
        try:
            with suppress(TimeoutError, OSError, nats.errors.Error):  # what was not sent gets no answer
                async with asyncio.timeout(seconds):
                    await self._send(tokens, sends)
                    await burst.done
        finally:
            lost.remove_done_callback(burst.end)
            for token in tokens:
                self._bursts.pop(token, None)
        return burst.answers

    async def _send(self, tokens: range, sends: Sequence[Send]) -> None:
        publish = self._live.publish
        for token, send in zip(tokens, sends, strict=True):
            headers = dict(send.headers) if send.headers else None
            await publish(send.subject, send.payload, f"{self._inbox}.{token}" if send.answered else "", headers)

    async def _open(self) -> None:
        async with self._opening:
            if not self._inbox:
                inbox = self._live.new_inbox()
                await self._live.subscribe(f"{inbox}.*", cb=self._heard)
                self._inbox = inbox

    async def _heard(self, message: Msg) -> None:
        token = int(message.subject.rpartition(".")[2])
        burst = self._bursts.pop(token, None)
        if burst is not None:
            burst.take(token, message)


async def collect(live: NatsConnection, start: Callable[[str], Coroutine[Any, Any, None]], limit: int) -> list[Msg]:
    """All answers that come to a new inbox, which ``start`` gets: up to ``limit``, or to one that has a status."""
    found: list[Msg] = []
    ended = asyncio.Event()

    async def heard(message: Msg) -> None:
        found.append(message)
        if len(found) >= limit or status_of(message):
            ended.set()

    inbox = live.new_inbox()
    subscription = await live.subscribe(inbox, cb=heard)
    try:
        await start(inbox)
        await ended.wait()
    finally:
        with suppress(Exception):
            await subscription.unsubscribe()
    return found
