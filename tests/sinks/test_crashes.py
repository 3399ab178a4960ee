"""Kills at every step: whatever happens, plain readers see each message's output once, and nothing is left behind."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sinks.support import Crash, Place, Rows, crash_at, live, pause_at, recover_all

KINDS = ("parquet", "hive", "queue")
ROOT = Path(__file__).resolve().parents[2]
NEVER = 1_000_000
LIVES = ("b" * 32, "c" * 32, "d" * 32)


def crashes(place: Place, rows: Rows, life: str, at: int) -> bool:
    """Whether an owner came to the step at which it was to end."""
    with place.sink() as sink, crash_at(at):
        try:
            live(rows, sink, life)
        except Crash:
            return True
    return False


def take_over_to_the_end(place: Place, rows: Rows) -> None:
    with place.sink() as sink:
        live(rows, sink, "f" * 32)
        assert place.content() == rows.expected
        recover_all(rows, sink)
    assert place.content() == rows.expected
    assert place.leftovers() == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_owner_that_ends_at_any_step_shows_nothing_twice_and_loses_nothing(kind: str, tmp_path: Path) -> None:
    for at in range(10_000):
        place, rows = Place(tmp_path / str(at), kind), Rows(end=3 if kind == "hive" else 6)
        place.directory.mkdir()
        crashed = crashes(place, rows, LIVES[0], at)
        assert set(place.content()) <= set(rows.expected) and len(set(place.content())) == len(place.content())
        take_over_to_the_end(place, rows)
        if not crashed:
            break
    assert at > 30, "there are that many steps, at least"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_owners_that_end_one_after_the_other_at_any_steps(kind: str, tmp_path: Path) -> None:
    rng = random.Random(7)
    for turn in range(60):
        place, rows = Place(tmp_path / str(turn), kind), Rows(end=3)
        place.directory.mkdir()
        for life in LIVES:
            crashes(place, rows, life, rng.randrange(70))
        take_over_to_the_end(place, rows)


@pytest.mark.parametrize("kind", ["parquet", "hive", "memory"])  # a file log's locks would keep the others waiting
def test_an_owner_that_sleeps_at_any_step_and_wakes_after_its_loss_changes_nothing(kind: str, tmp_path: Path) -> None:
    for at in range(10_000):
        place, rows = Place(tmp_path / str(at), kind), Rows(end=4)
        place.directory.mkdir()

        def others_take_over(place: Place = place, rows: Rows = rows) -> None:
            with place.sink() as sink:
                live(rows, sink, LIVES[1])

        try:
            with place.sink() as sink, pause_at(at, others_take_over) as seen:
                live(rows, sink, LIVES[0])
        finally:
            steps = len(seen)
        assert place.content() == rows.expected
        take_over_to_the_end(place, rows)
        if steps <= at:
            break
    assert at > 20, "there are that many steps, at least"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("kind", ["parquet", "queue"])
def test_processes_that_are_killed_at_random_steps(kind: str, tmp_path: Path) -> None:
    rng, killed = random.Random(3), 0
    for at in [*(rng.randrange(60) for _ in range(5)), NEVER]:
        command = [sys.executable, "-m", "tests.sinks.owner_process", kind, str(tmp_path), str(at), "12"]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        killed += ended.returncode == -signal.SIGKILL
    assert killed == 5
    assert Place(tmp_path, kind).content() == Rows(end=12).expected
