"""Sweeps of claims and plans on their way: only what a dead owner left is removed, whenever the sweep comes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pxrs.errors import Fenced
from pxrs.model import Grant, Owner, Range
from pxrs.sinks import ParquetSink
from pxrs.sinks.staging import Staging
from tests.sinks.starts import run_starts
from tests.sinks.support import GROUP, LOG, QUEUE, Crash, Place, batch_of, before_each_step, crash_at, output_of

MINE = batch_of(Range(1, 0, 9, 4), Range(3, 0, 9, 6))
OTHERS = Owner("B", "b" * 32)


def claim(root: Path, partition: int, epoch: int = 7) -> None:
    Staging(str(root)).clear_dead(QUEUE, LOG, GROUP, Grant(partition, OTHERS, epoch), keep="")


def at_every_step(action: Callable[[], None]) -> Any:
    """Let something else happen before each change of the file system."""
    acting = False

    def hook(_: int) -> None:
        nonlocal acting
        if not acting:
            acting = True
            action()
            acting = False

    return before_each_step(hook)


@pytest.mark.parametrize("kind", ["parquet", "hive", "queue"])
def test_claims_of_others_at_every_step_never_disturb_a_living_owner(kind: str, tmp_path: Path) -> None:
    place = Place(tmp_path, kind)
    with place.sink() as sink, at_every_step(lambda: claim(place.staging, 5)):
        sink.publish(sink.stage(MINE, output_of(MINE)))
    assert len(place.content()) == 18 and place.leftovers() == []


def test_what_an_owner_leaves_that_dies_while_it_writes_its_plan_goes_with_the_next_claim(tmp_path: Path) -> None:
    left = 0
    for at in range(100):
        place = Place(tmp_path / str(at), "parquet")
        place.directory.mkdir()
        with crash_at(at) as seen, suppress(Crash):
            Staging(str(place.staging)).begin(MINE)
        before = [name for name in place.leftovers() if name.endswith(".tmp") and "place" not in name]
        claim(place.staging, 3)  # says nothing of the file's own partition, 1
        claim(place.staging, 1, epoch=4)  # the owner itself
        assert [name for name in place.leftovers() if name.endswith(".tmp") and "place" not in name] == before
        left += len(before)
        Staging(str(place.staging)).begin(batch_of(Range(8, 0, 9, 1), number=2))  # the place has its id
        claim(place.staging, 1)
        assert not [name for name in place.leftovers() if name.endswith(".tmp")]
        if len(seen) <= at:
            break
    assert left >= 3, "the file was made, written, synced"


def test_an_owner_that_sleeps_in_its_plan_past_the_claim_of_another_is_fenced(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")
    with at_every_step(lambda: claim(tmp_path / "_out.staging", 1)), pytest.raises(Fenced, match="has a new owner"):
        sink.stage(MINE, output_of(MINE))


def test_plans_on_their_way_of_the_version_before_are_judged_by_what_is_in_them(tmp_path: Path) -> None:
    Staging(str(tmp_path)).begin(batch_of(Range(8, 0, 9, 1), number=2))
    whose = f'"format": 1, "queue": "{QUEUE}", "log": "{LOG}", "group": "{GROUP}"'
    (tmp_path / "dead.1.plan").write_text("{" + whose + ', "epochs": {"3": 6}}')
    (tmp_path / "living.1.plan").write_text("{" + whose + ', "epochs": {"3": 7}}')
    (tmp_path / "begun.1.plan").write_text("{" + whose)
    claim(tmp_path, 3)
    assert sorted(os.listdir(tmp_path)) == ["begun.1.plan", "living.1.plan", "plans"]


# ---- one walk for many claims ----------------------------------------------------------------------------------------


class Watched(Staging):
    """Counts its walks over the directory, and lets the first one wait, or fail."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.walks: list[int] = []
        self.go_on = threading.Event()
        self.error: OSError | None = None

    def _sweep(self, claims: Any) -> None:
        self.walks.append(len(claims))
        assert self.go_on.wait(60)
        if self.error is not None and len(self.walks) == 1:
            raise self.error
        super()._sweep(claims)

    def wait_for(self, count: int) -> None:
        """Until so many claims are in the first walk, or wait for the next one."""
        deadline = time.monotonic() + 60
        while sum(self.walks) + len(self._claims) < count:
            assert time.monotonic() < deadline
            time.sleep(0.001)


@pytest.mark.parametrize("error", [None, OSError(5, "Input/output error")])
def test_one_walk_serves_all_partitions_that_are_claimed_meanwhile(error: OSError | None, tmp_path: Path) -> None:
    staging, old = Watched(tmp_path), Staging(str(tmp_path))
    staging.error = error
    for partition in range(10):
        old.begin(batch_of(Range(partition, 0, 9, 6), number=partition))
    with ThreadPoolExecutor(10) as pool:
        asked = [
            pool.submit(staging.clear_dead, QUEUE, LOG, GROUP, Grant(number, OTHERS, 7), "") for number in range(10)
        ]
        staging.wait_for(10)
        staging.go_on.set()
        failed = [one.exception(60) for one in asked if one.exception(60)]
    assert failed == ([error] if error else [])
    assert len(staging.walks) == 2, "whoever came first, and one for all others"
    left = sorted(name for name in os.listdir(tmp_path / "plans") if name != "place.json")
    assert len(left) == (1 if error else 0), "whoever heard of the error asks again"


# ---- all of it together ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "queue"])
def test_a_consumer_of_many_partitions_does_not_die_by_its_own_claims(kind: str, tmp_path: Path) -> None:
    [found] = run_starts(tmp_path, kind, partitions=24, starts=1, rows=20)
    assert found.errors == [] and found.shown == found.sent
