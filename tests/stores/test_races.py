"""Eight racers, 256 rows, one winner each: the claim that SELECT-then-UPDATE registries get wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from pxrs.stores.memory import MemoryStore
from pxrs.testing.faults import racing
from tests.tools import races

ROUNDS = 50


def test_b03_eight_threads_race_for_256_rows_in_memory() -> None:
    assert races.race_threads(ROUNDS) == []


@pytest.mark.processes
@pytest.mark.slow
def test_b03_eight_processes_race_for_256_rows_in_sqlite(tmp_path: Path) -> None:
    assert racing.race_processes(f"sqlite:{tmp_path}/registry.db", ROUNDS) == []


def test_the_judge_sees_a_row_with_two_winners_and_one_with_none() -> None:
    store = MemoryStore()
    racing.lay_out(store)
    rows = store.scan("p/")
    racing.claim(store, rows, b"round 0 by 0")
    everything = tuple(range(racing.ROWS))
    assert racing.judge(store, [racing.Tally((everything,)), racing.Tally(((),))], 1) == []
    assert "257 wins of 256 rows" in racing.judge(store, [racing.Tally((everything,)), racing.Tally(((7,),))], 1)[0]
    assert "255 wins of 255 rows" in racing.judge(store, [racing.Tally((everything[1:],))], 1)[0]
    assert racing.judge(store, [racing.Tally(error="boom")], 1) == ["boom"]
