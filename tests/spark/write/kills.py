"""A campaign of kills, without Spark: the tasks and the commit of one numbered write, ended by SIGKILL at each of its
steps, and then repeated as a driver that restarts repeats it, with its rows in another order and in other tasks.

    python -m tests.spark.write.kills DIRECTORY

Each life is a forked process. A step is a call that others could see: a name that is linked, renamed or removed, a
file that is synced, an append; a life may end before it or behind it. Prints one JSON line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

import pxrs
from pxrs.runtime.producer.append_once import AppendOnce
from pxrs.spark.write import append as sink_append
from pxrs.spark.write.paths import WritePaths
from pxrs.spark.write.spark_writers import Staged, StreamWriter
from pxrs.spark.write.task import stage
from pxrs.spark.write.writer import stream_writer

PARTITIONS, ROWS, KEYS = 3, 60, 7
SCHEMA = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
QUERY = "query-4711"


def rows_of(batch: int) -> list[tuple[str, bytes]]:
    return [(f"k{row % KEYS}", f"{batch}/{row:04d}".encode()) for row in range(ROWS)]


def messages(writer: StreamWriter, batch: int, splits: int, is_turned: bool) -> list[Any]:
    """What the tasks of a try report. Keys keep their order: a task has whole keys, or they come one after another."""
    rows = rows_of(batch)
    if is_turned:  # other tasks, and the keys in another order
        rows.sort(key=lambda row: (-int(row[0][1:]), row[1]))
    place = WritePaths(writer.root, QUERY, batch)
    size = -(-ROWS // splits)
    return [staged(writer, place, task, rows[task * size : (task + 1) * size]) for task in range(splits)]


def staged(writer: StreamWriter, place: WritePaths, task: int, rows: Sequence[tuple[str, bytes]]) -> Staged:
    batch = pa.RecordBatch.from_pylist([{"key": key, "value": value} for key, value in rows])
    return Staged(place, task, stage([batch], writer.job, place), "here")


def driver(url: str, splits: int, is_turned: bool, batches: Sequence[int], end: int = 0) -> None:
    """One driver: the tasks of some batches, each with its commit; killed at a step of the last commit."""
    sink_append.SHIPMENT_BYTES = 300  # several shipments
    options = {"path": url, "partitions": str(PARTITIONS), "pxrs.segment.bytes": "2000"}
    for batch in batches:
        writer = stream_writer(options, SCHEMA, False)  # as Spark does: a new one for each batch
        reports = messages(writer, batch, splits, is_turned)
        if end and batch == batches[-1]:
            stepping = count_steps(end)
            AppendOnce.append = stepping(AppendOnce.append)  # type: ignore[method-assign]
        writer.commit(reports, batch)


def last_driver(url: str, splits: int, is_turned: bool, batches: Sequence[int]) -> None:
    """One that lives, and looks at the result."""
    driver(url, splits, is_turned, batches)
    check(url, batches[-1] + 1)


def count_steps(end: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """End this process at a step. Returns what makes another call count as one."""
    seen = 0

    def step() -> None:
        nonlocal seen
        seen += 1
        if seen == end:
            os.kill(os.getpid(), signal.SIGKILL)

    def stepping(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **more: Any) -> Any:
            step()
            result = call(*args, **more)
            step()
            return result

        return called

    for name in ("link", "rename", "unlink", "fsync", "rmdir"):
        setattr(os, name, stepping(getattr(os, name)))
    return stepping


def forked(work: Callable[..., None], *args: Any) -> bool:
    """Whether a process that does this came to its end; False if it was killed."""
    child = os.fork()
    if child == 0:
        try:
            work(*args)
            os._exit(0)
        except BaseException as error:
            print(f"{work.__name__}{args}: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False
    assert os.waitstatus_to_exitcode(status) == 0, f"{work.__name__}{args} failed"
    return True


def check(url: str, batches: int) -> None:
    """Every row of the batches stands in the queue once, in the order of its key, and nothing waits."""
    with pxrs.open(url) as queue:
        found = [m for p, end in queue.ends().items() for m in queue.read(partition=p, offset=0, limit=end + 1)]
        wanted = sorted(value for batch in range(batches) for _, value in rows_of(batch))
        assert sorted(m.value for m in found) == wanted, f"{len(found)} messages instead of {len(wanted)}"
        for key in {m.key for m in found}:
            own = [m.value for m in found if m.key == key]
            assert own == sorted(own), f"{key!r} is out of order"
        waiting = sorted(file for _, _, files in os.walk(Path(queue.log.directory or "", "_spark")) for file in files)
        assert waiting == [f"{batches - 1}.done"], waiting


def load_modules(directory: str, life: Callable[[], None]) -> None:
    """Load here what each life would load anew: that takes most of its time. Nothing is used, so no thread starts."""

    def tell_modules() -> None:
        life()
        Path(directory, "modules").write_text("\n".join(sys.modules), encoding="utf-8")

    forked(tell_modules)
    for name in Path(directory, "modules").read_text(encoding="utf-8").splitlines():
        with suppress(ImportError):
            import_module(name)


def campaign(directory: str) -> dict[str, int]:
    """Kill at every step; then at some steps of a life and some of the one that repeats it."""
    load_modules(directory, lambda: last_driver(f"file:{directory}/first", 2, False, (0, 1)))
    kills = 0
    while not forked(driver, f"file:{directory}/q{kills}", 2, False, (0, 1), kills + 1):
        forked(last_driver, f"file:{directory}/q{kills}", 3, True, (1, 2))  # Spark repeats the batch, and goes on
        kills += 1
    pairs = [(first, 2 + 5 * first % kills) for first in range(3, kills, 4)]
    for first, second in pairs:
        url = f"file:{directory}/q{first}-{second}"
        forked(driver, url, 2, False, (0, 1), first)
        forked(driver, url, 3, True, (1,), second)
        forked(last_driver, url, 1, False, (1, 2))
    return {"kills": kills, "twice": len(pairs)}


if __name__ == "__main__":
    print(json.dumps(campaign(sys.argv[1])))
