"""Planted bugs: each replaces one named function of the shipped code by a tempting shortcut.

A simulation that cannot tell these from the sound code would prove nothing. Each was found to break a promise by
model checking; here the same histories that pass with the sound code must name the broken promise.

    python -m tests.simulation.planted.bugs                       the table: bug, promise, histories needed
    python -m tests.simulation.planted.bugs --seed 7 --bug 3      replay one history with one bug planted
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pxrs.errors import Fenced
from pxrs.model import Cause, Grant, Group, MemberRow, Owner, Partition, with_history
from pxrs.rules import ownership, rebalance
from pxrs.rules.rebalance import Mode, Step
from pxrs.runtime.group.commits import Commits
from pxrs.runtime.group.member import Member
from pxrs.runtime.registry import rows as runtime_rows
from pxrs.runtime.registry.registry import Changed
from pxrs.runtime.registry.rows import Held
from pxrs.stores.base import Outcome, Row, Swap, Verdict
from pxrs.stores.memory import MemoryStore
from tests.simulation.histories import Story, replay, run_one


@dataclass(frozen=True, slots=True)
class Bug:
    """One shortcut: the function that it replaces, the replacement, and the promises that it may break."""

    number: int
    title: str
    place: Any
    function: str
    replacement: Callable[..., Any]
    breaks: frozenset[str]
    kind: type[Story] | None = None
    """The stories that it comes to light in, where those of all bugs of its list meet it too seldom."""


@contextmanager
def plant(bug: Bug) -> Iterator[None]:
    sound = getattr(bug.place, bug.function)
    setattr(bug.place, bug.function, bug.replacement)
    try:
        yield
    finally:
        setattr(bug.place, bug.function, sound)


def histories_needed(bug: Bug, most: int, kind: type[Story] = Story) -> tuple[int, str] | None:
    """How many histories it takes to see this bug, and the promise that was named; None if it stays hidden."""
    with plant(bug):
        for seed in range(most):
            for violation in run_one(seed, bug.kind or kind).violations:
                if violation.promise in bug.breaks:
                    return seed + 1, violation.promise
    return None


# ---- the replacements ---------------------------------------------------------------------------------------------


def _matches_by_epoch(self: MemoryStore, row: Row | None, swap: Swap) -> bool:
    if row is None or swap.value is None or "/partition/" not in swap.key:
        return (row.version if row else 0) == swap.expect
    stored, new = json.loads(row.value), json.loads(swap.value)
    return bool(new["epoch"] - stored["epoch"] == (0 if new["owner"] == stored["owner"] else 1))


def _matches_unless_released(self: MemoryStore, row: Row | None, swap: Swap) -> bool:
    if swap.value is not None and swap.value.startswith(b'{"v":1,"owner":null'):
        return True
    return (row.version if row else 0) == swap.expect


def _matches_if_the_checkpoint_grows(self: MemoryStore, row: Row | None, swap: Swap) -> bool:
    if row is None or swap.value is None or "/partition/" not in swap.key:
        return (row.version if row else 0) == swap.expect
    stored, new = json.loads(row.value), json.loads(swap.value)
    if stored["epoch"] < new["epoch"]:
        return row.version == swap.expect
    return (stored["checkpoint"] or 0) <= (new["checkpoint"] or 0)


def _frees_under_the_old_epoch(row: Partition, owner: Owner | None, cause: Cause, at: float) -> Partition:
    return with_history(row._replace(owner=owner, epoch=row.epoch + (owner is not None), cause=cause), at)


def _advance_by_name_alone(
    row: Partition, grant: Grant, position: int, end: int | None = None, note: str = ""
) -> Partition:
    if row.owner is None or row.owner.id != grant.owner.id:
        raise Fenced("not the owner")
    return row._replace(checkpoint=max(position, row.position))


def _release_without_flush(row: Partition, grant: Grant, position: int | None, at: float) -> Partition:
    ownership.require_mine(row, grant)
    return with_history(row._replace(owner=None, epoch=row.epoch + 1, cause=Cause.RELEASE), at)


def _may_claim_anything(row: Partition, me: Owner) -> bool:
    return True


def _never_refuses(group: Group, lead: Grant) -> None:
    """The guard of a leader's writes, gone."""


def _unknown_is_done(key: str, row: Any, outcome: Outcome) -> Any:
    if outcome.verdict is Verdict.CONFLICT:
        return None
    return Held(row, outcome.version)


def _adopts_what_the_row_says(
    self: Member, numbers: list[int], rows: Mapping[int, Held[Partition]], now: float
) -> None:
    theirs = [n for n in numbers if rows[n].row.owner is None]
    for number in numbers:
        if number not in theirs:
            self._start(number, rows[number], now)
    _sound_claim(self, theirs, rows, now)


_sound_claim = Member._claim
_sound_start = Member._start
_sound_commit = Commits.commit


def _starts_at_the_checkpoint_read_before(
    self: Member, numbers: list[int], rows: Mapping[int, Held[Partition]], now: float
) -> None:
    def start(number: int, held: Held[Partition], at: float) -> None:
        read, swapped = rows[number].row, held.row
        _sound_start(self, number, Held(swapped._replace(checkpoint=read.checkpoint), held.version), at)

    self._start = start  # type: ignore[method-assign,assignment]
    _sound_claim(self, numbers, rows, now)


def _never_polls(self: Member, sought: Mapping[int, bool]) -> None:
    """An owner that is not told that its row has changed."""


def _waits_for_what_is_already_its_own(row: Partition, me: Owner, wanted: bool) -> Step:
    if row.owner == me:
        return Step.WAIT
    return Step.CLAIM if wanted and ownership.may_claim(row, me) else Step.WAIT


def _never_checks_the_life(row: MemberRow, me: Owner) -> None:
    """The guard against an older process under the same id, gone."""


def _claim_under_the_old_epoch(row: Partition, me: Owner, at: float) -> Partition:
    ownership.check_position(row.number, row.position)
    return with_history(row._replace(owner=me, epoch=max(1, row.epoch), cause=Cause.CLAIM), at)


def _releases_while_handlers_run(
    row: Partition, me: Owner, grant: Grant | None, mode: Mode | None, wanted: bool, drained: bool
) -> Step:
    step = _sound_next_step(row, me, grant, mode, wanted, drained)
    return Step.RELEASE if step is Step.DRAIN else step


_sound_next_step = rebalance.next_step


def _commits_what_it_has_only_taken(self: Commits, positions: Mapping[Grant, int], now: float) -> Changed:
    return _sound_commit(self, {grant: position + 1 for grant, position in positions.items()}, now)


def _seek_under_the_old_epoch(row: Partition, position: int, end: int | None, at: float) -> Partition:
    return row._replace(checkpoint=position, cause=Cause.SEEK)


def _force_writes_the_checkpoint_back(row: Partition, owner: Owner, at: float) -> Partition:
    back = max(0, row.position - 1)
    return with_history(row._replace(owner=None, epoch=row.epoch + 1, checkpoint=back, cause=Cause.FORCED), at)


BUGS = (
    Bug(1, "compare-and-set compares the epoch, not the version", MemoryStore, "_matches", _matches_by_epoch,
        frozenset({"monotone", "fenced", "bounded repeats", "single owner"})),
    Bug(2, "a commit is judged by the member id alone", ownership, "advance", _advance_by_name_alone,
        frozenset({"fenced", "no loss", "bounded repeats"})),
    Bug(3, "flush after release", ownership, "release", _release_without_flush, frozenset({"bounded repeats"})),
    Bug(4, "claim before release", ownership, "may_claim", _may_claim_anything,
        frozenset({"single owner"})),
    Bug(5, "a release that keeps the epoch", ownership, "_pass_to", _frees_under_the_old_epoch,
        frozenset({"single owner"})),
    Bug(6, "a plan without the leader's epoch", ownership, "require_lead", _never_refuses, frozenset({"single owner"})),
    Bug(7, "unknown is treated as done", runtime_rows, "judge", _unknown_is_done,
        frozenset({"single owner", "bounded repeats", "fenced", "no loss"})),
    Bug(10, "a commit writes back the owner of a stale row", MemoryStore, "_matches", _matches_if_the_checkpoint_grows,
        frozenset({"monotone", "single owner", "fenced"})),
    Bug(12, "the checkpoint is read before the claim", Member, "_claim", _starts_at_the_checkpoint_read_before,
        frozenset({"bounded repeats", "order"})),
    Bug(13, "an owner never polls its rows", Member, "_drop_lost", _never_polls, frozenset({"convergence", "no loss"})),
    Bug(14, "no second claim after an unknown one", rebalance, "_step_without_handle",
        _waits_for_what_is_already_its_own, frozenset({"convergence", "no loss"})),
    Bug(15, "a handle is adopted from a row that was read", Member, "_claim", _adopts_what_the_row_says,
        frozenset({"single owner", "order", "bounded repeats"})),
    Bug(16, "no guard by incarnation", ownership, "require_my_life", _never_checks_the_life,
        frozenset({"convergence", "no loss"})),
    Bug(17, "a release without the version", MemoryStore, "_matches", _matches_unless_released,
        frozenset({"monotone", "single owner", "fenced"})),
    Bug(18, "a claim without a new epoch", ownership, "claim", _claim_under_the_old_epoch, frozenset({"single owner"})),
    Bug(19, "release before the running work has ended", rebalance, "next_step", _releases_while_handlers_run,
        frozenset({"bounded repeats"})),
    Bug(23, "progress is stored when a message is taken", Commits, "commit", _commits_what_it_has_only_taken,
        frozenset({"no loss"})),
    Bug(26, "a seek that keeps the epoch", ownership, "seek", _seek_under_the_old_epoch,
        frozenset({"monotone", "no loss", "order"})),
    Bug(27, "a forced release writes an older checkpoint", ownership, "force_release",
        _force_writes_the_checkpoint_back, frozenset({"monotone"})),
)  # fmt: skip
"""Numbers up to 25 are those of the protocol's list of broken variants; the others were found on the way."""


def main(
    arguments: Sequence[str] | None = None,
    name: str = "planted",
    planted: Sequence[Bug] = BUGS,
    kind: type[Story] = Story,
) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m tests.simulation.planted.{name}")
    parser.add_argument("--bug", type=int, choices=[bug.number for bug in planted], help="only this bug")
    parser.add_argument("--seed", type=int, help="replay this history with the bug planted")
    parser.add_argument("--most", type=int, default=200, help="how many histories to try for each bug")
    chosen = parser.parse_args(arguments)
    bugs = [bug for bug in planted if chosen.bug in (None, bug.number)]
    if chosen.seed is not None:
        with plant(bugs[0]):
            return replay(chosen.seed, bugs[0].kind or kind)
    hidden = 0
    for bug in bugs:
        found = histories_needed(bug, chosen.most, kind)
        print(line(bug, found), flush=True)
        hidden += found is None
    return int(hidden > 0)


def line(bug: Bug, found: tuple[int, str] | None) -> str:
    """One line of the table: the bug, the promise that was named, and how many histories it took."""
    needed, promise = (str(found[0]), found[1]) if found else ("-", "STAYED HIDDEN")
    return f"{bug.number:3} {bug.title:52} {promise:16} {needed:>4} histories"


if __name__ == "__main__":
    sys.exit(main())
