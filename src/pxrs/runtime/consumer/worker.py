"""Works one partition in one thread: replays from the checkpoint, then waits for new messages, until it is stopped.

Reading what is stored and waiting for more are one loop over the log, so the switch from the one to the other can
neither skip nor repeat a message. ``position`` is the next offset: everything below it is finished.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pyarrow as pa

from pxrs.errors import Closed, Expired, HandlerFailed, PxrsError, StopConsuming, Unavailable, Unexpected
from pxrs.io.signals import Nudge
from pxrs.logs.base import Row
from pxrs.model import Grant, Message
from pxrs.rules.addressing import Reader, own_part
from pxrs.runtime import delivery
from pxrs.runtime.consumer.job import Job
from pxrs.runtime.delivery import Context, HandlerCall
from pxrs.runtime.expired import place_in_log, tell_of_gap
from pxrs.runtime.failures.error_summary import error_stack, error_text
from pxrs.runtime.failures.parking import Parking, back_off_seconds, ends_member
from pxrs.runtime.ports.counters import Counters

logger = logging.getLogger("pxrs.consumer")

_LONGEST = 30
"""So many tries that the pause after them is ``backoff_max_ms``."""

LEAVES = (KeyboardInterrupt, SystemExit)
"""Errors of a handler that end the process. Everything else that it raises, CancelledError too, is its failure."""


class Worker:
    """One partition, from its claim to its release. All methods but ``_run`` are called by the member's thread."""

    def __init__(
        self,
        job: Job,
        grant: Grant,
        checkpoint: int | None,
        paused: bool,
        before: Sequence[threading.Thread] = (),
    ) -> None:
        self.grant = grant
        self._before = before
        self.position: int | None = checkpoint
        self.is_live = False
        self.finished = False
        self.busy_since: float | None = None
        self._tally = Counters()
        self._not_handled = 0  # of the offsets below the position
        self._job = job
        self._checkpoint = checkpoint
        self._context = Context(job.member, grant.epoch, 1)
        self._paused = paused
        self._halt = False
        self._asked = False
        self._begun = False
        self._wake_event = Nudge()
        self._parking = Parking(grant.partition, job.clock, self._wake_event, lambda: self._halt)
        self._commit_at = 0
        self._told: int | None = checkpoint
        self._tell_at = 0.0
        self.thread = threading.Thread(target=self._run, name=f"pxrs-p{grant.partition}", daemon=True)

    def begin(self) -> None:
        self.thread.start()

    def drain(self) -> None:
        """Take nothing more; ``finished`` is set when what runs has ended."""
        self._halt = self._asked = True
        self._wake_event.set()

    def lose(self) -> None:
        """The partition is somebody else's: what still runs does not count."""
        self.drain()

    def pause(self, paused: bool) -> None:
        self._paused = paused
        self._wake_event.set()

    def nudge(self) -> None:
        self._wake_event.set()

    # ---- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        unsubscribe: Callable[[], None] | None = None
        try:
            self._await_those_before()
            unsubscribe = self._job.log.subscribe(self.grant.partition, self._wake_event.set)
            self._try_to_begin()
            self._loop()
        except PxrsError as error:
            self._job.link.fail(error)
        except BaseException as error:
            # Whatever a handler, a callback or a driver raises must stop this consumer, not hide in a thread: a
            # partition whose thread has ended (sys.exit in a handler) would stay owned, with nobody working on it.
            logger.exception("partition %d stopped", self.grant.partition)
            self._job.link.fail(HandlerFailed(f"partition {self.grant.partition}: {error_text(error)}{_advice(error)}"))
        finally:
            if unsubscribe:
                unsubscribe()
            self._end()

    def _await_those_before(self) -> None:
        """Wait for the handler of an earlier claim: two handlers never run on one partition."""
        for thread in self._before:
            while thread.is_alive() and not self._halt:
                thread.join(0.05)

    def _try_to_begin(self) -> None:
        """Begin at once, also if the partition is to be given up again: its owner gets an answer. Else in the loop."""
        if any(thread.is_alive() for thread in self._before):
            return
        try:
            self._begin()
        except Exception as error:
            self.busy_since = None
            if ends_member(error):
                raise

    def _begin(self) -> None:
        self.busy_since = self._job.clock.monotonic()
        position = self._first_position()
        self._commit_at = position + self._job.settings.commit_every
        self.position = position
        tell_assigned(self._job, self.grant, position)
        self.busy_since = None
        self._begun = True

    def _first_position(self) -> int:
        try:
            start = self._job.start_at(self.grant.partition) if self._checkpoint is None else self._checkpoint
        except Unavailable:
            self._job.sight.failed()
            raise
        self._not_handled = start
        return self._placed(start)

    def _placed(self, position: int) -> int:
        try:
            placed, _ = place_in_log(self._job.log, self._job.settings, self.grant.partition, position)
        except Unavailable:
            self._job.sight.failed()
            raise
        if placed > position:
            self._tally.expired += tell_of_gap(self._job.link.report, self.grant, position, placed)
            self._not_handled += placed - position
        return placed

    @property
    def tally(self) -> Counters:
        """The counters since the start. Messages behind the position are handled: none is counted by itself."""
        handled = (self.position or 0) - self._not_handled - self._tally.passed_over if self._begun else 0
        return replace(self._tally, handled=max(0, handled))

    def _end(self) -> None:
        try:
            if self._begun:
                tell_revoked(self._job, self.grant, self.position)
        finally:
            self.finished = True
            self._job.link.wake()

    def _loop(self) -> None:
        while not self._halt:
            self._wake_event.clear()
            try:
                batch = self._next_batch()
            except Exception as error:
                self.busy_since = None
                self._parking.wait(error, until_change=True)
                continue
            if self._parking.trouble is not None:
                self._parking.end()
            if batch is not None:
                self._handle_batch(batch)
            elif not self._halt:
                self._wake_event.wait(
                    min(self._until_told(), self._job.settings.poll_ms / 1000)
                )  # a wake-up may get lost

    @property
    def trouble(self) -> PxrsError | None:
        """The reason why the partition waits. A thread that has ended unasked must not look as if all were well."""
        if self.finished and not self._asked:
            return Unexpected("its thread has ended by itself: the partition is given up, and taken again")
        return self._parking.trouble

    def _next_batch(self) -> pa.RecordBatch | list[Row] | None:
        if self._paused or self._job.clock.monotonic() >= self._job.alive_until:
            return None
        if not self._begun:
            self._begin()
        if not self._begun:  # it is another member's already
            return None
        assert self.position is not None
        try:
            read = self._job.log.read_rows if self._job.deliver == "message" else self._job.log.read
            batch = read(self.grant.partition, self.position, self._job.settings.prefetch_rows)
        except Expired:  # deleted under a slow reader
            self._advance(self._placed(self.position))
            return self._next_batch()
        except Unavailable:
            self._job.sight.failed()
            raise
        if self._job.sight.blindness.sees_nothing:
            self._job.sight.worked()
        if batch is None and not self.is_live:
            self.is_live = True
            self._job.link.wake()
        return batch

    def _own(self, batch: pa.RecordBatch | list[Row]) -> pa.RecordBatch | list[Row]:
        """The next messages for this group. What was sent again for another one is passed over, and counted."""
        if isinstance(batch, list) or batch.column("headers").null_count == batch.num_rows:  # no headers, as in most
            return batch
        passed, own = own_part(batch, Reader(self._job.log.identity.id, self._job.group))
        if passed:
            self._tally.passed_over += passed
            self._advance((self.position or 0) + passed)
        return own

    def _handle_batch(self, batch: pa.RecordBatch | list[Row]) -> None:
        began = self._job.clock.monotonic()
        try:
            handle = self._handle_messages if self._job.deliver == "message" else self._handle_calls
            handle(self._own(batch))
        finally:
            self.busy_since = None
            self._tally.handler_seconds += self._job.clock.monotonic() - began

    def _handle_messages(self, batch: pa.RecordBatch | list[Row]) -> None:
        """The way of every single message, with nothing that it does not need. Before ``limit`` nothing else is due."""
        job, clock, after, limit = self._job, self._job.clock.monotonic, self.position or 0, 0.0
        handle = delivery.bound(job.handler, self._context)
        for message in delivery.messages_of(batch, self.grant.partition):
            now = clock()
            if now >= limit:
                if now >= job.alive_until:
                    return
                if now >= self._tell_at:
                    self._tell()
                limit = min(job.alive_until, self._tell_at)
            if self._halt or self._paused:
                return
            self.busy_since = now
            after += 1
            try:
                handle(message)
            except LEAVES:
                raise
            except BaseException as error:
                if not self._rescue(batch, HandlerCall(message, after - 1, after), error):
                    return
            self.position = after
            if after >= self._commit_at:
                self._tell()

    def _handle_calls(self, batch: pa.RecordBatch) -> None:
        job = self._job
        for call in delivery.calls(batch, self.grant.partition, job.deliver, job.settings.deliver_rows):
            if not self._may_take():
                return
            self.busy_since = job.clock.monotonic()
            try:
                self._keep(job.handler(call.payload, self._context))
            except LEAVES:
                raise
            except BaseException as error:
                if not self._rescue(batch, call, error):
                    return
            self._advance(call.end)

    def _keep(self, output: Any) -> None:
        """Ignore the result of a handler; a worker with a sink writes it."""

    @property
    def committable(self) -> int | None:
        """The position that the member may store by itself."""
        return self.position

    def _advance(self, position: int) -> None:
        self.position = position
        if position >= self._commit_at or self._job.clock.monotonic() >= self._tell_at:
            self._tell()

    def _until_told(self) -> float:
        """Seconds until the member must learn of new progress; infinite if it knows everything."""
        if self.position == self._told:
            return inf
        left = self._tell_at - self._job.clock.monotonic()
        if left <= 0:
            self._tell()
        return left if left > 0 else inf

    def _tell(self) -> None:
        """Wake the member's loop, so that it commits in time: often enough, and never for each message."""
        settings = self._job.settings
        self._told = self.position
        self._commit_at = (self.position or 0) + settings.commit_every
        self._tell_at = self._job.clock.monotonic() + settings.commit_interval_ms / 1000
        self._job.link.wake()

    # ---- failures -----------------------------------------------------------------------------------------------

    def _rescue(self, batch: pa.RecordBatch, call: HandlerCall, error: BaseException) -> bool:
        """Try again, then let the policy decide. False: this thread shall stop here, the message is not done."""
        if isinstance(error, StopConsuming):
            return self._leave()
        found: BaseException | None = error
        if call.end - call.start > 1:
            return self._rescue_one_by_one(batch, call, error)
        tries = 1
        while found is not None and tries < self._job.settings.tries:
            if not self._back_off(tries):
                return False
            tries += 1
            found = self._try_again(call, tries)
            if isinstance(found, StopConsuming):
                return self._leave()
        return found is None or self._settle(batch, call, found, tries)

    def _leave(self) -> bool:
        self._halt = True
        self._job.link.stop()
        return False

    def _rescue_one_by_one(self, batch: pa.RecordBatch, call: HandlerCall, error: BaseException) -> bool:
        """Hand the messages over one by one: one bad message must not take its neighbours with it."""
        rows = call.end - call.start
        logger.warning("handler failed on %d messages, trying them one by one: %s", rows, error_text(error))
        for single in delivery.singles(batch, call, self.grant.partition, self._job.deliver):
            if not self._may_take():
                return False
            found = self._try_again(single, 1)
            if found is not None and not self._rescue(batch, single, found):
                return False
            self._advance(single.end)
        return True

    def _try_again(self, call: HandlerCall, attempt: int) -> BaseException | None:
        self._tally.retried += 1
        try:
            self._keep(self._job.handler(call.payload, self._context._replace(attempt=attempt)))
        except LEAVES:
            raise
        except BaseException as error:
            return error
        return None

    def _back_off(self, tries: int) -> bool:
        """Wait before the next try; False if the partition is to be given up meanwhile."""
        deadline = self._job.clock.monotonic() + back_off_seconds(self._job.settings, tries)
        while not self._halt and (left := deadline - self._job.clock.monotonic()) > 0:
            self._wake_event.wait(left)
            self._wake_event.clear()
        return self._may_take()

    def _may_take(self) -> bool:
        """Also a retry is work: none may begin once others could have taken the partition over."""
        return not (self._halt or self._paused or self._job.clock.monotonic() >= self._job.alive_until)

    def _settle(self, batch: pa.RecordBatch, call: HandlerCall, error: BaseException, tries: int) -> bool:
        policy, where = self._job.settings.on_failure, f"partition {self.grant.partition} offset {call.start}"
        if policy == "stop":
            failure = HandlerFailed(f"{where}: handler failed {tries} times, last with {error_text(error)}")
            failure.__cause__ = error
            self._job.link.fail(failure)
            self._halt = True
            return False
        if isinstance(error, Closed) and not self._back_off(_LONGEST):
            return False  # the program ends, and has closed first what the handler uses: no message is to blame
        if policy == "skip":
            self._tally.skipped += 1
            logger.error("skipped %s after %d tries: %s", where, tries, error_text(error))
            return True
        message = delivery.message_of(batch, call, self.grant.partition)
        if is_kept := self._put_aside(message, error, tries):
            logger.error("dead-lettered %s after %d tries: %s", where, tries, error_text(error))
        return is_kept

    def _put_aside(self, message: Message, error: BaseException, tries: int) -> bool:
        """Into the dead letters; as long as these cannot be written, the partition waits. False: it was given up."""
        stack = error_stack(error)
        while self._may_take():
            try:
                self._job.dead_letters().keep(message, error, stack, tries, self._context)
            except Exception as trouble:
                self.busy_since = None
                self._parking.wait(trouble)
                continue
            self._tally.dead_lettered += 1
            self._parking.end()
            return True
        return False


def _advice(error: BaseException) -> str:
    """Advice for sys.exit in a handler: it would end the member at this message, again and again."""
    if not isinstance(error, SystemExit):
        return ""
    return "; sys.exit in a handler ends this member: raise an exception if the message fails, StopConsuming to leave"


# ---- the consumer's own callbacks -----------------------------------------------------------------------------------


def tell_assigned(job: Job, grant: Grant, position: int) -> None:
    """A partition begins here."""
    try:
        if job.assigned:
            job.assigned(grant.partition, position, grant.epoch)
    except Exception as error:
        raise HandlerFailed(f"assigned callback, partition {grant.partition}: {error_text(error)}") from error


def tell_revoked(job: Job, grant: Grant, position: int | None) -> None:
    """A partition goes. A callback that fails must not keep it from being handed over."""
    try:
        if job.revoked:
            job.revoked(grant.partition, position, grant.epoch)
    except Exception as error:
        logger.exception("revoked callback failed for partition %d", grant.partition)
        job.link.fail(HandlerFailed(f"revoked callback, partition {grant.partition}: {error_text(error)}"))
