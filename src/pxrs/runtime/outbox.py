"""The producer's buffer and the thread that empties it: bounded, in order, retried with the same stamps."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Mapping

from pxrs.clock import Clock
from pxrs.errors import Closed, Full, PxrsError, Refused, Unavailable
from pxrs.logs.base import Log
from pxrs.runtime.parcels import CLOCK_EVERY, Extras, Packer, Parcel, Receipt, SentParcel, Shipment
from pxrs.settings import Settings

logger = logging.getLogger(__name__)

ROW_BYTES = 48
"""What a message takes beside its key and value: offset, time, id, and the arrays' own offsets."""
SHIPMENT_BYTES = 16_777_216
"""When the log is slower than the senders, parcels up to this size share one append and one sync."""


class Outbox:
    """Senders put messages in, one daemon thread appends them to the log."""

    def __init__(self, log: Log, packer: Packer, settings: Settings, clock: Clock) -> None:
        self._log = log
        self._packer = packer
        self._settings = settings
        self._clock = clock
        self._wall = clock.wall
        self._limit = settings.buffer_bytes
        self._full = settings.batch_bytes
        self._last_row = settings.batch_rows - 1
        self._buffered = 0
        self._open: SentParcel | None = None
        self._ready: deque[Parcel] = deque()
        self._under_way: list[Parcel] = []
        self._last: Parcel | None = None
        self._stopping = False
        self.failure: BaseException | None = None
        self._new_locks()
        self._thread = threading.Thread(target=self._run, name="pxrs-producer", daemon=True)
        self._thread.start()
        _outboxes.add(self)

    def _new_locks(self) -> None:
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)

    # --- the senders' side

    def put(self, key: bytes | None, value: bytes, extras: Extras | None) -> Receipt:
        size = len(value) + ROW_BYTES if key is None else len(value) + len(key) + ROW_BYTES
        if extras is not None:
            size += extras.size
        with self._lock:
            if self._stopping or self._buffered + size > self._limit:
                self._wait_for_room(size)
            parcel = self._open
            if parcel is None:
                parcel = self._open_parcel()
            row = len(parcel.values)
            parcel.keys.append(key)
            parcel.values.append(value)
            if not row % CLOCK_EVERY:
                parcel.times.append(self._wall())
            if extras is not None:
                parcel.extras[row] = extras
            parcel.size += size
            self._buffered += size
            if row >= self._last_row or parcel.size >= self._full:
                self._close_parcel()
        return Receipt((parcel, row))

    def put_parcel(self, parcel: Parcel) -> None:
        with self._lock:
            if self._stopping or self._buffered + parcel.size > self._limit:
                self._wait_for_room(parcel.size)
            self._close_parcel()  # what was sent before goes before
            self._buffered += parcel.size
            self._queue(parcel)

    def _open_parcel(self) -> SentParcel:
        due = self._clock.monotonic() + self._settings.linger_ms / 1000
        parcel = self._open = SentParcel(self.hurry, due)
        self._last = parcel
        self._work.notify()
        return parcel

    def _close_parcel(self) -> None:
        if self._open is not None:
            parcel, self._open = self._open, None
            self._queue(parcel)

    def _queue(self, parcel: Parcel) -> None:
        self._ready.append(parcel)
        self._last = parcel
        self._work.notify()

    def _wait_for_room(self, size: int) -> None:
        self._refuse_if_stopped()
        if size > self._limit:
            raise Refused(f"a message of {size} bytes does not fit into buffer_bytes = {self._limit}")
        self._close_parcel()
        seconds = self._settings.send_timeout_ms / 1000
        free = self._room.wait_for(lambda: self._stopping or self._buffered + size <= self._limit, seconds)
        self._refuse_if_stopped()
        if not free:
            raise Full(f"{self._buffered} bytes still wait for the log after {seconds:g} s: nothing was sent")

    def _refuse_if_stopped(self) -> None:
        if self.failure is not None:
            raise Closed(f"this producer has stopped: {self.failure}") from self.failure
        if self._stopping:
            raise Closed("this producer is closed")

    def hurry(self, parcel: Parcel) -> None:
        """Somebody waits for this parcel: do not let it linger."""
        with self._lock:
            if self._open is parcel:
                self._close_parcel()

    def flush(self, timeout: float | None) -> None:
        """Wait until all that was put in before is durable."""
        last = self._last
        if last is not None:
            last.wait(timeout)
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        """No more messages; the thread ends when the buffer is empty. Does not wait."""
        with self._lock:
            self._close_parcel()
            self._stopping = True
            self._work.notify()
            self._room.notify_all()

    def join(self) -> None:
        self._thread.join()

    # --- the thread's side

    def _run(self) -> None:
        while parcels := self._take():
            try:
                self._ship(parcels)
            except Exception as error:
                self._fail(error)
                return

    def _take(self) -> list[Parcel]:
        """The parcels to append next, in order; none when it is time to end."""
        with self._lock:
            while not self._ready:
                if self._stopping:
                    return []
                self._linger()
            self._under_way = [self._ready.popleft()]
            size = self._under_way[0].size
            while self._ready and size + self._ready[0].size <= SHIPMENT_BYTES:
                size += self._ready[0].size
                self._under_way.append(self._ready.popleft())
            return self._under_way

    def _linger(self) -> None:
        if self._open is None:
            self._work.wait()
        elif (rest := self._open.due - self._clock.monotonic()) > 0:
            self._work.wait(rest)
        else:
            self._close_parcel()

    def _ship(self, parcels: list[Parcel]) -> None:
        shipment = self._packer.pack(parcels)
        shipment.settle(self._append(shipment))
        with self._lock:
            self._under_way = []
            self._buffered -= sum(parcel.size for parcel in parcels)
            self._room.notify_all()

    def _append(self, shipment: Shipment) -> Mapping[int, int]:
        """Append, again and again while the log is unavailable, for as long as a sender would wait."""
        deadline = self._clock.monotonic() + self._settings.send_timeout_ms / 1000
        pause_ms = self._settings.backoff_ms
        while True:
            try:
                return self._log.append(shipment.batches, shipment.stamps)
            except Unavailable as error:
                if self._clock.monotonic() >= deadline:
                    raise
                logger.warning("an append failed and is tried again in %d ms: %s", pause_ms, error)
            threading.Event().wait(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, self._settings.backoff_max_ms)

    def _fail(self, error: BaseException) -> None:
        """One lost parcel would break the order of those behind it: all fail, and nothing more is taken."""
        if not isinstance(error, PxrsError):
            logger.error("a producer's thread failed", exc_info=error)
        with self._lock:
            self._close_parcel()
            lost = [*self._under_way, *self._ready]
            self._ready.clear()
            self.failure, self._stopping = error, True
            self._buffered = 0
            self._room.notify_all()
        for parcel in lost:
            parcel.fail(error)

    def abandon(self) -> None:
        """In a forked child: the thread and the buffer are the parent's, who will send what is in it."""
        self._new_locks()
        self._stopping = True
        self.failure = Closed(f"this producer belongs to the parent process {os.getppid()}: open one in the child")
        for parcel in [*self._under_way, *self._ready, *([self._open] if self._open else [])]:
            parcel.finished = threading.Event()  # the old one's lock may be held for ever
            parcel.fail(self.failure)


_outboxes: weakref.WeakSet[Outbox] = weakref.WeakSet()


def _after_fork() -> None:
    for outbox in list(_outboxes):
        outbox.abandon()


os.register_at_fork(after_in_child=_after_fork)
