"""A second Spark application joins: how long until it owns its share, and whether anybody else has to wait for that.

``python -m benchmarks.parts.joining URL`` is that second application: a process and a JVM of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import pxrs
from benchmarks.harness import HERE
from benchmarks.parts.applications import spark_application
from benchmarks.parts.messages import PARTITIONS, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pxrs.spark import Pipeline

GROUP = "joining"
BATCH_SECONDS = 0.8
"""What a batch takes. A hand-over waits for the end of the running one, so this is most of what is measured."""
ROWS = 2_000
SETTLED_SECONDS = 3.0
"""How long the group is watched before a join and after it: some batches."""


class Joins(NamedTuple):
    """Seconds: of each join, and of the longest waits of partitions that stayed where they were."""

    joins: list[float]
    pause_before: float
    pause_during: float


class Run(NamedTuple):
    """When a batch ran, and with which partitions."""

    began: float
    ended: float
    partitions: frozenset[int]


def watch_joins(spark: SparkSession, url: str, rounds: int) -> Joins:
    """One application works on all partitions; another one joins and leaves, some times."""
    runs: list[Run] = []
    with pxrs.open(url, partitions=PARTITIONS) as queue:
        fill(queue, 400_000)
        with _second_application(url) as second, _pipeline(spark, queue, "A", _noted_in(runs)) as first:
            found = [_join(queue, first, second, f"B{number}", runs) for number in range(rounds)]
    times, before, during = (list(column) for column in zip(*found, strict=True))
    return Joins(times, max(before), max(during))


def _noted_in(runs: list[Run]) -> Callable[[str, Mapping[str, Any]], None]:
    def note(kind: str, facts: Mapping[str, Any]) -> None:
        if kind == "batch":
            now = time.time()
            runs.append(Run(now - facts["seconds"], now, frozenset(facts["partitions"])))

    return note


def _join(
    queue: pxrs.Queue, first: Pipeline, second: subprocess.Popen[str], member: str, runs: list[Run]
) -> tuple[float, float, float]:
    _until(lambda: len(first.partitions) == PARTITIONS, "the first application owns everything")
    time.sleep(SETTLED_SECONDS)
    joined = float(_tell(second, member))
    _until(lambda: _owned(queue, member) == PARTITIONS // 2, "the second application has its share")
    time.sleep(SETTLED_SECONDS)
    claims = [since for row in queue.group(GROUP).registry.partitions() for since in _claims(row, member)]
    kept = frozenset(first.partitions)
    _tell(second, "leave")
    gaps = [(after.began, after.began - before.ended) for before, after in _neighbours(runs, kept, joined)]
    earlier = max(gap for began, gap in gaps if began < joined)
    later = max(gap for began, gap in gaps if began >= joined)
    return max(claims) - joined, earlier, later


def _owned(queue: pxrs.Queue, member: str) -> int:
    return sum(row.owner is not None and row.owner.id == member for row in queue.group(GROUP).registry.partitions())


def _claims(row: Any, member: str) -> list[float]:
    return [tenure.since for tenure in row.history if tenure.owner == member]


def _neighbours(runs: list[Run], kept: frozenset[int], joined: float) -> Iterator[tuple[Run, Run]]:
    """Batches that follow each other, for each partition that stayed, around the join."""
    recent = [run for run in runs if run.ended > joined - SETTLED_SECONDS]
    for partition in kept:
        mine = [run for run in recent if partition in run.partitions]
        yield from pairwise(mine)


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within 120 s: {what}")
        time.sleep(0.05)


# ---- the applications ------------------------------------------------------------------------------------------------


def _work(df: DataFrame) -> None:
    """Something that really runs on Spark, and a batch time that does not depend on the machine."""
    began = time.monotonic()
    df.count()
    time.sleep(max(0.0, BATCH_SECONDS - (time.monotonic() - began)))


def _pipeline(spark: SparkSession, queue: pxrs.Queue, member: str, report: Any = None) -> Pipeline:
    from pxrs.spark import Pipeline

    settings = pxrs.Settings(max_batch_rows=ROWS)
    return Pipeline(spark, queue, GROUP, process=_work, member=member, settings=settings, report=report)


@contextmanager
def _second_application(url: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.parts.joining", url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=HERE.parent) as process:
        try:
            if _said(process.stdout) != "ready":
                raise RuntimeError("the second application did not start")
            yield process
        finally:
            process.communicate()  # it ends with its input


def _said(output: IO[str] | None) -> str:
    assert output is not None
    return output.readline().strip()


def _tell(process: subprocess.Popen[str], word: str) -> str:
    """What the second application answers: when its row stood in the registry, or when it has left."""
    assert process.stdin is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()
    answer = _said(process.stdout)
    if not answer:
        raise RuntimeError(f"the second application ended when it was told {word!r}")
    return answer


def main(url: str) -> None:
    """Joins under each name that it reads, and leaves when it reads so; answers with the time of it."""
    with spark_application("local[1]") as spark, pxrs.open(url) as queue:
        _work(spark.createDataFrame([(1,)], "one int"))
        print("ready", flush=True)
        pipeline: Pipeline | None = None
        for word in map(str.strip, sys.stdin):
            if word != "leave":
                pipeline = _pipeline(spark, queue, word, _joined_is_said).start()
            elif pipeline is not None:
                pipeline.stop()
                print(time.time(), flush=True)


def _joined_is_said(kind: str, facts: Mapping[str, Any]) -> None:  # noqa: ARG001 - every report has facts
    if kind == "joined":
        print(time.time(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
