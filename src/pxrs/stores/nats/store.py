"""The registry in a bucket of NATS JetStream: ``nats://user:password@h1:4222,h2:4222/bucket?replicas=3``.

A row is the last message of its key, and its version is that message's sequence in the stream, which is never used
twice. A swap is a publish on the condition that the last sequence of the key is the expected one; several rows go
together in an atomic batch. A deleted or expired key has a marker with a sequence of its own for a while; to create
the row then is to replace the marker.

Each write is stamped with a random number: when its answer is lost, the row itself tells whose it is.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from nats.aio.msg import Msg

from pxrs.errors import BadUrl, Closed, PxrsError, Refused, Unavailable
from pxrs.io.address import parse
from pxrs.io.clock import SystemClock
from pxrs.io.fork import renew_in_child
from pxrs.io.nats.address import PORT, address_of
from pxrs.io.nats.client import ApiError, Client, NotDoneInTime, patiently
from pxrs.io.nats.requests import status_of
from pxrs.settings import Settings
from pxrs.stores.base import Guarantee, Outcome, Row, Store, Swap, unknown
from pxrs.stores.nats.bucket import Bucket
from pxrs.stores.nats.swaps import Swapper

T = TypeVar("T")

_BUCKET = re.compile(r"[A-Za-z0-9_-]{1,200}")
_OPEN_SECONDS = 10.0
_SLACK_SECONDS = 5.0
_STOP_SECONDS = 2.0
_AGAIN_SECONDS = 0.02
_LEAST_SECONDS = 0.1
_CLOCK = SystemClock()
_ROWS_IN_TIME, _SCANNED_ROWS = 1_000, 3_000


class NatsStore(Store):
    """A handle on the bucket; safe to use from several threads, and from a forked child."""

    guarantees: ClassVar[frozenset[Guarantee]] = frozenset(Guarantee)
    max_atomic: ClassVar[int] = 1_000
    """The server's limit for the messages of one atomic batch."""

    def __init__(self, bucket: Bucket, max_payload: int, seconds: float) -> None:
        self._bucket = bucket
        self._client = bucket.client
        self._swapper = Swapper(bucket, max_payload)
        self._seconds = seconds
        self._closed = False
        self._start()
        renew_in_child(self, NatsStore._start)

    def _start(self) -> None:
        """Everything that belongs to this process alone; a forked child starts with its own."""
        self._lock = threading.Lock()
        self._watches: dict[str, PrefixWatch] = {}

    @classmethod
    def open(cls, url: str, settings: Settings) -> NatsStore:
        address = parse(url, PORT, known=("replicas",))
        if not _BUCKET.fullmatch(address.place):
            raise BadUrl(f"{address}: write nats://host:port/bucket; a bucket has letters, digits, - and _")
        replicas = address.number("replicas", 1) if "replicas" in address.options else None
        seconds = address.timeout(settings)
        client = Client(address_of(address))
        bucket = Bucket(client, address.place)
        try:
            limit = client.run(client.max_payload(seconds), seconds + _SLACK_SECONDS)
            client.run(bucket.prepare(replicas, max(seconds, _OPEN_SECONDS)), 3 * _OPEN_SECONDS)
        except BaseException:
            client.close()
            raise
        return cls(bucket, limit, seconds)

    def __repr__(self) -> str:
        return f"NatsStore({self._bucket})"

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        wanted, seconds = list(dict.fromkeys(keys)), self._time_for(len(keys))
        found = self._ask(lambda: self._bucket.rows(wanted, seconds), seconds)
        return [found.get(key) for key in keys]

    def scan(self, prefix: str) -> list[Row]:
        seconds = self._time_for(_SCANNED_ROWS)
        return self._ask(lambda: self._bucket.scan(prefix, self._seconds), seconds)

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        seconds = self._time_for(len(swaps))
        try:
            return self._change(lambda left: self._swapper.each(swaps, left), seconds)
        except NotDoneInTime as error:
            return [unknown(str(error))] * len(swaps)

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        if len(swaps) > self.max_atomic:
            raise Refused(f"{self._bucket}: {len(swaps):,} rows in one swap; NATS takes {self.max_atomic:,}")
        seconds = self._time_for(len(swaps))
        try:
            return self._change(lambda left: self._swapper.all(swaps, left), seconds)
        except NotDoneInTime as error:
            return unknown(str(error))

    def wait(self, prefix: str, after: int, timeout: float) -> int:
        with self._lock:
            if self._closed:
                raise Closed(f"{self._bucket} was closed before this call")
            if prefix not in self._watches:
                self._watches[prefix] = PrefixWatch(self._bucket, prefix, self._seconds)
            watch = self._watches[prefix]
        return watch.wait(after, timeout)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.end(_STOP_SECONDS)
        self._client.close()

    def _time_for(self, rows: int) -> float:
        """The time-out is meant for one answer; many rows are many of them."""
        return self._seconds * (1 + rows / _ROWS_IN_TIME)

    def _ask(self, work: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        """Something that changes nothing: it is asked again until the time is up, as after a broken connection."""

        async def until_answered() -> T:
            error = Unavailable(f"{self._bucket} did not answer within {seconds:g} s")
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while True:
                        try:
                            return await work()
                        except Unavailable as found:
                            error = found
                        await asyncio.sleep(_AGAIN_SECONDS)
            raise error

        return self._run(until_answered, seconds)

    def _change(self, work: Callable[[float], Coroutine[Any, Any, T]], seconds: float) -> T:
        """Unavailable means that it was not done. Not every node knows at once who leads a new stream."""
        ends = _CLOCK.monotonic() + seconds
        return self._run(
            lambda: patiently(lambda: work(max(_LEAST_SECONDS, ends - _CLOCK.monotonic())), seconds), seconds
        )

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        if self._closed:
            raise Closed(f"{self._bucket} was closed before this call")
        # The work has time-outs of its own, and knows what they mean. This one is for a loop that stands still.
        return self._client.run(work(), 4 * seconds + _SLACK_SECONDS)


# ---- a prefix that is watched ---------------------------------------------------------------------------------------
# It is a hint. Whenever something might have been missed - the consumer was deleted, the connection broke, the server
# went quiet - those who wait are woken, just in case, and a new consumer goes on from then.


logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 4
SILENCE_SECONDS = 10.0
"""A consumer that has not even sent a heartbeat for so long is given up."""
_WATCH_AGAIN_SECONDS = (0.1, 2.0)
_PULL = {"batch": 1_000, "expires": 60_000_000_000, "idle_heartbeat": HEARTBEAT_SECONDS * 1_000_000_000}
_UNUSED_NS = 30_000_000_000
_LEAVE_SECONDS = 1.0
_ALIVE, _PULL_IS_OVER = "100", "408"


class PrefixWatch:
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
        pause, longest = _WATCH_AGAIN_SECONDS
        try:
            while True:
                try:
                    await self._follow()
                    pause = _WATCH_AGAIN_SECONDS[0]
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
