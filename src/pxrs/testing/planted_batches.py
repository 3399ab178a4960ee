"""Planted bugs of members that work in batches: of the batch loop, of commits that are handed in, of fenced output.

python -m pxrs.testing.planted_batches                       the table: bug, promise, histories needed
python -m pxrs.testing.planted_batches --seed 7 --bug 28     replay one history with one bug planted
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pxrs.errors import Unknown
from pxrs.model import Batch, Grant, Owner, Partition, Range
from pxrs.rules import ownership
from pxrs.runtime import batching, publishing
from pxrs.runtime.batching import BatchLoop
from pxrs.runtime.publishing import Outcome, Submit
from pxrs.runtime.registry import Registry
from pxrs.runtime.shares import Share, Shares
from pxrs.runtime.sink import Join, Sink, Transaction
from pxrs.testing.batch_stories import BatchStory
from pxrs.testing.planted import Bug, main
from pxrs.testing.shelf import SimulatedSink

Answer = tuple[dict[Grant, int], dict[Grant, Any]]

_sound_ask = publishing._ask
_sound_begin = BatchLoop._begin
_sound_claim = ownership.claim
_sound_commit = publishing.commit_ends


def _drained_while_its_batch_runs(self: Shares, partition: int) -> bool:
    return self._shares[partition].draining


def _asks_for_all_or_none(
    submit: Submit, ends: Mapping[Grant, int], note: str | None, _together: bool, join: Join | None
) -> Answer:
    return _sound_ask(submit, ends, note, True, join)


def _asks_for_each(
    submit: Submit, ends: Mapping[Grant, int], note: str | None, _together: bool, join: Join | None
) -> Answer:
    return _sound_ask(submit, ends, note, False, join)


def _takes_unknown_for_done(
    submit: Submit, ends: Mapping[Grant, int], note: str | None, together: bool, join: Join | None
) -> Answer:
    def ask(*asked: Any) -> Any:
        outcome = submit(*asked)
        try:
            outcome.result()
        except Unknown:
            return _Done()
        return outcome

    if not together:
        return _sound_ask(submit, ends, note, together, join)
    return _sound_ask(ask, ends, note, together, join)


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
) -> Outcome:
    if sink is not None and note is not None:
        sink.publish(note)
    return _sound_commit(submit, sink, batch, note, go_on, pause)


def _begins_without_the_note(self: BatchLoop, share: Share) -> None:
    _sound_begin(self, replace(share, note=""))


def _never_looks_at_the_note(
    self: Registry,
    positions: Mapping[Grant, int],
    ends: Mapping[int, int] | None = None,
    note: str | None = None,
    transaction: Transaction | None = None,  # noqa: ARG001 - the shape of what it replaces
) -> None:
    self._partitions.change_all(self._advances(positions, ends, note))


def _clears_what_is_not_its_own(
    self: SimulatedSink,
    queue: str,  # noqa: ARG001 - the port of a sink
    log: str,  # noqa: ARG001 - the port of a sink
    group: str,  # noqa: ARG001 - the port of a sink
    grant: Grant,
    note: str,
) -> None:
    self.publish(note)
    for name, batch in list(self._shelf.plans.items()):
        if batch.owner != grant.owner:
            self._shelf.clear(name)


def _claims_with_an_empty_note(row: Partition, me: Owner, at: float) -> Partition:
    return _sound_claim(row, me, at)._replace(note="")


def _is_wanted_wherever_it_starts(self: Shares, part: Range) -> bool:
    return not self.is_halted and self._is_free(part)


SEEN = frozenset({"visible once"})

BATCH_BUGS = (
    Bug(19, "release before the running batch is committed", Shares, "drained", _drained_while_its_batch_runs,
        frozenset({"bounded repeats"})),
    Bug(21, "one lost partition spoils the others, output apart", publishing, "_ask", _asks_for_all_or_none,
        frozenset({"order"})),
    Bug(22, "a batch is committed under the epoch of the moment", ownership, "advance", _advances_whoever_asks,
        frozenset({"fenced"})),
    Bug(25, "a commit without an answer counts as done", publishing, "_ask", _takes_unknown_for_done, SEEN),
    Bug(28, "output is mixed, checkpoints are committed each", publishing, "_ask", _asks_for_each, SEEN),
    Bug(29, "publish before the commit", batching, "commit_ends", _publishes_first, SEEN),
    Bug(30, "a new owner does not look at the note", BatchLoop, "_begin", _begins_without_the_note, SEEN),
    Bug(31, "discard after no answer, without a look at the note", Registry, "commit_together",
        _never_looks_at_the_note, SEEN),
    Bug(32, "recover removes what could still be committed", SimulatedSink, "recover", _clears_what_is_not_its_own,
        SEEN),
    Bug(33, "a claim forgets the note", ownership, "claim", _claims_with_an_empty_note, SEEN),
    Bug(35, "a part is taken whose forerunner was refused", Shares, "is_wanted", _is_wanted_wherever_it_starts,
        frozenset({"no loss", "order"})),
)  # fmt: skip
"""Up to 25 numbered as in the protocol's list of broken variants."""


if __name__ == "__main__":
    sys.exit(main(name="planted_batches", planted=BATCH_BUGS, kind=BatchStory))
