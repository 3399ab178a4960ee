"""Swaps of rows in a bucket: publishes on a condition. Coroutines, awaited in the loop of the client.

The condition is the last sequence of the key. Where a row was deleted or has expired, that is the sequence of a
marker, which nobody but the server knows: a swap that expects nothing is tried against sequence 0 first, and if that
is refused, against the marker that is read then. Any other write in between makes the condition fail again.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress

from nats.aio.msg import Msg

from pxrs.errors import PxrsError, Refused, Unavailable
from pxrs.io.clock import SystemClock
from pxrs.io.nats.client import ApiError, checked, nobody_answers
from pxrs.io.nats.requests import Send, status_of
from pxrs.stores.base import ABSENT, CONFLICT, Outcome, Swap, done, one_for_each_key, unknown
from pxrs.stores.nats.bucket import BATCH_ID, EXPECT, MARKER_SECONDS, OPERATION, REST, STAMP, TTL, Bucket

_WRONG_LAST = (10071, 10164)
_INCOMPLETE = 10176
_HEADERS = 1_024  # of the largest message: room for headers, generously
_TRIES = 8
_NO_ANSWER = "no answer came in time, or the connection broke"
_CLOCK = SystemClock()


class _Try:
    """One swap on its way."""

    def __init__(self, swap: Swap, subject: str) -> None:
        self.swap = swap
        self.subject = subject
        self.expect = swap.expect
        self.stamp = secrets.token_hex(8)
        self.outcome = unknown("it was not sent")
        self.unheard = False
        """Nobody was there to take it: it certainly was not done."""

    def send(self) -> Send:
        return self._send({STAMP: self.stamp})

    def in_batch(self, name: str, number: int, size: int) -> Send:
        """As one of the messages of an atomic batch; the server answers the last one."""
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
        """Of swaps that were refused, those which expected nothing, where there is nothing but a marker."""
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
        """Whether the batch can be tried again: nothing but markers stands where nothing is expected."""
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
    """What is sent at once: each key once. The last swap comes after all that may have to be tried twice."""
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
