"""The walks through the code stay short. Rounds of a rebalance depend on the time: their number is only printed."""

from __future__ import annotations

import pytest

from tests.house.walks import measures_of_message, measures_of_rebalance, walk_message, walk_rebalance


@pytest.mark.slow
def test_a_message_and_the_making_of_a_consumer_enter_few_files() -> None:
    found = measures_of_message(walk_message())
    found += [measure for measure in measures_of_rebalance(walk_rebalance(times=1)) if "consumer" in measure.name]
    assert len(found) == 4 and all(measure.value > 10 for measure in found), found
    assert all(measure.is_kept for measure in found), found
