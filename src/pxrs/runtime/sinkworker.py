"""A partition's thread whose handler returns output for a sink: written aside, then published by the commit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pyarrow as pa

from pxrs.errors import Closed, Fenced, HandlerFailed, StopConsuming
from pxrs.model import Batch, Grant, Range
from pxrs.runtime.publishing import commit_batch
from pxrs.runtime.registry import Changed
from pxrs.runtime.worker import Job, Worker

logger = logging.getLogger("pxrs.consumer")


class SinkWorker(Worker):
    """The member never stores this worker's positions by itself: each goes with the output that was made up to it."""

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
        self._note = note
        self._outputs: list[pa.RecordBatch] = []
        self._stored = checkpoint
        self._number = 0
        self._lost = False

    @property
    def committable(self) -> int | None:
        return self._stored

    def lose(self) -> None:
        self._lost = True
        super().lose()

    def _begin(self) -> None:
        identity = self._job.log.identity
        assert self._job.sink is not None
        self._job.sink.recover(identity.name, identity.id, self._job.group, self.grant, self._note)
        super()._begin()
        self._stored = self.position

    def _keep(self, output: Any) -> None:
        if output is None:
            return
        if not isinstance(output, pa.RecordBatch | pa.Table):
            # A mistake in the program, not in a message: it must not fill the dead letters.
            kind = type(output).__name__
            self._job.fail(HandlerFailed(f"the handler returned a {kind}; with a sink: Arrow batch, table or None"))
            raise StopConsuming
        self._outputs += output.to_batches() if isinstance(output, pa.Table) else [output]

    def _tell(self) -> None:
        self._flush()
        super()._tell()

    def _end(self) -> None:
        try:
            self._flush()
        except Exception as error:  # the partition must be handed over all the same, at its last stored position
            logger.exception("the output of partition %d cannot be written", self.grant.partition)
            self._job.fail(HandlerFailed(f"output of partition {self.grant.partition}: {error}"))
        finally:
            super()._end()

    def _flush(self) -> None:
        """Everything up to the position: aside, committed, published."""
        if self._lost or self._stored is None or self.position == self._stored:
            return
        assert self.position is not None and self._job.sink is not None
        batch = self._new_batch(self._stored, self.position)
        try:
            note = self._job.sink.stage(batch, self._outputs) if self._outputs else ""
        except Fenced:  # a new owner has cleared the output away
            self._halt = self._lost = True
            return
        note = note or f'{{"batch": "{batch.name}"}}'
        try:
            outcome = commit_batch(self._submit, self._job.sink, batch, note, lambda: not self._lost, threading.Event())
        except BaseException:  # committed perhaps, and half shown: the next owner finishes it, this one must not
            self._halt = self._lost = True
            raise
        if outcome.committed:
            self._stored, self._outputs = self.position, []
        else:
            self._halt = self._lost = True

    def _new_batch(self, start: int, end: int) -> Batch:
        self._number += 1
        identity, grant = self._job.log.identity, self.grant
        part = Range(grant.partition, start, end, grant.epoch)
        # All partitions of a member count for themselves: the epoch keeps their names apart.
        number = self._number * 100_000 + grant.partition
        return Batch(identity.name, identity.id, self._job.group, grant.owner, number, (part,), grant.epoch)

    def _submit(self, *asked: Any) -> Future[Changed]:
        outcome: Future[Changed] | None = self._job.submit(*asked)
        if outcome is None:
            raise Closed("the consumer is gone")
        return outcome
