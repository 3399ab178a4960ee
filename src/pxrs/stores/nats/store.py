"""The registry in a bucket of NATS JetStream: ``nats://user:password@h1:4222,h2:4222/bucket?replicas=3``.

A row is the last message of its key, and its version is that message's sequence in the stream, which is never used
twice. A swap is a publish on the condition that the last sequence of the key is the expected one; several rows go
together in an atomic batch. A deleted or expired key has a marker with a sequence of its own for a while; to create
the row then is to replace the marker.

Each write is stamped with a random number: when its answer is lost, the row itself tells whose it is.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from nats.aio.msg import Msg

from pxrs.errors import BadUrl, Closed, PxrsError, Refused, Unavailable
from pxrs.io.address import parse
from pxrs.io.clock import SystemClock
from pxrs.io.fork import renew_in_child
from pxrs.io.nats.address import PORT, address_of
from pxrs.io.nats.client import ApiError, Client, NotDoneInTime, checked, nobody_answers, patiently
from pxrs.io.nats.requests import Send, status_of
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, CONFLICT, Guarantee, Outcome, Row, Store, Swap, done, one_for_each_key, unknown
from pxrs.stores.nats.bucket import BATCH_ID, EXPECT, MARKER_SECONDS, OPERATION, REST, STAMP, TTL, Bucket, PrefixWatch

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
        # The work has time-outs of its own, and knows what they mean. This one is for a loop that hangs.
        return self._client.run(work(), 4 * seconds + _SLACK_SECONDS)


# ---- swaps: publishes on a condition ---------------------------------------------------------------------------------
# The condition is the last sequence of the key. Where a row was deleted or has expired, that is the sequence of a
# marker, which nobody but the server knows: a swap that expects nothing is tried against sequence 0 first, and if that
# is refused, against the marker that is read then. Any other write in between makes the condition fail again.


_WRONG_LAST = (10071, 10164)
_INCOMPLETE = 10176
_HEADERS = 1_024  # of the largest message: room for headers, generously
_TRIES = 8
_NO_ANSWER = "no answer came in time, or the connection broke"


class _Try:
    """One swap that is being done."""

    def __init__(self, swap: Swap, subject: str) -> None:
        self.swap = swap
        self.subject = subject
        self.expect = swap.expect
        self.stamp = secrets.token_hex(8)
        self.outcome = unknown("it was not sent")
        self.unheard = False
        """No server took the request: it certainly was not done."""

    def send(self) -> Send:
        return self._send({STAMP: self.stamp})

    def in_batch(self, name: str, number: int, size: int) -> Send:
        """The swap as one message of an atomic batch; the server answers the last one."""
        headers = {BATCH_ID: name, "Nats-Batch-Sequence": str(number + 1)}
        if number < size - 1:
            return self._send({**headers, REST: str(size - 1 - number)}, answered=False)
        return self._send({**headers, "Nats-Batch-Commit": "1"})

    def _send(self, more: Mapping[str, str], answered: bool = True) -> Send:
        headers = {EXPECT: str(self.expect), **more}
        if self.swap.value is None:
            headers |= {OPERATION: "PURGE", TTL: f"{MARKER_SECONDS}s"}
        elif self.swap.ttl_ms is not None:
            headers[TTL] = f"{max(1, -(-self.swap.ttl_ms // 1_000))}s"  # whole seconds, never less than asked for
        return Send(self.subject, self.swap.value or b"", headers, answered)

    def hear(self, answer: Msg | None) -> bool:
        """Take the answer in; False if there is none."""
        self.unheard = answer is not None and status_of(answer) == "503"
        if answer is None or self.unheard:
            self.outcome = unknown("no stream takes it" if self.unheard else _NO_ANSWER)
            return self.unheard
        try:
            sequence = int(checked(answer.data)["seq"])
        except ApiError as error:
            self.outcome = CONFLICT if error.number in _WRONG_LAST else unknown(f"{error} ({error.number})")
        else:
            self.outcome = self.done_as(sequence)
        return True

    def done_as(self, sequence: int) -> Outcome:
        return done(ABSENT if self.swap.value is None else sequence)


class Swapper:
    """Carries swaps out."""

    def __init__(self, bucket: Bucket, max_payload: int) -> None:
        self._bucket = bucket
        self._largest = max_payload - _HEADERS

    def _tries(self, swaps: Sequence[Swap]) -> list[_Try]:
        """Refused before anything is sent, if one of them cannot be stored."""
        for swap in swaps:
            if swap.value is not None and len(swap.value) > self._largest:
                raise Refused(
                    f"{self._bucket}: the row {swap.key!r} has {len(swap.value):,} bytes, and the server takes "
                    f"{self._largest:,}: raise max_payload in its configuration"
                )
        return [_Try(swap, self._bucket.subjects.of(swap.key)) for swap in swaps]

    # --- each alone

    async def each(self, swaps: Sequence[Swap], seconds: float) -> list[Outcome]:
        tries = self._tries(swaps)
        deadline = _CLOCK.monotonic() + seconds
        sent: list[_Try] = []
        lost: list[_Try] = []
        for wave in _waves(tries):
            try:
                lost = await self._wave(wave, deadline)
            except Unavailable:
                if not sent:
                    raise
                break
            sent += wave
            if lost or any(one.unheard for one in wave):
                break  # the last of them must not be seen before the others
        await self._recognise(lost, seconds / 2)
        if sent and all(one.unheard for one in sent):
            await self._bucket.refuse_if_gone(seconds)
            raise nobody_answers(self._bucket.client.address)
        return [one.outcome for one in tries]

    async def _wave(self, wave: list[_Try], deadline: float) -> list[_Try]:
        """Send them at once; those that got no answer. Unavailable only if nothing was sent."""
        lost = await self._send(wave, deadline)
        todo = await self._over_markers([one for one in wave if one.outcome == CONFLICT], deadline)
        for _ in range(_TRIES):
            if not todo:
                break
            with suppress(Unavailable):  # those are conflicts still
                lost += await self._send(todo, deadline)
            todo = await self._over_markers([one for one in todo if one.outcome == CONFLICT], deadline)
        return lost

    async def _send(self, tries: list[_Try], deadline: float) -> list[_Try]:
        """Those that got no answer."""
        sends = [one.send() for one in tries]
        answers = await self._bucket.client.burst(sends, deadline - _CLOCK.monotonic())
        return [one for one, answer in zip(tries, answers, strict=True) if not one.hear(answer)]

    async def _over_markers(self, refused: list[_Try], deadline: float) -> list[_Try]:
        """The refused swaps that expected nothing, and found nothing but a marker."""
        creating = [one for one in refused if one.swap.expect == ABSENT]
        left = deadline - _CLOCK.monotonic()
        if not creating or left <= 0:
            return []
        try:
            found = await self._bucket.last([one.swap.key for one in creating], left)
        except Unavailable:
            return []
        again = []
        for one, stored in zip(creating, found, strict=True):
            before, one.expect = one.expect, stored.version if stored else 0
            if one.expect != before and (stored is None or stored.value is None):
                again.append(one)
        return again

    async def _recognise(self, lost: list[_Try], seconds: float) -> None:
        """The answers are lost; where the last write of the row is this one, it was done."""
        if not lost:
            return
        try:
            found = await self._bucket.last([one.swap.key for one in lost], seconds)
        except PxrsError:
            return
        for one, stored in zip(lost, found, strict=True):
            if stored is not None and stored.stamp == one.stamp:
                one.outcome = one.done_as(stored.version)

    # --- all or none

    async def all(self, swaps: Sequence[Swap], seconds: float) -> Outcome:
        folded = one_for_each_key(swaps)
        if folded is None:
            return CONFLICT
        if len(folded) < 2:
            return next(iter(await self.each(folded, seconds)), done(ABSENT))
        tries = self._tries(folded)
        deadline = _CLOCK.monotonic() + seconds
        for _ in range(_TRIES):
            outcome = await self._batch(tries, deadline, seconds / 2)
            if outcome != CONFLICT or not await self._over_markers_all(tries, deadline):
                return outcome
        return CONFLICT

    async def _over_markers_all(self, tries: list[_Try], deadline: float) -> bool:
        """Whether the batch can be tried again: there are only markers where it expects nothing."""
        before = [one.expect for one in tries]
        again = await self._over_markers(tries, deadline)
        changed = [one for one, expect in zip(tries, before, strict=True) if one.expect != expect]
        return bool(changed) and again == changed

    async def _batch(self, tries: list[_Try], deadline: float, look: float) -> Outcome:
        name, size = secrets.token_hex(8), len(tries)
        sends = [one.in_batch(name, number, size) for number, one in enumerate(tries)]
        answer = (await self._bucket.client.burst(sends, deadline - _CLOCK.monotonic()))[-1]
        if answer is None:
            return await self._recognise_batch(tries, name, look)
        if status_of(answer) == "503":
            await self._bucket.refuse_if_gone(1.0)
            raise nobody_answers(self._bucket.client.address)
        try:
            return _done_together(tries, int(checked(answer.data)["seq"]))
        except ApiError as error:
            if error.number in _WRONG_LAST:
                return CONFLICT
            if error.number == _INCOMPLETE:  # a part got lost with a connection, and the server took none
                raise Unavailable(f"{self._bucket}: {error}: nothing was stored") from None
            return unknown(f"{error} ({error.number})")

    async def _recognise_batch(self, tries: list[_Try], name: str, seconds: float) -> Outcome:
        try:
            [stored] = await self._bucket.last([tries[0].swap.key], seconds)
        except PxrsError:
            stored = None
        if stored is not None and stored.stamp == name:
            return _done_together(tries, stored.version + len(tries) - 1)
        return unknown(_NO_ANSWER)


def _done_together(tries: list[_Try], last: int) -> Outcome:
    """The messages of a batch have sequences in a row."""
    first = last - len(tries) + 1
    return done(max((first + number for number, one in enumerate(tries) if one.swap.value is not None), default=ABSENT))


def _waves(tries: list[_Try]) -> list[list[_Try]]:
    """The swaps that are sent at once: each key once. The last swap comes after all that may have to be tried twice."""
    creating = any(one.swap.expect == ABSENT for one in tries[:-1])
    waves: list[list[_Try]] = [[]]
    keys: set[str] = set()
    for one in tries:
        if one.swap.key in keys or (creating and one is tries[-1]):
            waves.append([])
            keys = set()
        waves[-1].append(one)
        keys.add(one.swap.key)
    return waves
