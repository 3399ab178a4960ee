"""Thousands of simulated histories with the real member, coordinator and registry code."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.histories import Story, run_one, totals

HISTORIES = 500
"""In each of four tests, so that all cores share them."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, 4 * HISTORIES, HISTORIES))
def test_every_promise_holds_in_thousands_of_histories(first: int, show: Callable[[str], None]) -> None:
    outcomes = [run_one(seed) for seed in range(first, first + HISTORIES)]
    show(totals(outcomes))
    small = [(o.seed, o.too_small()) for o in outcomes if o.too_small()]
    assert not small, f"histories that tested too little: {small[:5]}"
    broken = [(o.seed, o.violations[0]) for o in outcomes if o.violations]
    assert not broken, f"replay with: python -m tests.simulation.histories --seed {broken[0][0]}\n{broken[:5]}"


def test_a_few_histories_for_daily_use(show: Callable[[str], None]) -> None:
    outcomes = [run_one(seed) for seed in range(50_000, 50_040)]
    show(totals(outcomes))
    assert not [o for o in outcomes if o.violations or o.too_small()]


def test_a_seed_replays_exactly() -> None:
    first, second = Story(4711), Story(4711)
    assert first.run() == second.run()
    assert first.timeline.history == second.timeline.history
    assert [e[:2] for e in first.cluster.events] == [e[:2] for e in second.cluster.events]
