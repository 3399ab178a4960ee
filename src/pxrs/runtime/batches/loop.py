"""The loop of an engine that works in batches: plan, execute, write aside, commit, publish; one batch at a time.

It knows nothing of Spark: ``execute`` turns a batch into its output, whatever that is. Ownership comes from ``Shares``,
commits go through ``submit``, so the same loop serves a member of a group and a backfill that belongs to none.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pxrs.errors import (
    BadSetting,
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
from pxrs.logs.read_errors import ReadFailed
from pxrs.model import Batch, Range
from pxrs.rules.policies import GROWTH, Pace, halves, is_proved, needs_proof, singles_after
from pxrs.runtime.batches.commit import (
    CommitOutcome,
    NobodyCommits,
    commit_ends,
    discard_quietly,
    show_last,
)
from pxrs.runtime.batches.parts import (
    BatchParts,
    CannotWrite,
    as_refusal,
    batch_facts,
    stage_output,
    unreadable,
)
from pxrs.runtime.expired import has_expired
from pxrs.runtime.failures.error_summary import error_summary, error_text
from pxrs.runtime.failures.parking import back_off_seconds
from pxrs.runtime.ports.sink import nothing_to_publish

__all__ = ["BatchLoop", "BatchParts"]

logger = logging.getLogger("pxrs.pipeline")

FIRST_ROWS = 100_000
"""The first batch: large enough to be worth a Spark job, small enough for slow functions."""

_GATHER_SECONDS = 0.003
"""Appends to several partitions are seen one after the other. After this pause they make one batch, not two."""


class BatchLoop:
    """Runs batches until it is stopped. All of it happens in the thread that calls ``run``."""

    def __init__(self, assembly: BatchParts) -> None:
        self._a = assembly
        settings = assembly.settings
        first = min(FIRST_ROWS, settings.max_batch_rows)
        self.pace = Pace(first, settings.target_batch_ms / 1000, settings.max_batch_rows)
        self._number = 0
        self._planner = assembly.planner(logger)
        self._sink_took = False

    def run(self) -> None:
        """Run until stopped, or until an error that ends the member, which is given to ``fail``."""
        try:
            while not self._a.is_stopping():
                self._try_step()
            show_last(self._a.sink, self._a.shares.left_unshown())
        except NobodyCommits:
            pass
        except PxrsError as error:
            self._a.fail(error)
        except BaseException as error:
            # Whatever a function, a sink or a driver raises (sys.exit too) must end this member, not hide in a thread.
            logger.exception("batch %d: the pipeline stops", self._number)
            self._a.fail(HandlerFailed(f"batch {self._number}: {error_text(error)}"))
        finally:
            self._a.shares.finish()
            self._planner.close()

    def _try_step(self) -> None:
        try:
            self._step()
        except (Unavailable, Damaged, OSError) as error:  # of no partition in particular
            logger.error("the pipeline waits: %s", error_text(error))
            self._a.pause.wait(1.0)

    def _step(self) -> None:
        shares = self._a.shares
        shares.wake_event.clear()
        for note, partitions in shares.unshown().items():
            self._show(note, partitions)
        ranges = shares.take(self._planner.choose(self._planner.look(), lambda _: self.pace.rows))
        if ranges:
            self._work_off(ranges)
        elif not shares.owes_output() and self._a.is_over():
            self._a.stop()
        elif shares.wake_event.wait(self._idle_seconds()):
            self._a.pause.wait(_GATHER_SECONDS)

    def _idle_seconds(self) -> float:
        """The longest sleep: something wakes the loop when there is work, but a wake-up may get lost."""
        waits = (self._a.idle_seconds, self._a.settings.poll_ms / 1000, 1.0 if self._a.shares.troubles() else None)
        return min(seconds for seconds in waits if seconds is not None)

    def _park_unread(self, troubles: Mapping[int, Exception]) -> None:
        """These partitions wait for their log, whatever a function has said of it."""
        for partition, trouble in troubles.items():
            if isinstance(trouble, Unavailable | OSError):
                self._a.shares.blindness.saw(False)
            self._planner.park(partition, trouble)

    # ---- one batch --------------------------------------------------------------------------------------------------

    def _work_off(self, ranges: tuple[Range, ...]) -> None:
        began = self._a.clock.monotonic()
        error = self._try_often(self._new_batch(ranges))
        if error is None and not self._a.shares.troubles():
            self.pace = self.pace.after(sum(part.rows for part in ranges), self._a.clock.monotonic() - began)
        elif error is not None:
            self._check_function(ranges, error)
            self._narrow(ranges, error)
            # Smaller ones may pass where large ones do not; if they do, they soon grow again.
            self.pace = replace(self.pace, rows=max(1, int(self.pace.rows / GROWTH)))
        self._a.shares.finish()

    def _new_batch(self, ranges: tuple[Range, ...]) -> Batch:
        self._number += 1
        identity = self._a.log.identity
        return Batch(identity.name, identity.id, self._a.group, self._a.owner, self._number, ranges)

    def _try_often(self, batch: Batch) -> BaseException | None:
        """The failure of the last try, or None: done, parked, or no longer ours to do."""
        while True:
            error = self._try(batch)
            if error is None or batch.attempt >= self._a.settings.tries:
                return error
            self._a.shares.count(retried=1)
            if not self._back_off(batch.attempt):
                return None
            batch = replace(batch, attempt=batch.attempt + 1)

    def _back_off(self, tries: int) -> bool:
        clock = self._a.clock.monotonic
        deadline = clock() + back_off_seconds(self._a.settings, tries)
        while self._may_go_on() and (left := deadline - clock()) > 0:
            self._a.pause.wait(min(left, 0.1))
        return self._may_go_on()

    def _may_go_on(self) -> bool:
        return self._a.shares.may_work and not self._a.is_stopping()

    def _try(self, batch: Batch) -> BaseException | None:
        began = self._a.clock.monotonic()
        try:
            note = self._stage(batch, self._a.execute(batch))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            discard_quietly(self._a.sink, batch)
            return self._judge(batch, self._a.as_raised(error), began)
        try:
            self._commit(batch, note, began, self._a.clock.monotonic())
        except (Refused, HandlerFailed) as error:  # a database looks at some rules at the commit only
            refusal = as_refusal(error)
            discard_quietly(self._a.sink, batch)
            return self._judge(batch, refusal, began)
        self._sink_took = self._sink_took or note not in (None, nothing_to_publish(batch))
        return None

    def _judge(self, batch: Batch, error: BaseException, began: float) -> BaseException | None:
        """Judge a failed batch: the error if its messages are to blame, else None."""
        if isinstance(error, StopConsuming):
            self._a.stop()
        elif isinstance(error, Fenced):  # a new owner of one of its partitions has cleared the output away
            logger.warning("batch %d was refused: %s", batch.number, error)
            self._tell("refused", batch, began, began)
        elif has_expired(self._a.log, batch.ranges):
            pass  # deleted after it was planned: the next plan says what becomes of it
        elif isinstance(error, ReadFailed):
            found = batch.partitions if error.partition is None else [error.partition]
            self._park_unread(dict.fromkeys(found, error.trouble))
        elif isinstance(error, CannotWrite):
            for partition in batch.partitions:
                self._planner.park(partition, error.trouble)
        elif isinstance(error, Closed | BadSetting) or self._a.is_fatal(error):
            raise HandlerFailed(f"batch {batch.number} cannot be executed: {error_summary(error)}") from error
        elif away := unreadable(self._a.log, batch.ranges):
            self._park_unread(away)  # what the function says meanwhile may come of that
        else:
            logger.warning("batch %d failed at try %d: %s", batch.number, batch.attempt, error_summary(error))
            self._tell("failed", batch, began, began, error=error_summary(error))
            return error
        return None

    def _stage(self, batch: Batch, output: Any) -> str | None:
        if self._a.sink is None:
            return None
        # Never empty: by its note a commit is recognised whose answer was lost.
        return stage_output(self._a.sink, batch, output) or nothing_to_publish(batch)

    def _commit(self, batch: Batch, note: str | None, began: float, executed: float) -> None:
        a = self._a
        outcome: CommitOutcome = commit_ends(a.submit, a.sink, batch, note, lambda: not a.shares.is_halted, a.pause)
        if outcome.refused:
            discard_quietly(a.sink, batch)
        a.shares.advance(outcome.committed)
        if a.sink is not None and note is not None and outcome.committed:
            a.shares.hold(outcome.committed, note)
            self._show(note, [grant.partition for grant in outcome.committed])
        a.shares.progressed()
        done = {grant.partition for grant in outcome.committed}
        rows = sum(part.rows for part in batch.ranges if part.partition in done)
        a.shares.count(handled=rows, handler_seconds=executed - began)
        self._planner.lag -= rows
        for error in set(map(str, outcome.refused.values())):
            logger.warning("batch %d was refused: %s", batch.number, error)
        kind = "committed" if len(done) == len(batch.ranges) else "refused"
        self._tell(kind, batch, began, executed)

    def _show(self, note: str, partitions: Sequence[int]) -> None:
        """Publish what is committed. Where that fails its partitions wait, and it is tried again."""
        assert self._a.sink is not None
        try:
            self._a.sink.publish(note)
        except Exception as error:
            for partition in partitions:
                self._planner.park(partition, error)
        else:
            self._a.shares.shown(partitions, note)

    def _tell(self, outcome: str, batch: Batch, began: float, executed: float, **more: Any) -> None:
        facts = batch_facts(batch, outcome, began, executed, self._a.clock.monotonic())
        now = {"lag": max(0, self._planner.lag), "owned": len(self._a.shares.partitions)}
        self._a.report("batch", facts | now | more)

    # ---- failures ---------------------------------------------------------------------------------------------------

    def _check_function(self, ranges: tuple[Range, ...], error: BaseException) -> None:
        """Blame no message for what fails without any: a missing module would fill the dead letters with the queue."""
        try:
            self._probe(self._new_batch(ranges))
        except Exception as other:
            if error_summary(other) == error_summary(error):
                text = f"it fails for an empty batch too, so no message is to blame: {error_summary(error)}"
                raise HandlerFailed(text) from error

    def _probe(self, batch: Batch) -> None:
        if (output := self._a.probe(batch)) is None:
            return
        try:
            self._stage(batch, output)  # what no sink can take fails here, without any row of it
        finally:
            discard_quietly(self._a.sink, batch)

    def _narrow(self, ranges: Sequence[Range], error: BaseException) -> None:
        """Halve a batch that keeps failing: its halves are batches of their own, until the bad message is alone."""
        if sum(part.rows for part in ranges) == 1:
            self._settle(ranges[0], error)
            return
        for half in halves(ranges):
            wanted = tuple(part for part in half if self._a.shares.is_wanted(part))
            if not wanted or not self._may_go_on():
                continue  # lost, or somebody waits for it: it goes on from its position, here or elsewhere
            attempt = self._try_often if sum(part.rows for part in wanted) == 1 else self._try
            failure = attempt(self._new_batch(wanted))
            if failure is not None:
                self._narrow(wanted, failure)

    def _settle(self, part: Range, error: BaseException) -> None:
        """Let the policy decide about one message that fails by itself."""
        a = self._a
        where, tries = f"partition {part.partition} offset {part.start}", a.settings.tries
        if not a.shares.is_wanted(part) or not self._may_go_on():
            return  # lost meanwhile: it is for the next owner to judge
        if isinstance(error, Refused) and needs_proof(error) and not self._is_proved(part):
            self._planner.park(part.partition, error)
            return
        if a.settings.on_failure == "stop":
            raise HandlerFailed(f"{where}: failed {tries} times, last with {error_summary(error)}") from error
        is_skipped = a.settings.on_failure == "skip"
        if is_skipped:
            a.shares.count(skipped=1)
        elif not self._put_aside(part, error, tries):
            return
        done = "skipped" if is_skipped else "dead-lettered"
        logger.error("%s %s after %d tries: %s", done, where, tries, error_summary(error))
        self._pass_over(part)

    def _is_proved(self, part: Range) -> bool:
        """Whether the sink takes anything of this pipeline. If it has not yet, some of the next messages are tried."""
        with suppress(Exception):  # what cannot be read proves nothing
            later = singles_after(part, self._a.log.bounds(part.partition)[1])
            trials = (self._may_go_on() and self._a.would_take(self._new_batch((one,))) for one in later)
            self._sink_took = is_proved(self._sink_took, trials)
        return self._sink_took or self._a.sink is None

    def _put_aside(self, part: Range, error: BaseException, tries: int) -> bool:
        """Into the dead letters; where these cannot be written, the partition waits."""
        a = self._a
        try:
            a.keep_letter(part, error, tries)
        except OutOfRange:
            return False  # deleted meanwhile: the next plan says what becomes of it
        except Exception as trouble:
            self._planner.park(part.partition, trouble)
            return False
        a.shares.count(dead_lettered=1)
        return True

    def _pass_over(self, part: Range) -> None:
        batch = self._new_batch((part,))
        note = nothing_to_publish(batch) if self._a.sink is not None else None
        now = self._a.clock.monotonic()
        self._commit(batch, note, now, now)
