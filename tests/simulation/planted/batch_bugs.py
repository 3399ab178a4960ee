"""Planted bugs of members that work in batches: of the batch loop, of commits that are handed in, of fenced output.

python -m tests.simulation.planted.batch_bugs                       the table: bug, promise, histories needed
python -m tests.simulation.planted.batch_bugs --seed 7 --bug 28     replay one history with one bug planted
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pxrs.errors import Unknown
from pxrs.model import Batch, Grant, Owner, Partition, Range
from pxrs.rules import ownership
from pxrs.runtime.batches import commit as publishing
from pxrs.runtime.batches import loop as batching
from pxrs.runtime.batches.commit import CommitOutcome, Submit
from pxrs.runtime.batches.held_partitions import HeldPartition, HeldPartitions
from pxrs.runtime.batches.planner import BatchPlanner
from pxrs.runtime.ports.sink import Sink
from pxrs.runtime.registry.registry import Changed, CommitRequest, Registry
from pxrs.runtime.registry.rows import raise_first
from tests.simulation.batch_histories import BatchStory, FailingStory
from tests.simulation.planted.bugs import Bug, main
from tests.simulation.sink import SimulatedSink

Answer = tuple[dict[Grant, int], dict[Grant, Any]]

_sound_ask = publishing._ask
_sound_begin = BatchPlanner.begin
_sound_claim = ownership.claim
_sound_commit = publishing.commit_ends


def _drained_while_its_batch_runs(self: HeldPartitions, partition: int) -> bool:
    return self._shares[partition].draining


def _asks_for_all_or_none(submit: Submit, request: CommitRequest) -> Answer:
    """The note is one that nobody looks for, and unique."""
    return _sound_ask(submit, replace(request, note=request.note or f"all of {sorted(request.positions.items())}"))


def _stores_each(self: Registry, request: CommitRequest, known: Any = None) -> Changed:
    results = self._partitions.change(self._advances(request), known)
    if request.all_or_none:
        raise_first(results)
        return {}
    return results


def _takes_unknown_for_done(submit: Submit, request: CommitRequest) -> Answer:
    def ask(asked: CommitRequest) -> Any:
        outcome = submit(asked)
        try:
            outcome.result()
        except Unknown:
            return _Done()
        return outcome

    return _sound_ask(ask if request.all_or_none else submit, request)


class _Done:
    def result(self) -> dict[int, Any]:
        return {}


def _advances_whoever_asks(
    row: Partition, grant: Grant, position: int, end: int | None = None, note: str | None = None
) -> Partition:
    """Under the epoch that stands in the row, looked up when the commit is made."""
    ownership.check_position(grant.partition, position, end)
    return row._replace(checkpoint=max(position, row.position), note=row.note if note is None else note)


def _publishes_first(
    submit: Submit, sink: Sink | None, batch: Batch, note: str | None, go_on: Callable[[], bool], pause: Any
) -> CommitOutcome:
    if sink is not None and note is not None:
        sink.publish(note)
    return _sound_commit(submit, sink, batch, note, go_on, pause)


def _begins_without_the_note(self: BatchPlanner, share: HeldPartition) -> None:
    _sound_begin(self, replace(share, note=""))


def _never_looks_at_the_note(self: Registry, note: str | None, numbers: Any) -> bool:
    return False


def _clears_what_is_not_its_own(
    self: SimulatedSink,
    queue: str,
    log: str,
    group: str,
    grant: Grant,
    note: str,
) -> None:
    self.publish(note)
    for name, batch in list(self._storage.plans.items()):
        if batch.owner != grant.owner:
            self._storage.clear(name)


def _claims_with_an_empty_note(row: Partition, me: Owner, at: float) -> Partition:
    return _sound_claim(row, me, at)._replace(note="")


def _is_wanted_wherever_it_starts(self: HeldPartitions, part: Range) -> bool:
    return not self.is_halted and self._is_free(part)


SEEN = frozenset({"visible once"})

BATCH_BUGS = (
    Bug(19, "release before the running batch is committed", HeldPartitions, "drained", _drained_while_its_batch_runs,
        frozenset({"bounded repeats"})),
    Bug(21, "one lost partition spoils the others, output apart", publishing, "_ask", _asks_for_all_or_none,
        frozenset({"order"})),
    Bug(22, "a batch is committed under the epoch of the moment", ownership, "advance", _advances_whoever_asks,
        frozenset({"fenced"})),
    Bug(25, "a commit without an answer counts as done", publishing, "_ask", _takes_unknown_for_done, SEEN),
    Bug(28, "output is mixed, checkpoints are committed each", Registry, "store_progress", _stores_each, SEEN),
    Bug(29, "publish before the commit", batching, "commit_ends", _publishes_first, SEEN),
    Bug(30, "a new owner does not look at the note", BatchPlanner, "begin", _begins_without_the_note, SEEN),
    Bug(31, "discard after no answer, without a look at the note", Registry, "_has_landed",
        _never_looks_at_the_note, SEEN),
    Bug(32, "recover removes what could still be committed", SimulatedSink, "recover", _clears_what_is_not_its_own,
        SEEN),
    Bug(33, "a claim forgets the note", ownership, "claim", _claims_with_an_empty_note, SEEN),
    Bug(35, "a part is taken whose forerunner was refused", HeldPartitions, "is_wanted", _is_wanted_wherever_it_starts,
        frozenset({"no loss", "order"}), FailingStory),
)  # fmt: skip
"""Up to 25 numbered as in the protocol's list of broken variants."""


if __name__ == "__main__":
    sys.exit(main(name="planted_batches", planted=BATCH_BUGS, kind=BatchStory))
