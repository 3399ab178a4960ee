"""The walks through the code: ``python -m tests.house.walks [--names] [1] [2] [3]`` prints them beside their limits.

A walk is recorded by a profiler: each entry is a function of the product that was really entered. Walk 1 is one
message (file log and SQLite, in one process), walk 2 a rebalance (member B joins member A, memory store), walk 3 one
small Spark batch into a ``ParquetSink``. Each is walked several times, and the shortest walk counts: a heartbeat, or a
look at the log that happened to fall into a walk, is no part of it.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pxrs
from pxrs import Consumer, Queue, Settings
from tests.house.table import Measure, as_text

SECONDS = 60.0
"""So long a walk may take; it is not waited for longer."""
STILL = 0.15
"""A walk is over when no function was entered for this many seconds."""


class Entry(NamedTuple):
    """A function that was entered: by which thread, how deep, and where it is."""

    thread: str
    depth: int
    module: str
    name: str


class Walk:
    """The functions that were entered between two moments, in their order."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries

    @property
    def files(self) -> set[str]:
        return {entry.module for entry in self.entries}

    def calls(self, thread: str = "", name: str = "") -> int:
        """How many calls there were: of all, of one thread, of one function."""
        return sum(entry.thread.startswith(thread) and entry.name.endswith(name) for entry in self.entries)

    def __str__(self) -> str:
        lines = []
        for thread in dict.fromkeys(entry.thread for entry in self.entries):
            lines.append(f"=== thread {thread}: {self.calls(thread)} calls")
            mine = (entry for entry in self.entries if entry.thread == thread)
            lines += [f"{'  ' * e.depth}{e.module.removeprefix('pxrs.')}:{e.name}" for e in mine]
        return "\n".join(lines)


class Recorder:
    """A profiler of all threads that start after it was made. It notes functions of the product while it is on."""

    def __init__(self) -> None:
        self._is_on = False
        self._entries: list[Entry] = []
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    def end(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def walk(self, step: Callable[[], object]) -> Walk:
        """What is entered during this step, and until all is still after it."""
        self._is_on = True
        self._wait_until_still()
        self._entries = []
        step()
        self._wait_until_still()
        self._is_on = False
        return Walk(self._entries)

    def _wait_until_still(self) -> None:
        seen = -1
        while seen != len(self._entries):
            seen = len(self._entries)
            threading.Event().wait(STILL)

    def _see(self, frame: FrameType, event: str, _arg: object) -> None:
        if self._is_on and event == "call" and _is_own(frame):
            code, thread = frame.f_code, threading.current_thread().name
            name = getattr(code, "co_qualname", code.co_name)
            self._entries.append(Entry(thread, _depth(frame.f_back), frame.f_globals["__name__"], name))


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("pxrs")


def _depth(frame: FrameType | None) -> int:
    depth = 0
    while frame is not None:
        depth += _is_own(frame)
        frame = frame.f_back
    return depth


@contextmanager
def recording() -> Iterator[Recorder]:
    recorder = Recorder()
    try:
        yield recorder
    finally:
        recorder.end()


def shortest(walks: list[Walk]) -> Walk:
    return min(walks, key=Walk.calls)


class Events:
    """A report that lets a test wait for what happens in a member."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._seen: list[tuple[str, Mapping[str, Any]]] = []

    def __call__(self, kind: str, facts: Mapping[str, Any]) -> None:
        with self._changed:
            self._seen.append((kind, facts))
            self._changed.notify_all()

    def wait(self, kind: str, times: int) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: sum(seen == kind for seen, _ in self._seen) >= times, SECONDS)
        if not came:
            raise TimeoutError(f"not {times} times {kind!r}: {[seen for seen, _ in self._seen]}")


# ---- the three walks ------------------------------------------------------------------------------------------------


def walk_message(times: int = 7) -> Walk:
    """One message in steady state: ``send``, the handler, the commit of its checkpoint."""
    settings = Settings(commit_every=1, commit_interval_ms=50, linger_ms=1)
    events = Events()

    def one(number: int) -> Walk:
        def step() -> None:
            producer.send("a", b"1").result()
            events.wait("committed", number)

        return recorder.walk(step)

    with (
        tempfile.TemporaryDirectory() as place,
        recording() as recorder,
        pxrs.open(f"file:{place}/q", partitions=2, settings=settings) as queue,
        queue.producer() as producer,
        queue.consumer(group="g", handler=lambda _: None, member="A", report=events),
    ):
        events.wait("claimed", 2)
        return shortest([one(number) for number in range(1, times + 1)][1:])


class Rebalance(NamedTuple):
    """Walk 2, and the part of it that makes the consumer."""

    whole: Walk
    made: Walk


def walk_rebalance(times: int = 16) -> Rebalance:
    """B joins A, which holds 4 partitions of a queue without messages; two of them move."""
    with recording() as recorder:
        walks = [_rebalance(recorder) for _ in range(times)]
    return min(walks, key=lambda found: found.whole.calls())


def _rebalance(recorder: Recorder) -> Rebalance:
    with pxrs.open("memory:walk", partitions=4, settings=Settings()) as queue:
        before, after = Events(), Events()
        with _consumer(queue, "A", before):
            before.wait("claimed", 4)
            found: list[Consumer] = []
            made = recorder.walk(lambda: found.append(_consumer(queue, "B", after)))

            def join() -> None:
                found[0].start()
                after.wait("claimed", 2)

            joined = recorder.walk(join)
            found[0].stop()
            return Rebalance(Walk(made.entries + joined.entries), made)


def _consumer(queue: Queue, member: str, events: Events) -> Consumer:
    return queue.consumer(group="g", handler=lambda _: None, member=member, report=events)


def walk_batch(times: int = 5) -> Walk:
    """One small Spark batch, read by the driver, into a Parquet directory."""
    from pxrs.sinks import ParquetSink
    from pxrs.spark import Pipeline, session

    with tempfile.TemporaryDirectory() as place, recording() as recorder:
        spark = session("walk", master="local[1]")
        with pxrs.open(f"file:{place}/q", partitions=2) as queue, queue.producer() as producer:
            sink, events = ParquetSink(Path(place, "out")), Events()
            pipeline = Pipeline(
                spark, queue, group="g", sink=sink, member="A", progress=False, report=events,
                process=lambda rows, _: rows.selectExpr("CAST(value AS STRING) v", "`offset`"),
            )  # fmt: skip
            with pipeline:
                events.wait("claimed", 2)

                def one(number: int) -> Walk:
                    def step() -> None:
                        producer.send("a", b"1").result()
                        events.wait("batch", number)

                    return recorder.walk(step)

                found = shortest([one(number) for number in range(1, times + 1)][1:])
        spark.stop()
    return found


# ---- the table ------------------------------------------------------------------------------------------------------


def measures_of_message(walk: Walk) -> list[Measure]:
    return [
        Measure("walk 1, a message: files", "50", 38, len(walk.files)),
        Measure("walk 1: calls", "457", 340, walk.calls()),
        Measure("walk 1: calls of the commit's thread", "175", 110, walk.calls("pxrs-g-A")),
    ]


def measures_of_rebalance(walk: Rebalance) -> list[Measure]:
    return [
        Measure("walk 2, a rebalance: calls", "2,233", 1_600, walk.whole.calls()),
        Measure("walk 2: files to make a consumer", "32", 22, len(walk.made.files)),
    ]


def measures_of_batch(walk: Walk) -> list[Measure]:
    return [
        Measure("walk 3, a small Spark batch: files", "69", 50, len(walk.files)),
        Measure("walk 3: calls of log.bounds", "6", 3, walk.calls(name="FileLog.bounds")),
    ]


def main() -> None:
    wanted = [word for word in sys.argv[1:] if word in "123"] or ["1", "2", "3"]
    rows: list[Measure] = []
    walks: list[Walk] = []
    if "1" in wanted:
        walks.append(walk_message())
        rows += measures_of_message(walks[-1])
    if "2" in wanted:
        rebalance = walk_rebalance()
        walks += [rebalance.made, rebalance.whole]
        rows += measures_of_rebalance(rebalance)
    if "3" in wanted:
        walks.append(walk_batch())
        rows += measures_of_batch(walks[-1])
    if "--names" in sys.argv:
        print(*walks, sep="\n\n")
    print(as_text(rows))


if __name__ == "__main__":
    main()
