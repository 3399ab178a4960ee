"""The registry in a bucket of NATS JetStream: ``nats://user:password@h1:4222,h2:4222/bucket?replicas=3``.

A row is the last message of its key, and its version is that message's sequence in the stream, which is never used
twice. A swap is a publish on the condition that the last sequence of the key is the expected one; several rows go
together in an atomic batch. A deleted or expired key has a marker with a sequence of its own for a while; to create
the row then is to replace the marker.

Each write is stamped with a random number: when its answer is lost, the row itself tells whose it is.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from pxrs.clients.address import parse
from pxrs.clients.nats import Client, NotDoneInTime, patiently
from pxrs.clients.nats_address import PORT, address_of
from pxrs.clock import SystemClock
from pxrs.errors import BadUrl, Closed, Refused, Unavailable
from pxrs.settings import Settings
from pxrs.stores.base import Guarantee, Outcome, Row, Store, Swap, unknown
from pxrs.stores.nats_bucket import Bucket
from pxrs.stores.nats_swaps import Swapper
from pxrs.stores.nats_watch import Watch

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
        _open_stores.add(self)

    def _start(self) -> None:
        """Everything that belongs to this process alone; a forked child starts with its own."""
        self._lock = threading.Lock()
        self._watches: dict[str, Watch] = {}

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
                self._watches[prefix] = Watch(self._bucket, prefix, self._seconds)
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


_open_stores: weakref.WeakSet[NatsStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_open_stores):
        store._start()


os.register_at_fork(after_in_child=_after_fork)
