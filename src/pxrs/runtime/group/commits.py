"""Stores a member's progress in the registry: by a policy, or as commits that are handed in with an answer.

Positions that a ``Work`` reports are stored when they are due. An engine that publishes output by its commit hands the
commit in instead (``submit``, from any thread) and waits for the outcome. Both are written by the member's one
loop, so that all writes of this process to one row stay in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from math import inf
from typing import NamedTuple

from pxrs.errors import BadCheckpoint, Closed, Fenced, HandlerFailed, PxrsError, Refused, WentBack
from pxrs.model import Grant, Partition
from pxrs.rules.policies import CommitPolicy
from pxrs.rules.rebalance import Mode
from pxrs.runtime.group.work import Handle, Work
from pxrs.runtime.ports.events import Report
from pxrs.runtime.registry.registry import Changed, CommitRequest, Registry
from pxrs.runtime.registry.rows import Held
from pxrs.settings import Settings


class Submitted(NamedTuple):
    """A commit that was handed in, with its future outcome."""

    request: CommitRequest
    outcome: Future[Changed]


class Commits:
    """The committing part of one member. Only ``submit`` may be called by other threads than the loop's."""

    def __init__(
        self,
        registry: Registry,
        work: Work,
        handles: Mapping[int, Handle],
        settings: Settings,
        report: Report,
        drop: Callable[..., None],
    ) -> None:
        self.trouble: PxrsError | None = None
        self.next_due = inf
        """The time at which the progress of the last round is due. A worker with more progress wakes the loop."""
        self._registry = registry
        self._work = work
        self._handles = handles
        self._report = report
        self._drop = drop
        self._policy = CommitPolicy(settings.commit_every, settings.commit_interval_ms / 1000)
        self.submitted: deque[Submitted] = deque()
        self._closed = False

    # ---- handed in --------------------------------------------------------------------------------------------------

    def submit(self, request: CommitRequest) -> Future[Changed]:
        """Carry the request out in the loop's next round."""
        outcome: Future[Changed] = Future()
        self.submitted.append(Submitted(request, outcome))
        if self._closed:
            self.close()
        return outcome

    def serve(self, now: float) -> bool:
        """Carry out the commits that were handed in. True: something was refused, so look at the rows."""
        fenced = False
        while self.submitted:
            asked = self.submitted.popleft()
            try:
                self._doubt(asked.request.positions)
                asked.outcome.set_result(self._store(asked.request, now))
            except PxrsError as error:
                asked.outcome.set_exception(error)
                if isinstance(error, WentBack | BadCheckpoint):
                    raise
                fenced = fenced or isinstance(error, Fenced)
                self._hear(asked, error)
            except BaseException as error:
                asked.outcome.set_exception(error)
                raise
        return fenced

    def _doubt(self, positions: Mapping[Grant, int]) -> None:
        """Answer that the outcome is unknown: the caller asks again if no other answer comes."""
        for grant in positions:
            if self._holds(grant):
                self._handles[grant.partition].in_doubt = True

    def _hear(self, asked: Submitted, error: PxrsError) -> None:
        if isinstance(error, Fenced) and error.by_seek:
            return  # an operator has moved it: the row tells, when it is read again
        if isinstance(error, Refused | HandlerFailed):
            return  # of a sink that writes into the registry's own database: the registry has answered
        if isinstance(error, Fenced):
            member = next(iter(asked.request.positions)).owner.id
            self._report("refused", {"member": member, "partition": None, "error": str(error)})
        else:
            self.trouble = error

    def close(self) -> None:
        """Close: answer all that wait that nobody carries commits out from now on."""
        self._closed = True
        with suppress(IndexError):  # two threads may do this at a time
            while True:
                submitted = self.submitted.popleft()
                submitted.outcome.set_exception(Closed("this member has ended; nothing more is committed"))

    # ---- on a policy ------------------------------------------------------------------------------------------------

    def commit_due(self, now: float) -> None:
        due, self.next_due = {}, inf
        for number, handle in self._handles.items():
            position = self._news(number, handle)
            if position is None:
                continue
            if self._is_due(handle, position, now):
                due[handle.grant] = position
            else:
                self.next_due = min(self.next_due, handle.committed_at + self._policy.seconds)
        if due:
            self.commit(due, now)

    def _news(self, number: int, handle: Handle) -> int | None:
        """The position, if it is to be stored. One behind what is committed is that of output being published."""
        if handle.mode is Mode.RELEASING or handle.in_doubt:
            return None
        position = self._work.position(number)
        is_new = position is not None and (handle.committed is None or position > handle.committed)
        return position if is_new else None

    def _is_due(self, handle: Handle, position: int, now: float) -> bool:
        if handle.committed is None:
            # A start that was chosen ("latest", a time) must be written down before a crash could lose it,
            # also where it is 0: "latest" would be somewhere else next time.
            return True
        return self._policy.due(position - handle.committed, now - handle.committed_at)

    # ---- both --------------------------------------------------------------------------------------------------------

    def commit(self, positions: Mapping[Grant, int], now: float) -> Changed:
        """Store these positions, each under the epoch of the claim it was worked under, never of a later one."""
        return self._store(CommitRequest(positions), now)

    def _store(self, request: CommitRequest, now: float) -> Changed:
        held = {grant: self._handles[grant.partition] for grant in request.positions if self._holds(grant)}
        known = {grant.partition: handle.held for grant, handle in held.items() if handle.held is not None}
        results = self._registry.store_progress(request, known)
        for grant, handle in held.items():
            if request.all_or_none:  # what the rows are now has not been read
                self._stored(handle, None, request.positions[grant], now)
            else:
                self._judge(handle, results[grant.partition], request.positions[grant], now)
        return results

    def _holds(self, grant: Grant) -> bool:
        handle = self._handles.get(grant.partition)
        return handle is not None and handle.grant == grant

    def _judge(self, handle: Handle, result: Held[Partition] | PxrsError, position: int, now: float) -> None:
        if isinstance(result, WentBack | BadCheckpoint):
            raise result  # the store, or the work, is not what it should be: end loudly
        if isinstance(result, Held):
            self._stored(handle, result, position, now)
        elif isinstance(result, Fenced):
            number = handle.grant.partition
            if not result.by_seek:
                facts = {"member": handle.grant.owner.id, "partition": number, "error": str(result)}
                self._report("refused", facts)
            self._drop(number, sought=result.by_seek)
        else:
            handle.held, self.trouble = None, result

    def _stored(self, handle: Handle, held: Held[Partition] | None, position: int, now: float) -> None:
        handle.held, handle.committed, handle.committed_at, handle.in_doubt = held, position, now, False
        grant = handle.grant
        facts = {"member": grant.owner.id, "partition": grant.partition, "epoch": grant.epoch, "checkpoint": position}
        self._report("committed", facts)
