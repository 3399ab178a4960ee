"""Watching what changes under a prefix of a bucket, by a consumer on the server that PXRS makes and makes again.

It is a hint. Whenever something might have been missed - the consumer was deleted, the connection broke, the server
went quiet - those who wait are woken, just in case, and a new consumer goes on from then.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from concurrent.futures import Future
from contextlib import suppress

from nats.aio.msg import Msg

from pxrs.clients.nats import ApiError, status_of
from pxrs.errors import PxrsError, Unavailable
from pxrs.stores.nats_bucket import Bucket

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 4
SILENCE_SECONDS = 10.0
"""A consumer that has not even sent a heartbeat for so long is given up."""
_AGAIN_SECONDS = (0.1, 2.0)
_PULL = {"batch": 1_000, "expires": 60_000_000_000, "idle_heartbeat": HEARTBEAT_SECONDS * 1_000_000_000}
_UNUSED_NS = 30_000_000_000
_LEAVE_SECONDS = 1.0
_ALIVE, _PULL_IS_OVER = "100", "408"


class Watch:
    """One prefix, watched for all threads of a store. ``wait`` is for threads; all coroutines are for the loop."""

    def __init__(self, bucket: Bucket, prefix: str, seconds: float) -> None:
        self._bucket = bucket
        self._subject = bucket.subjects.under(prefix)
        self._seconds = seconds
        self._changed = threading.Condition()
        self._mark = 1 + secrets.randbelow(2**48)  # a mark from elsewhere, as from before a fork, is not this one
        self._ended = False
        self._tried = threading.Event()
        self._left = asyncio.Event()
        self._task: Future[None] = bucket.client.start(self._run())

    def wait(self, after: int, timeout: float) -> int:
        self._tried.wait(self._seconds)  # a mark may only be given out when changes after it are heard
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._mark != after, timeout)
            return self._mark

    def end(self, seconds: float) -> None:
        """End the waits, and the watching."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._tried.set()
        self._task.cancel()
        with suppress(Unavailable):
            self._bucket.client.run(self._left.wait(), seconds)

    def _ring(self) -> None:
        with self._changed:
            self._mark += 1
            self._changed.notify_all()

    async def _run(self) -> None:
        pause, longest = _AGAIN_SECONDS
        try:
            while True:
                try:
                    await self._follow()
                    pause = _AGAIN_SECONDS[0]
                except Exception as error:  # of whatever kind: a watch goes on as long as its store
                    logger.debug("%s: no watch under %s for now: %s", self._bucket, self._subject, error)
                    pause = min(2 * pause, longest)
                self._tried.set()
                await asyncio.sleep(pause)
        finally:
            self._left.set()

    async def _follow(self) -> None:
        """Make a consumer and listen to it, until there is a doubt that it tells everything."""
        client, heard = self._bucket.client, asyncio.Queue[Msg | None]()
        inbox = await client.new_inbox()
        stop = await client.listen(inbox, heard.put_nowait)
        stop_reconnects = client.on_reconnect(lambda: heard.put_nowait(None))
        name = f"pxrs-{secrets.token_hex(8)}"
        try:
            await self._bucket.api("CONSUMER.CREATE", self._consumer(name), self._seconds, name)
            self._ring()  # whatever has happened before is told now
            self._tried.set()
            await self._listen(name, inbox, heard)
        finally:
            stop_reconnects()
            await self._leave(name)
            await stop()

    def _consumer(self, name: str) -> dict[str, object]:
        config = {
            "name": name,
            "deliver_policy": "new",
            "ack_policy": "none",
            "filter_subject": self._subject,
            "headers_only": True,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _UNUSED_NS,
        }
        return {"stream_name": self._bucket.stream, "config": config, "action": "create"}

    async def _listen(self, name: str, inbox: str, heard: asyncio.Queue[Msg | None]) -> None:
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._bucket.stream}.{name}"
        left = 0
        while True:
            if not left:
                await self._bucket.client.ask(subject, _PULL, inbox)
                left = int(str(_PULL["batch"]))
            try:
                message = await asyncio.wait_for(heard.get(), SILENCE_SECONDS)
            except TimeoutError:
                return
            status = status_of(message) if message is not None else "reconnected"
            if status is None:
                left -= 1
                self._ring()
            elif status == _PULL_IS_OVER:
                left = 0
            elif status != _ALIVE:
                return

    async def _leave(self, name: str) -> None:
        """The server forgets an unused consumer by and by; this is only to be polite."""
        with suppress(PxrsError, ApiError):
            await self._bucket.api("CONSUMER.DELETE", None, _LEAVE_SECONDS, name)
