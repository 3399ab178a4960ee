"""A simulation is worth what it can find: each planted bug must be named, by the seeds that pass without it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.histories import run_one
from tests.simulation.planted.bugs import BUGS, Bug, histories_needed, line

MOST = 200


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.number}-{bug.title.replace(' ', '-')}")
def test_the_planted_bug_is_found(bug: Bug, show: Callable[[str], None]) -> None:
    found = histories_needed(bug, MOST)
    assert found is not None, f"bug {bug.number} ({bug.title}) stayed hidden in {MOST} histories"
    show(line(bug, found))
    assert run_one(found[0] - 1).violations == (), "the same seed must be green with the sound code"
