"""The commit of a batch, and what follows from its outcome: publish, discard, or leave it to the next owner."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pxrs.errors import Closed, Conflict, Fenced, PxrsError, Unavailable, Unknown
from pxrs.logs.base import LogIdentity
from pxrs.model import Batch, Grant
from pxrs.runtime.failures.error_summary import error_text
from pxrs.runtime.ports.sink import Overtaken, Sink, joining
from pxrs.runtime.registry.registry import Changed, CommitRequest
from pxrs.runtime.registry.rows import Held
from pxrs.runtime.views.tables import ranges

logger = logging.getLogger("pxrs.pipeline")

Submit = Callable[[CommitRequest], Future[Changed]]


class NobodyCommits(Closed):
    """The member has ended meanwhile, and says itself why."""


AGAIN_SECONDS = 0.2
"""The pause after a commit without an answer."""


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """The outcome of a commit: committed partitions and refused ones; those in neither are unknown."""

    committed: Mapping[Grant, int]
    refused: Mapping[Grant, PxrsError]


def commit_batch(
    submit: Submit, sink: Sink | None, batch: Batch, note: str | None, go_on: Callable[[], bool], pause: threading.Event
) -> CommitOutcome:
    """Store the ends of all ranges of a batch. With a sink all or none, and its output is published by that."""
    outcome = commit_ends(submit, sink, batch, note, go_on, pause)
    if sink is not None and note is not None and outcome.committed:
        sink.publish(note)
    if sink is not None and outcome.refused:
        sink.discard(batch)
    return outcome


def commit_ends(
    submit: Submit, sink: Sink | None, batch: Batch, note: str | None, go_on: Callable[[], bool], pause: threading.Event
) -> CommitOutcome:
    """The first half of ``commit_batch``: nothing is published and nothing discarded yet.

    Without an answer it is asked again, as long as ``go_on`` says so: each try swaps against the same rows, so one
    lands. If the answer stays out, neither may follow: the next owner finds the note, or not.
    """
    ends = {Grant(part.partition, batch.owner, part.epoch): part.end for part in batch.ranges}
    committed: dict[Grant, int] = {}
    refused: dict[Grant, PxrsError] = {}
    while ends and go_on():
        done, fenced = _ask(submit, CommitRequest(ends, note, joining(sink, note)))
        committed |= done
        refused |= fenced
        ends = {grant: end for grant, end in ends.items() if grant not in committed and grant not in refused}
        if ends:
            pause.wait(AGAIN_SECONDS)
    return CommitOutcome(committed, refused)


def discard_quietly(sink: Sink | None, batch: Batch) -> None:
    """Remove what was staged for a batch. What cannot be removed now is cleared away by the next owner."""
    if sink is not None:
        with suppress(Exception):
            sink.discard(batch)


def would_take(sink: Sink, batch: Batch, make: Callable[[Batch], Any]) -> bool:
    """Whether a sink takes the output that is made of this batch: it is written aside, and discarded."""
    try:
        return bool(sink.stage(batch, make(batch)))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return False
    finally:
        discard_quietly(sink, batch)


def show_last(sink: Sink | None, left: Mapping[str, Sequence[int]]) -> None:
    """At the end of a member: publish once more what it leaves unshown. The next owner shows what this cannot."""
    for note, partitions in left.items():
        try:
            assert sink is not None
            sink.publish(note)
        except Exception as error:
            text = "partitions %s are given up with output that is committed and not shown; the next owner shows it: %s"
            logger.error(text, ranges(sorted(partitions)), error_text(error))


def _ask(submit: Submit, request: CommitRequest) -> tuple[dict[Grant, int], dict[Grant, PxrsError]]:
    ends = request.positions
    try:
        results = _answer(submit, request)
    except Fenced as error:
        return {}, dict.fromkeys(ends, error)
    except (Conflict, Unknown, Unavailable):
        return {}, {}
    if request.all_or_none:
        return dict(ends), {}
    for result in results.values():
        if isinstance(result, PxrsError) and not isinstance(result, Fenced | Conflict | Unknown | Unavailable):
            raise result  # the store, or the work, is not what it should be: to ask again would not help
    done = {grant: end for grant, end in ends.items() if isinstance(results[grant.partition], Held)}
    fenced: dict[Grant, PxrsError] = {g: r for g in ends if isinstance(r := results[g.partition], Fenced)}
    return done, fenced


def _answer(submit: Submit, request: CommitRequest) -> Changed:
    try:
        return submit(request).result()
    except Closed as error:
        raise NobodyCommits(str(error)) from error


def store_start(submit: Submit, grant: Grant, position: int) -> PxrsError | None:
    """Write down where a partition begins that had no checkpoint, before anything of it is taken.

    A crash in its first batch would else lose what was there: "latest" is somewhere else the next time.
    """
    try:
        result = _answer(submit, CommitRequest({grant: position}))[grant.partition]
    except (Fenced, Conflict, Unknown, Unavailable) as error:
        return error
    return result if isinstance(result, PxrsError) else None


@dataclass(frozen=True, slots=True)
class ClaimedPartition:
    """A partition that was just claimed: ``note`` is what its row remembers, ``start`` says where it begins."""

    log: LogIdentity
    group: str
    grant: Grant
    note: str
    start: Callable[[], int]


def recover_claimed(sink: Sink, submit: Submit, claim: ClaimedPartition) -> None:
    """Let the sink take over what was claimed. If it has seen a later claim, the registry says what that means.

    Raises Fenced if the partition has another owner by now: that is how a hand-over looks to the earlier one, and
    nothing to tell anybody. Raises WentBack, with the sink's advice, if the registry knows no later claim.
    """
    try:
        sink.recover(claim.log.name, claim.log.id, claim.group, claim.grant, claim.note)
    except Overtaken as error:
        trouble = store_start(submit, claim.grant, claim.start())
        if isinstance(trouble, Fenced):
            raise trouble from error
        if trouble is not None:
            raise Unavailable(f"whether {error} is right cannot be asked: {trouble}") from error
        raise error.as_went_back() from error
