"""Hundreds of simulated histories with the real batch loop, and the bugs that they must be able to find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.batch_histories import LEAST_BATCHES, BatchStory, FailingStory
from tests.simulation.histories import Outcome, run_one, totals
from tests.simulation.planted.batch_bugs import BATCH_BUGS
from tests.simulation.planted.bugs import Bug, histories_needed, line

HISTORIES = 300
"""In each of two tests, so that two cores share them."""
MOST = 400


def run(first: int, count: int) -> list[Outcome]:
    return [run_one(seed, BatchStory) for seed in range(first, first + count)]


def check_sound(outcomes: list[Outcome]) -> None:
    broken = [(o.seed, o.violations[0]) for o in outcomes if o.violations]
    assert not broken, f"replay with: python -m tests.simulation.batch_histories --seed {broken[0][0]}\n{broken[:5]}"
    small = [(o.seed, o.too_small()) for o in outcomes if o.too_small()]
    assert not small, f"histories that tested too little: {small[:5]}"
    assert sum(o.batches or 0 for o in outcomes) >= LEAST_BATCHES * len(outcomes)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", [0, HISTORIES])
def test_output_is_visible_once_in_hundreds_of_histories(first: int, show: Callable[[str], None]) -> None:
    outcomes = run(first, HISTORIES)
    show(f"in batches, {totals(outcomes)}")
    check_sound(outcomes)


def test_a_few_histories_of_batches_for_daily_use(show: Callable[[str], None]) -> None:
    outcomes = run(50_000, 15)
    show(f"in batches, {totals(outcomes)}")
    check_sound(outcomes)


def test_a_few_histories_of_batches_that_fail_for_daily_use() -> None:
    check_sound([run_one(seed, FailingStory) for seed in range(50_000, 50_010)])


def test_a_seed_of_batches_replays_exactly() -> None:
    first, second = BatchStory(4711), BatchStory(4711)
    assert first.run() == second.run()
    assert first.timeline.history == second.timeline.history


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", BATCH_BUGS, ids=lambda bug: f"{bug.number}-{bug.title.replace(' ', '-')}")
def test_the_bug_planted_into_batches_is_found(bug: Bug, show: Callable[[str], None]) -> None:
    found = histories_needed(bug, MOST, BatchStory)
    assert found is not None, f"bug {bug.number} ({bug.title}) stayed hidden in {MOST} histories"
    show(line(bug, found))
    sound = run_one(found[0] - 1, bug.kind or BatchStory)
    assert sound.violations == (), "the same seed must be green with the sound code"
