"""Hears on one connection what changes in a registry, for all waits of one driver object.

Each call that changes rows publishes its revision and the longest beginning that the changed keys have in common. From
that a wait knows, without asking the server, that its prefix was touched, or was not; where it may have been, it asks.
Publishing is a hint: what is said while nobody is subscribed is lost, so after every new subscription all waits end.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum

from redis import exceptions

from pxrs.errors import PxrsError
from pxrs.io.clock import SystemClock
from pxrs.stores.redis.client import Client, RedisConnection

REMEMBERED_CALLS = 4_096
"""What was said lately: enough for a caller that comes back to wait. For an older mark the server is asked."""
SILENCE_SECONDS = 10.0
"""After so long without a word the connection is tried."""
RETRY_SECONDS = (0.05, 1.0)
"""The first pause before a new subscription, and the longest; a subscription that lasted begins with the first."""
LOOK_EVERY_SECONDS = 0.005
"""A wait asks the server at most this often."""

Look = Callable[[bytes, int], tuple[bool, int]]
"""Whether something under a prefix has changed since a mark, and the present mark: the server's own answer."""


class _Opinion(Enum):
    CHANGED = "changed"
    QUIET = "quiet"
    UNSURE = "unsure"


class _Waiter:
    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.rung = False


class Listener:
    """The subscription of one process to one channel. Its thread starts with the first wait."""

    def __init__(self, client: Client, channel: bytes, revision: Callable[[], int], look: Look, digits: int) -> None:
        self._client = client
        self._channel = channel
        self._revision = revision
        self._look = look
        self._digits = digits
        self._clock = SystemClock()
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._line: RedisConnection | None = None
        self._closed = False
        self._waiters: set[_Waiter] = set()
        self._calls: deque[tuple[int, bytes]] = deque()
        self._subscriptions = 0
        self._since: int | None = None
        self._latest = 0

    def wait(self, prefix: bytes, mark: int, timeout: float) -> int:
        """The mark at which something under the prefix has changed; the present one after the time-out."""
        deadline = self._clock.monotonic() + timeout
        self._start()
        subscription, asked = 0, False
        while True:
            with self._news:
                subscription = subscription or self._subscriptions
                opinion, since = self._opinion(prefix, mark, subscription, asked), self._since or 0
                if opinion is _Opinion.QUIET and self._sleep(prefix, deadline):
                    continue
                if opinion is not _Opinion.UNSURE:
                    return self._mark(mark, opinion)
            changed, present = self._look(prefix, mark)
            if changed:
                return present
            # Nothing is missed since the subscription, even if the server has been emptied and counts from 1.
            asked, mark = True, max(present, since)
            self._rest(min(LOOK_EVERY_SECONDS, deadline - self._clock.monotonic()))

    def close(self) -> None:
        with self._news:
            self._closed = True
            line, thread = self._line, self._thread
            self._news.notify_all()
        if line is not None:
            line.hang_up()
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._client.timeout)

    # --- in the threads that wait

    def _start(self) -> None:
        with self._news:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, daemon=True, name="pxrs-redis-listener")
                self._thread.start()

    def _opinion(self, prefix: bytes, mark: int, subscription: int, asked: bool) -> _Opinion:
        """What the calls that were heard say about a prefix since a mark."""
        if self._since is None:
            return _Opinion.QUIET  # nothing can be said before there is a subscription
        if subscription != self._subscriptions:
            return _Opinion.CHANGED
        if mark < self._since or (mark > self._latest and not asked):
            return _Opinion.UNSURE
        touched = [common for common in self._said_after(mark) if _may_touch(common, prefix)]
        if any(common.startswith(prefix) for common in touched):
            return _Opinion.CHANGED
        return _Opinion.UNSURE if touched else _Opinion.QUIET

    def _said_after(self, mark: int) -> Iterator[bytes]:
        """What the changed keys of each later call had in common, the newest first."""
        for revision, common in reversed(self._calls):
            if revision <= mark:
                return
            yield common

    def _mark(self, mark: int, opinion: _Opinion) -> int:
        """Where the next wait goes on. Without a subscription nothing was heard, and nothing may be passed over."""
        if self._since is None:
            return mark
        return self._latest if opinion is _Opinion.CHANGED else max(mark, self._latest)

    def _sleep(self, prefix: bytes, deadline: float) -> bool:
        """Until there is news for this prefix: True; False after the time-out, or when closed."""
        waiter = _Waiter(prefix)
        self._waiters.add(waiter)
        try:
            left = max(0.0, deadline - self._clock.monotonic())
            self._news.wait_for(lambda: waiter.rung or self._closed, left)
            return waiter.rung and not self._closed
        finally:
            self._waiters.discard(waiter)

    def _rest(self, seconds: float) -> None:
        """Let that much time pass, unless it is closed."""
        with self._news:
            self._news.wait_for(lambda: self._closed, max(0.0, seconds))

    # --- in the thread that listens

    def _run(self) -> None:
        pause, longest = RETRY_SECONDS
        while not self._closed:
            began = self._clock.monotonic()
            with suppress(PxrsError, exceptions.RedisError, OSError):
                self._listen()
            self._deaf()
            if self._clock.monotonic() - began > longest:
                pause = RETRY_SECONDS[0]
            self._rest(pause)
            pause = min(2 * pause, longest)

    def _listen(self) -> None:
        """Subscribe, and hear what is said until the connection breaks."""
        line = self._client.connect()
        try:
            line.send("SUBSCRIBE", self._channel)
            line.receive()
            with self._news:
                if self._closed:
                    return
                self._line = line
            self._begin(self._revision())
            while not self._closed:
                self._hear(line)
        finally:
            self._line = None
            line.close()

    def _begin(self, revision: int) -> None:
        """From this revision on nothing is missed."""
        with self._news:
            self._subscriptions += 1
            self._since = self._latest = revision
            self._calls.clear()
            self._ring_all()

    def _hear(self, line: RedisConnection) -> None:
        if not line.can_receive(SILENCE_SECONDS):
            line.send("PING")
        kind, *_, said = line.receive()
        if kind == b"message" and said[: self._digits].isdigit():
            self._take(int(said[: self._digits]), said[self._digits :])

    def _take(self, revision: int, common: bytes) -> None:
        with self._news:
            if len(self._calls) == REMEMBERED_CALLS:
                self._since = max(self._since or 0, self._calls.popleft()[0])
            self._calls.append((revision, common))
            self._latest = max(self._latest, revision)
            for waiter in self._waiters:
                waiter.rung = waiter.rung or _may_touch(common, waiter.prefix)
            if any(waiter.rung for waiter in self._waiters):
                self._news.notify_all()

    def _deaf(self) -> None:
        with self._news:
            self._since = None
            self._ring_all()

    def _ring_all(self) -> None:
        for waiter in self._waiters:
            waiter.rung = True
        self._news.notify_all()


def _may_touch(common: bytes, prefix: bytes) -> bool:
    """Whether keys that begin with ``common`` can be under the prefix."""
    return common.startswith(prefix) or prefix.startswith(common)
