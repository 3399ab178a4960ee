"""A sink that has seen a later claim: a hand-over is quiet; only a sink that is ahead of the registry gives advice."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from pxrs.model import Grant
from pxrs.runtime.ports.sink import Overtaken
from pxrs.sinks import ParquetSink
from tests.runtime.batches.test_batching import MemorySink, Yard
from tests.runtime.consumer.test_sink_consumer import Setup
from tests.runtime.support import PATIENT, eventually


class Guard:
    """The highest epoch of each partition that any sink has seen, as a table beside the output holds it."""

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._sleeper: list[str] = ["A"]

    def pass_by(self, grant: Grant) -> None:
        if self._sleeper == [grant.owner.id]:  # its first claim of all is slow
            self._sleeper.clear()
            self.reached.set()
            assert self.go_on.wait(60)
        seen = self.epochs.get(grant.partition, 0)
        if seen > grant.epoch:
            raise Overtaken(f"the guard has seen epoch {seen}, and not only {grant.epoch}", "Delete its rows")
        self.epochs[grant.partition] = grant.epoch


class GuardedMemory(MemorySink):
    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self._guard = guard

    def recover(self, queue: str, log: str, group: str, grant: Grant, note: str) -> None:
        self._guard.pass_by(grant)
        super().recover(queue, log, group, grant, note)


class GuardedParquet(ParquetSink):
    def __init__(self, directory: Path, guard: Guard) -> None:
        super().__init__(directory)
        self._guard = guard

    def recover(self, queue: str, log: str, group: str, grant: Grant, note: str) -> None:
        self._guard.pass_by(grant)
        super().recover(queue, log, group, grant, note)


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.ERROR]


def test_partitions_that_leave_before_a_pipeline_has_begun_them_are_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Yard(8) as yard:
        guard = Guard()
        yard.sink = GuardedMemory(guard)
        yard.site.send(80)
        first = yard.engine("A", sink=yard.sink)
        assert guard.reached.wait(60)
        eventually(lambda: set(yard.site.owners().values()) == {"A"}, "A has claimed all")
        yard.engine("B", sink=yard.sink)
        eventually(lambda: len(guard.epochs) == 4, "B has taken its four, of which A has begun none")
        guard.go_on.set()
        yard.await_end()
        yard.await_shown()
        assert complaints(caplog) == [] and first.life.error is None and first.shares.troubles() == {}


def test_a_partition_that_is_taken_before_a_consumer_has_begun_it_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Setup(tmp_path, PATIENT) as setup:
        guard = Guard()
        setup.send(40)
        first = setup.consumer("A", sink=GuardedParquet(setup.out, guard))
        assert guard.reached.wait(60)
        eventually(lambda: len(guard.epochs) == 3, "A sleeps over its fourth partition")
        registry = setup.queue.group("g").registry
        [asleep] = {0, 1, 2, 3} - set(guard.epochs)
        owner = registry.partition(asleep).owner
        assert owner is not None
        registry.force_release({asleep: owner})
        guard.epochs[asleep] = registry.partition(asleep).epoch  # as the next owner leaves it
        guard.go_on.set()
        setup.await_shown()
        assert complaints(caplog) == [] and first.error is None


@pytest.mark.parametrize("engine", ["pipeline", "consumer"])
def test_a_guard_that_is_ahead_of_the_registry_holds_the_partition_and_gives_the_advice(
    engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Guard()
    guard.go_on.set()
    guard.epochs[1] = 1_000  # the registry was restored from a copy
    opened: Any = Setup(tmp_path, PATIENT) if engine == "consumer" else Yard(4)
    with opened:
        if engine == "consumer":
            opened.send(40)
            member = opened.consumer("A", sink=GuardedParquet(opened.out, guard))
        else:
            opened.site.send(40)
            opened.sink = GuardedMemory(guard)
            member = opened.engine("A", sink=opened.sink).life
        advice = "and not only 1; the registry knows no later claim: it was wiped or restored. Delete its rows"
        eventually(lambda: any(advice in text for text in complaints(caplog)), "the partition waits, with the advice")
        assert member.error is None
        del guard.epochs[1]
        opened.await_shown()
