"""A stream from a group into a queue, without Spark: the questions to the source, the tasks, the commit of the writer,
and the two logs of its checkpoint as files. A life can be ended by SIGKILL at each step of a commit.

    python -m tests.spark.write.group_lives DIRECTORY

Each life is a forked process, as in ``sink_kills``. Prints one JSON line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql.types import BinaryType, StringType, StructField, StructType

import pxrs
from pxrs.runtime.registry.registry import Registry
from pxrs.spark.write.paths import WritePaths
from pxrs.spark.write.writer import stream_writer
from tests.spark.helpers import EACH, PARTITIONS, messages, open_orders
from tests.spark.stream.helpers import Checkpoint, Query, Row, member_of
from tests.spark.write.helpers import left_behind
from tests.spark.write.kills import count_steps, forked, load_modules, staged

SCHEMA = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
EVERYTHING = [(p, offset) for p in range(PARTITIONS) for offset in range(EACH)]
TASKS = 2


class Life:
    """One run of a query from ``orders`` to ``copies``; what it leaves in its checkpoint the next one finds."""

    def __init__(self, place: Path, member: str = "A", **options: str) -> None:
        self.directory = place / f"checkpoint-{member}"
        self.checkpoint = Checkpoint()
        self._load()
        self.query = Query(member_of(place, member, **options), self.checkpoint)
        options = {"path": f"file:{place}/copies", "partitions": "3", "checkpointlocation": str(self.directory)}
        self.writer = stream_writer(options, SCHEMA, False)

    def _load(self) -> None:
        for log in ("offsets", "commits"):
            (self.directory / log).mkdir(parents=True, exist_ok=True)
        (self.directory / "metadata").write_text('{"id": "4711"}\n')
        texts = [(self.directory / "offsets" / str(n)).read_text() for n in range(self._count("offsets"))]
        self.checkpoint.offsets = [text.splitlines()[-1] for text in texts]
        self.checkpoint.commits = self._count("commits")

    def _count(self, log: str) -> int:
        return len(os.listdir(self.directory / log))

    @property
    def batch(self) -> int:
        return len(self.checkpoint.offsets) - 1

    def plan(self) -> bool:
        """Whether there is a batch to do: one that was not finished, or a new one."""
        if not self.query.unfinished:
            if not self.query.plan():
                return False
            text = "\n".join(["v1", "{}", self.checkpoint.offsets[-1]])
            (self.directory / "offsets" / str(self.batch)).write_text(text)
        return True

    def tasks(self) -> list[Any]:
        """What the tasks of the batch report; the rows of a partition of the source are one key."""
        rows, place = self.query.execute(), WritePaths(self.writer.root, "query-4711", self.batch)
        size = len(rows) // TASKS + 1
        shares = [rows[first : first + size] for first in range(0, len(rows), size)]
        return [staged(self.writer, place, task, _keyed(share)) for task, share in enumerate(shares)]

    def finish(self, reports: list[Any]) -> None:
        self.writer.commit(reports, self.batch)
        self.query.finish()
        (self.directory / "commits" / str(self.batch)).touch()

    def run(self) -> None:
        """All there is."""
        while self.plan():
            self.finish(self.tasks())

    def forget_the_last(self) -> None:
        """The commit log has lost its last entry, as after a death behind the commit."""
        (self.directory / "commits" / str(self.batch)).unlink()


def _keyed(rows: list[Row]) -> list[tuple[str, bytes]]:
    return [(str(partition), f"{partition}/{offset}".encode()) for partition, offset in rows]


def add(place: Path, *partitions: int) -> list[Row]:
    """One more message in each of these partitions."""
    with pxrs.open(f"file:{place}/orders") as queue:
        ends = queue.ends()
        queue.log.append({p: messages(p, range(ends[p], ends[p] + 1)) for p in partitions})
    return [(p, ends[p]) for p in partitions]


def copied(place: Path) -> list[Row]:
    """What stands in the other queue, by the source's partitions and as it follows there."""
    with pxrs.open(f"file:{place}/copies") as queue:
        found = [m for p, end in queue.ends().items() for m in queue.read(partition=p, offset=0, limit=end + 1)]
        rows = [(int(p), int(offset)) for p, offset in (m.text.split("/") for m in found)]
    return sorted(rows, key=lambda row: row[0])


def waiting(place: Path) -> list[str]:
    """The names of files that wait for a commit, or to be shown."""
    with pxrs.open(f"file:{place}/copies") as queue:
        staging = [file for _, _, files in os.walk(place / "copies" / "_staging") for file in files]
        return sorted({*staging, *left_behind(queue)} - {"place.json"})


# ---- a campaign of kills ---------------------------------------------------------------------------------------------


def first_life(place: Path, end: int) -> None:
    """Two batches; killed at a step of the second one's commit."""
    open_orders(place).close()
    life = Life(place)
    life.run()
    add(place, *range(PARTITIONS))
    assert life.plan()
    reports = life.tasks()
    Registry.store_progress = count_steps(end)(Registry.store_progress)  # type: ignore[method-assign]  # to be killed at
    life.finish(reports)
    life.query.reader.stop()


def next_life(place: Path) -> None:
    """Spark repeats the batch, and goes on; then each row stands there once, in its order, and nothing waits."""
    life = Life(place)
    life.run()
    added = add(place, 0)
    life.run()
    life.query.reader.stop()
    rows = [(p, offset) for p in range(PARTITIONS) for offset in range(EACH + 1)]
    assert copied(place) == sorted([*rows, *added]), f"{len(copied(place))} rows instead of {len(rows) + 1}"
    assert waiting(place) == [], waiting(place)


def campaign(directory: str) -> dict[str, int]:
    """A step is before a call or behind it; behind one is before the next, so every other step is enough."""
    load_modules(directory, lambda: first_life(Path(directory, "first"), 0))
    kills = 0
    while not forked(first_life, Path(directory, f"q{kills}"), 2 * kills + 1):
        forked(next_life, Path(directory, f"q{kills}"))
        kills += 1
    return {"kills": kills}


if __name__ == "__main__":
    print(json.dumps(campaign(sys.argv[1])))
