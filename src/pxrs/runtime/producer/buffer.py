"""The producer's buffer and the thread that empties it: bounded, in order, retried with the same stamps."""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from pxrs.errors import Closed, Full, PxrsError, Refused
from pxrs.io.clock import Clock, SystemClock
from pxrs.io.fork import renew_in_child
from pxrs.io.process_exit import Stage, at_exit
from pxrs.io.signals import Latch, Nudge, join
from pxrs.logs.base import Log
from pxrs.logs.message_size import too_large
from pxrs.runtime.producer.packing import (
    ROW_BYTES,
    Extras,
    Handful,
    Packer,
    PendingBatch,
    Receipt,
    SentParcel,
    Shipment,
)
from pxrs.runtime.producer.retry import patiently
from pxrs.settings import Settings

logger = logging.getLogger(__name__)

SMALL = 1_024
"""A message up to this size need not be counted at once..."""
UNCOUNTED = 1_023
"""...but after this many of them."""
takes_small = True
"""The switch of ``Buffer.put_small`` (ADR 0043). The log benchmark turns it off to show its worth."""
SHIPMENT_BYTES = 16_777_216
"""If the log is slower than the senders, parcels up to this size share one append and one sync."""


class Buffer:
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
        self._largest = log.largest_message
        self._buffered = 0
        self.open: SentParcel | None = None
        self._ready: deque[PendingBatch] = deque()
        self._under_way: list[PendingBatch] = []
        self._last: PendingBatch | None = None
        self._stopping = False
        self._dropped = False
        self._ended = False
        self.stored = 0
        """The number of durable messages, in the order in which they were put in."""
        self._lost = 0
        self.failure: BaseException | None = None
        self.given_up = threading.Event()
        """Set: what the log does not take at once is not tried again. Setting it is safe in a signal handler."""
        self._new_locks()
        self._thread = threading.Thread(target=self._run, name="pxrs-producer", daemon=True)
        self._thread.start()
        _buffers.add(self)
        renew_in_child(self, Buffer.abandon)

    def _new_locks(self) -> None:
        self._lock = threading.Lock()
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self._work = Nudge()
        self._room = threading.Condition(self._lock)

    # --- the senders' side

    def put_small(self, key: Any, value: Any) -> Receipt | None:
        """Put in one small message without counting its bytes; None where ``put`` has to look at it.

        The short way of nearly every message (ADR 0043), so nothing is in it that it does not need: text that is ASCII
        is stored as it is; a ``with``, or to look up what is called in the moment of the call, would cost a tenth.
        """
        kind = key.__class__
        if (
            not takes_small
            or value.__class__ is not bytes
            or len(value) > SMALL
            or not (key is None or ((kind is bytes or (kind is str and key.isascii())) and len(key) <= SMALL))
        ):
            return None
        acquire, release = self.acquire, self.release
        acquire()
        try:
            parcel = self.open
            if parcel is None:
                return None
            values = parcel.values
            row = len(values)
            if row >= parcel.look:
                return None
            parcel.keys.append(key)
            values.append(value)
        finally:
            release()
        receipt = Receipt()
        receipt.parcel = parcel
        receipt.row = row
        return receipt

    def put(self, key: str | bytes | None, value: bytes, extras: Extras | None) -> Receipt:
        """Put in one message, and count those that ``put_small`` has put in since the last one was counted."""
        size = len(value) + len(key or b"") + ROW_BYTES + (0 if extras is None else extras.size)
        if self._largest is not None and size - ROW_BYTES > self._largest:
            raise too_large(size - ROW_BYTES, self._largest)
        with self._lock:
            parcel = self.open
            if parcel is None or parcel.count() + size > parcel.room:
                parcel = self._open_parcel(size)
            row = parcel.add(key, value, extras, self._wall())
            if parcel.count() >= self._full or row >= self._last_row:
                self._close_parcel()
            else:
                parcel.look = min(row + 1 + self._uncounted(parcel, row + 1), self._last_row)
        receipt = Receipt()
        receipt.parcel, receipt.row = parcel, row
        return receipt

    def _uncounted(self, parcel: SentParcel, rows: int) -> int:
        """The number of small messages that may be put in before they are counted: the buffer never overflows, and the
        parcel gets its size if they are like those before them. None where small is too large.
        """
        if self._largest is not None and self._largest < 2 * SMALL:
            return 0
        fit = (parcel.room - parcel.size) // (2 * SMALL + ROW_BYTES)
        wanted = (self._full - parcel.size) * rows // parcel.size
        return min(fit, wanted, UNCOUNTED)

    def put_parcel(self, parcel: PendingBatch) -> None:
        with self._lock:
            if self._stopping or self._filled() + parcel.size > self._limit:
                self._wait_for_room(parcel.size)
            self._close_parcel()  # what was sent before goes before
            self._queue(parcel)

    def _open_parcel(self, size: int) -> SentParcel:
        """The open parcel, or a new one, with room for at least this much."""
        if self._stopping or self._filled() + size > self._limit:
            self._wait_for_room(size)
        if self.open is None:
            due = self._clock.monotonic() + self._settings.linger_ms / 1000
            self._last = self.open = SentParcel(self.flush_now, due)
            self._work.set()
        self.open.room = self._limit - self._buffered
        return self.open

    def _filled(self) -> int:
        """The bytes that wait for the log."""
        return self._buffered if self.open is None else self._buffered + self.open.count()

    def _close_parcel(self) -> None:
        if self.open is not None:
            parcel, self.open = self.open, None
            self._queue(parcel)

    def _queue(self, parcel: PendingBatch) -> None:
        self._buffered += parcel.count()
        self._ready.append(parcel)
        self._last = parcel
        self._work.set()

    def _wait_for_room(self, size: int) -> None:
        self._refuse_if_stopped()
        if size > self._limit:
            raise Refused(f"a message of {size} bytes does not fit into buffer_bytes = {self._limit}")
        self._close_parcel()
        seconds = self._settings.send_timeout_ms / 1000
        free = self._room.wait_for(lambda: self._stopping or self._filled() + size <= self._limit, seconds)
        self._refuse_if_stopped()
        if not free:
            raise Full(f"{self._filled()} bytes still wait for the log after {seconds:g} s: nothing was sent")

    def _refuse_if_stopped(self) -> None:
        if self.failure is not None:
            raise Closed(f"this producer has stopped: {self.failure}") from self.failure
        if self._stopping:
            raise Closed("this producer is closed")

    def flush_now(self, parcel: PendingBatch) -> None:
        """Write this parcel at once: somebody waits for it."""
        with self._lock:
            if self.open is parcel:
                self._close_parcel()

    def flush(self, timeout: float | None) -> None:
        """Wait until all that was put in before is durable."""
        last = self._last
        if last is not None:
            last.wait(timeout)
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        """Take no more messages; the thread ends when the buffer is empty. Does not wait."""
        with self._lock:
            self._close_parcel()
            self._stopping = True
            self._work.set()
            self._room.notify_all()

    def drop(self) -> None:
        """Let the thread empty the buffer and end: nobody can put anything in any more. Without any lock, since the
        garbage collector may call this in a thread that holds one.
        """
        self._dropped = True
        if self._lost:
            self._tell_loss()
        self._work.set()

    def end(self) -> None:
        """Take no more messages, and wait until all are durable, or have failed; ``failure`` says which."""
        self.stop()
        join(self._thread)
        self._ended = True  # and the caller of this gets an error for what is lost

    def end_of(self, log: Log) -> None:
        """``end``, if it is a buffer of this log."""
        if self._log is log:
            self.end()

    def end_with_process(self, stopped_at: float) -> str:
        """Wait after ``stop``, but not for longer than ``send_timeout_ms``; returns a text about messages that are lost
        by this, if there are any.
        """
        seconds = self._settings.send_timeout_ms / 1000
        with suppress(KeyboardInterrupt):  # somebody does not want to wait
            self._thread.join(max(0.0, stopped_at + seconds - SystemClock.monotonic()))
        if self._lost:
            return "" if self._ended or self._dropped else self._loss()
        waiting = sum(parcel.rows for parcel in [*self._under_way, *self._ready])
        why = "the program ended before the log took them"
        return f"{_messages(waiting)} for queue {self._name!r} may not be stored: {why}" if waiting else ""

    @property
    def _name(self) -> str:
        return self._log.identity.name

    def _loss(self) -> str:
        return f"{_messages(self._lost)} for queue {self._name!r} could not be stored: {self.failure}"

    def _tell_loss(self) -> None:
        logger.error("%s (its producer was not closed)", self._loss())

    # --- the thread's side

    def _run(self) -> None:
        """Pack and append; under load the next shipment is packed while this one is on its way to the disk."""
        relay = AppendThread(self._ship, "pxrs-append")
        try:
            while parcels := self._take():
                shipment = self._packer.pack_any(parcels)
                relay.wait()
                if self._ready:
                    relay.start(shipment)
                else:
                    self._ship(shipment)
        except Exception as error:
            relay.wait()  # what goes before it may well arrive
            self._fail(error)
        finally:
            relay.wait()
            relay.end()

    def _take(self) -> list[PendingBatch]:
        """The parcels to append next, in order; none when it is time to end."""
        while True:
            with self._lock:
                if self._dropped:
                    self._close_parcel()
                    self._stopping = True
                rest = self._until_due()
                if self._ready or self._stopping:
                    return self._next()
            self._work.wait(rest)

    def _next(self) -> list[PendingBatch]:
        taken: list[PendingBatch] = []
        size = 0
        while self._ready and (not taken or size + self._ready[0].size <= SHIPMENT_BYTES):
            size += self._ready[0].size
            taken.append(self._ready.popleft())
        self._under_way += taken
        return taken

    def _until_due(self) -> float | None:
        """The time for which the open parcel may still linger, if there is one; it is closed when that is over."""
        if self._ready or self.open is None:
            return None
        rest = self.open.due - self._clock.monotonic()
        if rest <= 0:
            self._close_parcel()
        return rest

    def _ship(self, shipment: Shipment | Handful) -> None:
        if self.failure is not None:  # of the shipment before this one
            return
        try:
            append = partial(shipment.append_to, self._log)
            firsts = patiently(append, self._settings, self._clock, given_up=self.given_up)
            shipment.settle(firsts)
        except Exception as error:
            self._fail(error)
            return
        with self._lock:
            del self._under_way[: len(shipment.parcels)]
            self.stored += sum(parcel.rows for parcel in shipment.parcels)
            self._buffered -= sum(parcel.size for parcel in shipment.parcels)
            self._room.notify_all()

    def _fail(self, error: BaseException) -> None:
        """Fail all parcels: one that is lost would break the order of those behind it. Nothing more is taken."""
        if not isinstance(error, PxrsError):
            logger.error("a producer's thread failed", exc_info=error)
        with self._lock:
            self._close_parcel()
            lost = [*self._under_way, *self._ready]
            self._lost += sum(parcel.rows for parcel in lost)
            self._under_way, self._stopping, self.failure = [], True, error
            self._ready.clear()
            self._work.set()
            self._buffered = 0
            self._room.notify_all()
        for parcel in lost:
            parcel.fail(error)
        if self._dropped:
            self._tell_loss()

    def abandon(self) -> None:
        """In a forked child: the thread and the buffer are the parent's, who will send what is in it."""
        self._new_locks()
        self._stopping = True
        self.failure = Closed(f"this producer belongs to the parent process {os.getppid()}: open one in the child")
        held, self.open = self.open, None
        for parcel in [*self._under_way, *self._ready, *([held] if held else [])]:
            parcel.finished = Latch()  # the old one's lock may be held forever
            parcel.fail(self.failure)
        self._under_way = []
        self._ready.clear()
        self._lost = 0


def _messages(count: int) -> str:
    return f"{count} message{'' if count == 1 else 's'}"


_buffers: weakref.WeakSet[Buffer] = weakref.WeakSet()


def end_buffers(log: Log) -> None:
    """Wait until all that was sent to this log is stored, or has failed: before the log is closed."""
    for buffer in _all_buffers():
        buffer.end_of(log)


def _all_buffers() -> list[Buffer]:
    while True:
        with suppress(RuntimeError):  # another thread has just made one
            return list(_buffers)


@at_exit(Stage.SEND)
def _send_the_rest() -> list[threading.Thread]:
    """Store the messages of producers that nobody has closed; a line on stderr says what could not be stored."""
    buffers, now = _all_buffers(), SystemClock.monotonic()
    for buffer in buffers:
        buffer.stop()  # all at once: they need not wait for each other
    for said in filter(None, [buffer.end_with_process(now) for buffer in buffers]):
        sys.stderr.write(f"pxrs: {said}\n")
    return []


# ---- the thread that appends ----------------------------------------------------------------------------------------


_Item = TypeVar("_Item")


class AppendThread(Generic[_Item]):
    """Works on one item at a time, in a thread that is made when it is first needed. ``work`` must not raise."""

    def __init__(self, work: Callable[[_Item], object], name: str) -> None:
        self._work = work
        self._name = name
        self._inbox: SimpleQueue[tuple[_Item] | None] = SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None

    def start(self, item: _Item) -> None:
        """Begin with an item, after ``wait``."""
        self._idle.clear()
        if self._thread is None and not self._begin():
            self._do(item)
        else:
            self._inbox.put((item,))

    def _begin(self) -> bool:
        """Whether there is a second thread: Python may give none when the program ends."""
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def wait(self) -> None:
        """Wait until the item is done."""
        self._idle.wait()

    def end(self) -> None:
        self._inbox.put(None)

    def _run(self) -> None:
        while (given := self._inbox.get()) is not None:
            self._do(given[0])

    def _do(self, item: _Item) -> None:
        try:
            self._work(item)
        finally:
            self._idle.set()
