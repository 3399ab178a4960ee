"""A partition's thread whose handler returns output for a sink: written aside, then published by the commit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pyarrow as pa

from pxrs.errors import (
    BadCheckpoint,
    Closed,
    Fenced,
    HandlerFailed,
    OutOfRange,
    PxrsError,
    Refused,
    StopConsuming,
    Unavailable,
)
from pxrs.model import Batch, Grant, Range
from pxrs.rules.addressing import Reader, own_rows
from pxrs.rules.policies import PROOF_ROWS, is_proved, needs_proof
from pxrs.runtime.batches.commit import (
    ClaimedPartition,
    commit_ends,
    discard_quietly,
    recover_claimed,
    store_start,
    would_take,
)
from pxrs.runtime.consumer.job import Job
from pxrs.runtime.consumer.worker import Worker
from pxrs.runtime.delivery import HandlerCall
from pxrs.runtime.failures.error_summary import error_text
from pxrs.runtime.failures.parking import refuses_message
from pxrs.runtime.ports.sink import nothing_to_publish
from pxrs.runtime.registry.registry import Changed, CommitRequest

logger = logging.getLogger("pxrs.consumer")


class _NotTaken(PxrsError):
    """The sink does not take what came of these messages, because of what it is."""


class _Rewound(Exception):
    """The position went back to what is stored: what was read behind it does not count."""


class SinkWorker(Worker):
    """The member never stores this worker's positions by itself: each goes with the output that was made up to it.

    A sink that fails holds the partition where it is (``_flush``). One that refuses the output of some message gets
    the messages one by one, and that one is put aside (``_sift``).
    """

    def __init__(
        self,
        job: Job,
        grant: Grant,
        checkpoint: int | None,
        paused: bool,
        before: Sequence[threading.Thread],
        note: str,
    ) -> None:
        super().__init__(job, grant, checkpoint, paused, before)
        assert job.sink is not None
        self._sink = job.sink
        self._note = note
        self._outputs: list[pa.RecordBatch] = []
        self._stored: int | None = None  # until what the last owner left is shown
        self._passed_stored = 0  # of the messages below it, those for other groups
        self._unshown: tuple[str, int] | None = None  # a note that is committed and not published, and its end
        self._number = 0
        self._lost = False
        self._alone = False

    @property
    def committable(self) -> int | None:
        return self._stored

    def lose(self) -> None:
        self._lost = True
        super().lose()

    def hasten(self) -> None:
        """Store soon what the policy would store later."""
        self._tell_at = 0.0
        self.nudge()

    def _begin(self) -> None:
        job = self._job
        claim = ClaimedPartition(job.log.identity, job.group, self.grant, self._note, self._start)
        try:
            recover_claimed(self._sink, self._submit, claim)
        except Fenced:  # it has gone to another member before this one could begin
            self.lose()
            return
        super()._begin()
        self._stored = self.position

    def _start(self) -> int:
        return self._job.start_at(self.grant.partition) if self._checkpoint is None else self._checkpoint

    def _loop(self) -> None:
        while not self._halt:
            try:
                super()._loop()
            except _Rewound:
                continue

    def _keep(self, output: Any) -> None:
        if output is None:
            return
        if not isinstance(output, pa.RecordBatch | pa.Table):
            # A mistake in the program, not in a message: it must not fill the dead letters.
            kind = type(output).__name__
            self._job.link.fail(
                HandlerFailed(f"the handler returned a {kind}; with a sink: Arrow batch, table or None")
            )
            raise StopConsuming
        self._outputs += output.to_batches() if isinstance(output, pa.Table) else [output]

    def _tell(self) -> None:
        self._flush()
        super()._tell()

    def _end(self) -> None:
        try:
            if self._is_behind:
                self._store()
        except Exception as error:  # the partition must be handed over all the same, at its last stored position
            text = "partition %d is given up without its last output: %s"
            logger.error(text, self.grant.partition, error_text(error))
        finally:
            super()._end()

    # ---- storing --------------------------------------------------------------------------------------------------

    @property
    def _is_behind(self) -> bool:
        return not self._lost and self._stored is not None and self.position != self._stored

    def _flush(self) -> None:
        """Everything up to the position: aside, committed, published. As long as that fails the partition waits."""
        while self._is_behind:
            try:
                self._store()
            except _NotTaken as error:
                if self._alone:
                    raise
                self._sift(error)
            except Exception as error:
                self.busy_since = None
                self._parking.wait(error)
            if self._halt:
                return  # ``_end`` tries once more; the next owner does the rest
        self._parking.end()

    def _store(self) -> None:
        if self._unshown is None:
            self._commit()
        if self._unshown is not None:
            note, end = self._unshown
            self._sink.publish(note)
            self._stored, self._outputs, self._unshown = end, [], None
            self._passed_stored = self._tally.passed_over

    def _commit(self) -> None:
        assert self._stored is not None and self.position is not None
        batch = self._new_batch(self._stored, self.position)
        note = self._stage(batch)
        if note is None:
            return
        try:
            outcome = commit_ends(self._submit, self._sink, batch, note, lambda: not self._lost, threading.Event())
        except (Refused, HandlerFailed) as error:
            if isinstance(error, BadCheckpoint):
                raise
            discard_quietly(self._sink, batch)  # the database has rolled back, and says why
            raise (_NotTaken(str(error)) if refuses_message(error) else error) from error
        except BaseException:  # committed perhaps: the next owner finds the note, or not; this one must not go on
            self._halt = self._lost = True
            raise
        if outcome.committed:
            self._unshown = note, self.position
        elif outcome.refused:
            discard_quietly(self._sink, batch)
            self._ask_whose(next(iter(outcome.refused.values())))
        else:
            self.lose()

    def _stage(self, batch: Batch) -> str | None:
        """The note to commit; None if a new owner has cleared the output away."""
        try:
            note = self._sink.stage(batch, self._outputs) if self._outputs else ""
        except Fenced as error:
            self._ask_whose(error)
            return None
        except Exception as error:
            discard_quietly(self._sink, batch)
            if self._is_refusal(error):
                raise _NotTaken(str(error)) from error
            raise
        self._job.sink_took = self._job.sink_took or bool(note)
        return note or nothing_to_publish(batch)

    def _ask_whose(self, error: PxrsError) -> None:
        """The sink says that there is a new owner: if the registry knows of none, output was deleted. Then it waits."""
        trouble = store_start(self._submit, self.grant, self._stored or 0)
        if isinstance(trouble, Fenced):
            self.lose()
        else:
            raise trouble or Unavailable(f"{error}; the registry knows no new owner: was it deleted? It is made again")

    def _is_refusal(self, error: Exception) -> bool:
        """Whether a message is to blame. A sink that has taken nothing yet may refuse all, so no message is."""
        return refuses_message(error) and (not needs_proof(error) or self._is_proved())

    def _is_proved(self) -> bool:
        """Whether the sink takes anything of this consumer. If it has not yet, some of the next messages are tried."""
        with suppress(Exception):  # what cannot be read or tried proves nothing
            self._job.sink_took = is_proved(self._job.sink_took, map(self._would_take, self._next_singles()))
        return self._job.sink_took

    def _next_singles(self) -> Iterator[pa.RecordBatch]:
        """The first messages that are not stored, each alone. A read may return less than it is asked for."""
        job, first = self._job, self._stored or 0
        end, reader = first + PROOF_ROWS, Reader(job.log.identity.id, job.group)
        while first < end and (batch := job.log.read(self.grant.partition, first, end - first)) is not None:
            first += batch.num_rows
            own = own_rows(batch, reader)
            yield from (own.slice(row, 1) for row in range(own.num_rows))

    def _would_take(self, single: pa.RecordBatch) -> bool:
        """Stage the output of one message, and discard it."""

        def made(_: Batch) -> list[Any]:
            output = self._job.handler(single, self._context)
            return output.to_batches() if isinstance(output, pa.Table) else [output]

        offset = single.column("offset")[0].as_py()
        return would_take(self._sink, self._new_batch(offset, offset + 1), made)

    def _new_batch(self, start: int, end: int) -> Batch:
        self._number += 1
        identity, grant = self._job.log.identity, self.grant
        part = Range(grant.partition, start, end, grant.epoch)
        # All partitions of a member count for themselves: the epoch keeps their names apart.
        number = self._number * 100_000 + grant.partition
        return Batch(identity.name, identity.id, self._job.group, grant.owner, number, (part,), grant.epoch)

    def _submit(self, request: CommitRequest) -> Future[Changed]:
        outcome = self._job.link.submit(request)
        if outcome is None:
            raise Closed("the consumer is gone")
        return outcome

    # ---- output that the sink does not take ------------------------------------------------------------------------

    def _sift(self, error: _NotTaken) -> None:
        """Process again what is not stored, message by message, each stored alone; raises if it cannot be finished."""
        assert self.position is not None and self._stored is not None
        end, self.position, self._outputs, self._alone = self.position, self._stored, [], True
        self._tally.passed_over = self._passed_stored
        try:
            while self.position < end and self._sift_some(self.position, end, error):
                pass
        finally:
            self._alone = False
        if self.position < end:
            raise _Rewound

    def _sift_some(self, first: int, end: int, error: _NotTaken) -> bool:
        """Some of the messages that are this group's. False: it cannot go on here."""
        try:
            batch = self._job.log.read(self.grant.partition, first, end - first)
        except OutOfRange:  # deleted meanwhile: who reads next says what becomes of it
            return False
        except Exception as trouble:
            self._parking.wait(trouble)
            return not self._halt
        if batch is None:
            return False
        own: pa.RecordBatch = self._own(batch)
        first = self.position or 0
        return not own.num_rows or self._rescue_one_by_one(own, HandlerCall(own, first, first + own.num_rows), error)

    def _try_again(self, call: HandlerCall, attempt: int) -> BaseException | None:
        found = super()._try_again(call, attempt)
        if not self._alone or found is not None:
            return found
        self.position = call.end
        try:
            self._flush()
        except _NotTaken as error:
            self.position, self._outputs = call.start, []
            return error.__cause__
        return None
