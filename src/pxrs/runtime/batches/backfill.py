"""Batches over a fixed stretch of a queue, outside any group: no member, no checkpoints, nothing for others to see."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from pxrs.errors import Closed, PxrsError, Unavailable
from pxrs.io.signals import wait_long
from pxrs.model import Batch, Grant, Owner, Partition
from pxrs.runtime.batches.held_partitions import HeldPartitions
from pxrs.runtime.group.meter import Meter
from pxrs.runtime.ports.events import Report
from pxrs.runtime.ports.sink import Sink
from pxrs.runtime.registry.registry import Changed, CommitRequest
from pxrs.runtime.registry.rows import Held

GROUP = "_backfill"
"""Names the dead letters and the staged output of backfills."""


class Backfill:
    """The life of a pipeline without a group: it owns every partition from the start, and every commit succeeds.

    It has what a ``Membership`` has, so that a pipeline need not know which of the two it got.
    """

    def __init__(
        self, shares: HeldPartitions, begin: Mapping[int, int], ends: Mapping[int, int], report: Report, meter: Meter
    ) -> None:
        self.owner = Owner("backfill", secrets.token_hex(16))
        self.ends: Mapping[int, int] | None = dict(ends)
        self.report = report
        self.meter = meter
        self.stopping = False
        self.ended: Callable[[], None] = lambda: None
        self.error: PxrsError | None = None
        self._shares = shares
        self._begin = {p: offset for p, offset in begin.items() if p in ends}
        self._deferred: Deferred | None = None
        self._done = threading.Event()
        self._entered = False

    def defer(self, sink: Sink | None) -> Sink | None:
        """The sink for the loop: it shows nothing before the end."""
        self._deferred = None if sink is None else Deferred(sink)
        return self._deferred

    def enter(self) -> None:
        self._entered = True

    def start(self) -> None:
        self._shares.extend(float("inf"))
        for partition, offset in self._begin.items():
            self._shares.start(Grant(partition, self.owner, 0), offset, paused=False, note="")

    def submit(self, request: CommitRequest) -> Future[Changed]:
        """Accept all commits: no other owner exists."""
        outcome: Future[Changed] = Future()
        outcome.set_result({grant.partition: Held(Partition(grant.partition), 0) for grant in request.positions})
        return outcome

    @property
    def is_over(self) -> bool:
        """Whether every partition has reached its end."""
        return all((self._shares.where(p) or 0) >= end for p, end in (self.ends or {}).items())

    def conclude(self) -> None:
        """The loop has ended: show the output if all of it is there, and none of it else."""
        try:
            if not self.is_over:
                self.fail(Closed("the backfill was stopped before its end, and has shown nothing"))
            if self._deferred is not None:
                self._deferred.publish_all() if self.error is None else self._deferred.discard_all()
        except Exception as error:
            self.fail(Unavailable(f"the output of the backfill cannot be published: {error}"))
        finally:
            self._finish()

    def _finish(self) -> None:
        self._done.set()
        self.ended()

    def request_stop(self) -> None:
        self.stopping = True
        self._shares.wake_event.set()

    def fail(self, error: PxrsError) -> None:
        self.error = self.error or error
        self.request_stop()

    def stop(self, timeout: float | None = None, own_threads: Sequence[threading.Thread] = ()) -> None:
        self.request_stop()
        if not self._entered:
            self._finish()
        elif threading.current_thread() not in own_threads and not self.wait(timeout):
            raise Unavailable(f"the backfill is still in a batch after {timeout} s")

    def kill(self) -> None:
        self._shares.halt()
        self.request_stop()

    end_with_process = kill

    def wait(self, timeout: float | None = None) -> bool:
        return wait_long(self._done.wait, timeout)

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    @property
    def state(self) -> str:
        """stopped, stopping; "" while it works."""
        return "stopped" if self._done.is_set() else "stopping" if self.stopping else ""


class Deferred:
    """A sink of which nothing is seen before all of it is there: a backfill that is cut short has shown nothing."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._notes: list[str] = []
        self._staged: list[Batch] = []

    def stage(self, batch: Batch, output: Any) -> str:
        note = self._sink.stage(batch, output)
        self._staged.append(batch)
        return note

    def publish(self, note: str) -> None:
        self._notes.append(note)

    def discard(self, batch: Batch) -> None:
        self._sink.discard(batch)

    def recover(self, queue: str, log: str, group: str, grant: Grant, note: str) -> None:
        """Recover nothing: no other member works on a backfill."""

    def publish_all(self) -> None:
        for note in self._notes:
            self._sink.publish(note)

    def discard_all(self) -> None:
        for batch in self._staged:
            self._sink.discard(batch)
