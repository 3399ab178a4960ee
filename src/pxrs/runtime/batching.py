"""The loop of an engine that works in batches: plan, execute, write aside, commit, publish; one batch at a time.

It knows nothing of Spark: ``execute`` turns a batch into its output, whatever that is. Ownership comes from ``Shares``,
commits go through ``submit``, so the same loop serves a member of a group and a backfill that belongs to none.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pxrs.errors import (
    Closed,
    Damaged,
    Fenced,
    HandlerFailed,
    OutOfRange,
    PxrsError,
    Refused,
    StopConsuming,
    Unavailable,
)
from pxrs.model import Batch, Grant, Range
from pxrs.rules.batches import GROWTH, Pace, halves, share_out
from pxrs.runtime import delivery
from pxrs.runtime.assembly import Assembly
from pxrs.runtime.delivery import Context
from pxrs.runtime.gaps import has_expired, place_in_log, tell_of_gap
from pxrs.runtime.gist import gist
from pxrs.runtime.publishing import NobodyCommits, Outcome, commit_batch, store_start
from pxrs.runtime.shares import Share

__all__ = ["Assembly", "BatchLoop"]

logger = logging.getLogger("pxrs.pipeline")

FIRST_ROWS = 100_000
"""The first batch: large enough to be worth a Spark job, small enough for slow functions."""

_GATHER_SECONDS = 0.003
"""What is appended to several partitions is seen in one after the other. A moment later it makes one batch, not two."""


class BatchLoop:
    """Runs batches until it is told to stop. All of it happens in the thread that calls ``run``."""

    def __init__(self, assembly: Assembly) -> None:
        self._a = assembly
        settings = assembly.settings
        first = min(FIRST_ROWS, settings.max_batch_rows)
        self.pace = Pace(first, settings.target_batch_ms / 1000, settings.max_batch_rows)
        self._number = 0
        self._turn = 0
        self._watched: dict[Grant, Callable[[], None]] = {}
        self._lag = 0

    def run(self) -> None:
        """Until stopped; an error of the log, the sink or the registry is told to ``fail``."""
        try:
            while not self._a.is_stopping():
                self._step()
        except NobodyCommits:
            pass
        except PxrsError as error:
            self._a.fail(error)
        except BaseException as error:
            # Whatever a function, a sink or a driver raises (sys.exit too) must end this member, not hide in a thread.
            logger.exception("batch %d: the pipeline stops", self._number)
            self._a.fail(HandlerFailed(f"batch {self._number}: {error!r}"))
        finally:
            self._a.shares.finish()
            for forget in self._watched.values():
                forget()

    def _step(self) -> None:
        shares = self._a.shares
        shares.bell.clear()
        for share in shares.newcomers():
            shares.progressed()  # who hangs in here makes no progress either
            self._begin(share)
        self._watch()
        ranges = shares.take(self._plan())
        if ranges:
            self._work_off(ranges)
        elif self._a.is_over():
            self._a.stop()
        elif shares.bell.wait(self._idle_seconds()):
            self._a.pause.wait(_GATHER_SECONDS)

    def _idle_seconds(self) -> float:
        """Somebody rings when there is work; but a bell may get lost, and a log that is away does not ring."""
        waits = (self._a.idle_seconds, self._a.settings.poll_ms / 1000, 1.0 if self._a.shares.troubles() else None)
        return min(seconds for seconds in waits if seconds is not None)

    # ---- planning ---------------------------------------------------------------------------------------------------

    def _begin(self, share: Share) -> None:
        """A new partition: finish what its last owner left half published, then find the start."""
        a, number = self._a, share.grant.partition
        identity = a.log.identity
        try:
            if a.sink is not None:
                a.sink.recover(identity.name, identity.id, a.group, share.grant, share.note)
            chosen = a.start_at(number) if share.position is None else share.position
            position, _ = place_in_log(a.log, a.settings, number, chosen)
        except (Unavailable, Damaged) as error:
            self._park(number, error)
            return
        if position == share.position or self._move(share.grant, chosen, position):
            a.shares.begin(share.grant, position)

    def _move(self, grant: Grant, position: int, start: int) -> bool:
        """Store where a partition goes on, before anything of it is taken; what lies between is gone."""
        trouble = store_start(self._a.submit, grant, start)
        if trouble is None and start > position:
            self._a.shares.count(expired=tell_of_gap(self._a.report, grant, position, start))
        elif trouble is not None and not isinstance(trouble, Fenced):
            self._park(grant.partition, trouble)
        return trouble is None

    def _park(self, partition: int, error: PxrsError) -> None:
        logger.error("partition %d waits: %s", partition, error)
        self._a.shares.park(partition, error)

    def _watch(self) -> None:
        """Be woken by new messages of the partitions in hand, and of no others."""
        held = self._a.shares.takeable()
        for grant in [grant for grant in self._watched if grant not in held]:
            self._watched.pop(grant)()
        for grant in held:
            if grant not in self._watched:
                self._watched[grant] = self._a.log.subscribe(grant.partition, self._a.shares.bell.set)

    def _plan(self) -> list[Range]:
        waiting: dict[Grant, tuple[int, int]] = {}
        for grant, position in self._a.shares.takeable().items():
            try:
                found = self._waiting(grant, position)
                if found is not None:
                    waiting[grant] = found
            except (Unavailable, Damaged) as error:
                self._park(grant.partition, error)
        self._lag = sum(end - position for position, end in waiting.values())
        chosen = self._choose([grant for grant, (position, end) in waiting.items() if end > position])
        shares = share_out({g.partition: waiting[g][1] - waiting[g][0] for g in chosen}, self.pace.rows)
        return [
            Range(g.partition, waiting[g][0], waiting[g][0] + shares[g.partition], g.epoch)
            for g in chosen
            if g.partition in shares
        ]

    def _waiting(self, grant: Grant, position: int) -> tuple[int, int] | None:
        """What a partition has to offer, behind what was deleted meanwhile; None if that cannot be stored."""
        a = self._a
        start, end = place_in_log(a.log, a.settings, grant.partition, position)
        if start > position:
            if not self._move(grant, position, start):
                return None
            a.shares.advance({grant: start})
        return start, end if a.ends is None else min(end, a.ends[grant.partition])

    def _choose(self, grants: list[Grant]) -> list[Grant]:
        """More partitions than one commit can hold take turns."""
        grants = sorted(grants)
        most = self._a.max_partitions
        if len(grants) <= most:
            return grants
        self._turn %= len(grants)
        chosen = [*grants[self._turn :], *grants[: self._turn]][:most]
        self._turn += most
        return sorted(chosen)

    # ---- one batch --------------------------------------------------------------------------------------------------

    def _work_off(self, ranges: tuple[Range, ...]) -> None:
        began = self._a.clock.monotonic()
        error = self._try_often(self._new_batch(ranges))
        if error is None:
            self.pace = self.pace.after(sum(part.rows for part in ranges), self._a.clock.monotonic() - began)
        else:
            self._check_function(ranges, error)
            self._narrow(ranges, error)
            # Smaller ones may pass where large ones do not; if they do, they soon grow again.
            self.pace = replace(self.pace, rows=max(1, int(self.pace.rows / GROWTH)))
        self._a.shares.finish()

    def _new_batch(self, ranges: tuple[Range, ...]) -> Batch:
        self._number += 1
        identity = self._a.log.identity
        return Batch(identity.name, identity.id, self._a.group, self._a.owner, self._number, ranges)

    def _try_often(self, batch: Batch) -> Exception | None:
        """The failure of the last try, or None: done, or no longer ours to do."""
        while True:
            error = self._try(batch)
            if error is None or batch.attempt >= self._a.settings.tries:
                return error
            self._a.shares.count(retried=1)
            if not self._back_off(batch.attempt):
                return None
            batch = replace(batch, attempt=batch.attempt + 1)

    def _back_off(self, tries: int) -> bool:
        settings, clock = self._a.settings, self._a.clock.monotonic
        deadline = clock() + min(settings.backoff_ms * 2 ** (tries - 1), settings.backoff_max_ms) / 1000
        while self._may_go_on() and (left := deadline - clock()) > 0:
            self._a.pause.wait(min(left, 0.1))
        return self._may_go_on()

    def _may_go_on(self) -> bool:
        return self._a.shares.may_work and not self._a.is_stopping()

    def _try(self, batch: Batch) -> Exception | None:
        began = self._a.clock.monotonic()
        try:
            note = self._stage(batch, self._a.execute(batch))
        except StopConsuming:
            self._discard(batch)
            self._a.stop()
            return None
        except Fenced as error:  # a new owner of one of its partitions has cleared the output away
            self._discard(batch)
            logger.warning("batch %d was refused: %s", batch.number, error)
            self._tell("refused", batch, began, began)
            return None
        except Exception as error:
            self._discard(batch)
            if "StopConsuming" in gist(error):  # raised in a task, it arrives as an error of Spark
                self._a.stop()
                return None
            if has_expired(self._a.log, batch.ranges):
                return None  # deleted after it was planned: the next plan says what becomes of it
            if isinstance(error, _CannotWrite):
                raise HandlerFailed(f"the output of batch {batch.number} cannot be written: {error}") from error
            if isinstance(error, Closed | Refused) or self._a.is_fatal(error):
                raise HandlerFailed(f"batch {batch.number} cannot be executed: {gist(error)}") from error
            logger.warning("batch %d failed at try %d: %s", batch.number, batch.attempt, gist(error))
            self._tell("failed", batch, began, began, error=gist(error))
            return error
        executed = self._a.clock.monotonic()
        self._commit(batch, note, began, executed)
        return None

    def _stage(self, batch: Batch, output: Any) -> str | None:
        if self._a.sink is None:
            return None
        try:
            # Never empty: by its note a commit is recognised whose answer was lost.
            return self._a.sink.stage(batch, output) or _nothing(batch)
        except (OSError, Unavailable) as error:  # the disk's fault, not the messages'
            raise _CannotWrite(str(error)) from error

    def _discard(self, batch: Batch) -> None:
        if self._a.sink is not None:
            with suppress(OSError, Unavailable):  # leftovers are cleared away by the next owner
                self._a.sink.discard(batch)

    def _commit(self, batch: Batch, note: str | None, began: float, executed: float) -> None:
        a = self._a
        outcome: Outcome = commit_batch(a.submit, a.sink, batch, note, lambda: not a.shares.is_halted, a.pause)
        a.shares.advance(outcome.committed)
        a.shares.progressed()
        done = {grant.partition for grant in outcome.committed}
        rows = sum(part.rows for part in batch.ranges if part.partition in done)
        a.shares.count(handled=rows, handler_seconds=executed - began)
        self._lag -= rows
        for error in set(map(str, outcome.refused.values())):
            logger.warning("batch %d was refused: %s", batch.number, error)
        kind = "committed" if len(done) == len(batch.ranges) else "refused"
        self._tell(kind, batch, began, executed)

    def _tell(self, outcome: str, batch: Batch, began: float, executed: float, **more: Any) -> None:
        now = self._a.clock.monotonic()
        facts = {
            "member": batch.member,
            "batch": batch.number,
            "attempt": batch.attempt,
            "outcome": outcome,
            "rows": batch.rows,
            "partitions": list(batch.partitions),
            "ranges": [tuple(part) for part in batch.ranges],
            "seconds": now - began,
            "execute_seconds": executed - began,
            "commit_seconds": now - executed,
            "lag": max(0, self._lag),
            "owned": len(self._a.shares.partitions),
            **more,
        }
        self._a.report("batch", facts)

    # ---- failures ---------------------------------------------------------------------------------------------------

    def _check_function(self, ranges: tuple[Range, ...], error: Exception) -> None:
        """Blame no message for what fails without any: a missing module would fill the dead letters with the queue."""
        try:
            self._probe(self._new_batch(ranges))
        except Exception as other:
            if gist(other) == gist(error):
                raise HandlerFailed(
                    f"it fails for an empty batch too, so no message is to blame: {gist(error)}"
                ) from error

    def _probe(self, batch: Batch) -> None:
        output = self._a.probe(batch)
        if output is None:
            return
        try:
            self._stage(batch, output)  # what no sink can take fails here, without any row of it
        finally:
            self._discard(batch)

    def _narrow(self, ranges: Sequence[Range], error: Exception) -> None:
        """A batch keeps failing: its halves are batches of their own, until the message that does it stands alone."""
        if sum(part.rows for part in ranges) == 1:
            self._settle(ranges[0], error)
            return
        for half in halves(ranges):
            wanted = tuple(part for part in half if self._a.shares.is_wanted(part))
            if not wanted or not self._may_go_on():
                continue  # lost, or somebody waits for it: it goes on from its position, here or elsewhere
            alone = sum(part.rows for part in wanted) == 1
            batch = self._new_batch(wanted)
            failure = self._try_often(batch) if alone else self._try(batch)
            if failure is not None:
                self._narrow(wanted, failure)

    def _settle(self, part: Range, error: Exception) -> None:
        """One message fails by itself: let the policy decide."""
        a = self._a
        where, tries = f"partition {part.partition} offset {part.start}", a.settings.tries
        if not a.shares.is_wanted(part) or not self._may_go_on():
            return  # lost meanwhile: it is for the next owner to judge
        try:
            found = a.log.read(part.partition, part.start, 1)
        except (Unavailable, Damaged, OutOfRange) as trouble:
            self._park(part.partition, trouble)
            return
        assert found is not None
        if a.settings.on_failure == "stop":
            raise HandlerFailed(f"{where}: failed {tries} times, last with {gist(error)}") from error
        if a.settings.on_failure == "skip":
            a.shares.count(skipped=1)
            logger.error("skipped %s after %d tries: %s", where, tries, gist(error))
        else:
            message = delivery.message_at(found, part.start, part.partition)
            stack = "".join(traceback.format_exception(error))
            a.dead_letters.keep(message, error, stack, tries, Context(a.owner.id, part.epoch, tries))
            a.shares.count(dead_lettered=1)
            logger.error("dead-lettered %s after %d tries: %s", where, tries, gist(error))
        self._pass_over(part)

    def _pass_over(self, part: Range) -> None:
        batch = self._new_batch((part,))
        note = _nothing(batch) if self._a.sink is not None else None
        now = self._a.clock.monotonic()
        self._commit(batch, note, now, now)


class _CannotWrite(PxrsError):
    """The output cannot be written, whatever the messages are."""


def _nothing(batch: Batch) -> str:
    """The note of a batch that has nothing to publish."""
    return f'{{"batch": "{batch.name}"}}'
