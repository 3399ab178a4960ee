"""A Spark application as a member of a consumer group: batches of its share, committed with the epochs of its claims.

    Pipeline(spark, queue, group="billing", process=bill, sink=ParquetSink("./bills")).run()

Start it a second time, anywhere, and it takes its share of the partitions; kill one, and the others go on from the
checkpoints. There is no second checkpoint beside the registry.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from pyspark.sql import SparkSession

from pxrs.errors import BadSetting, Closed, HandlerFailed, PxrsError, Unavailable
from pxrs.io.clock import Clock, SystemClock
from pxrs.io.fork import after_fork
from pxrs.io.process_exit import Stage, at_exit
from pxrs.runtime.batches.backfill import GROUP, Backfill
from pxrs.runtime.batches.held_partitions import HeldPartitions
from pxrs.runtime.batches.loop import BatchLoop
from pxrs.runtime.batches.parts import BatchParts
from pxrs.runtime.delivery import check_called
from pxrs.runtime.group.admin import GroupHandle, Place
from pxrs.runtime.group.membership import Membership, Running, signals, weakly
from pxrs.runtime.group.meter import Meter
from pxrs.runtime.group.until_end import owes_output
from pxrs.runtime.ports.events import Report, to_all
from pxrs.runtime.ports.sink import Sink, bind, check_sink
from pxrs.runtime.queue.queue import Queue
from pxrs.settings import Settings, check_seconds, settings_or
from pxrs.spark.pipeline.runner import Process, Runner, about, as_raised
from pxrs.spark.read.frame import check_session

if TYPE_CHECKING:
    from pxrs.spark.read.frame import Schema
    from pxrs.spark.read.task import MapArrow

RECENT = 100
"""The number of batches that ``recent`` remembers."""
LOOK_SECONDS = 0.2
"""The interval at which a pipeline that runs until the end checks whether the other members have reached it."""
STOP = "stop the pipeline first (pipeline.stop()), then call spark.stop()"
LAST_SECONDS = 10.0
"""The time that a batch may take to notice that nobody waits for it any more."""

Places = Place | Mapping[int, Place]


class Pipeline(Running):
    """Processes its share of a queue's partitions in batches of Spark.

    ``process(df, batch)`` gets each batch as a DataFrame; with a sink it returns one. ``map_arrow`` runs before it,
    next to the log, on Arrow batches of one partition each, in order. Without a group it is a backfill: it reads from
    ``start`` to ``end`` and touches no checkpoint.
    """

    def __init__(
        self,
        spark: SparkSession,
        queue: Queue,
        group: str | None = None,
        process: Process | None = None,
        map_arrow: MapArrow | None = None,
        sink: Sink | None = None,
        *,
        member: str | None = None,
        columns: Iterable[str] | None = None,
        schema: Schema | None = None,
        start: Places = "earliest",
        end: Places | None = None,
        settings: Settings | None = None,
        report: Report | None = None,
        progress: bool | None = None,
    ) -> None:
        self.recent: deque[Mapping[str, Any]] = deque(maxlen=RECENT)
        """The last batches, as ``report("batch", facts)`` has reported them."""
        check_session(spark, "Pipeline")
        check_sink(sink)
        if not isinstance(queue, Queue):
            raise BadSetting(f"queue = {queue!r}: must be an open queue, as pxrs.open({queue!r}) is")
        check_called("report", report, "kind, facts")
        self._queue = queue
        self._settings = settings_or(settings, queue.settings)
        self._clock = SystemClock()
        self._group = queue.group(GROUP if group is None else group)
        self._shares = HeldPartitions(self._settings, self._clock)
        self._target: dict[int, int] | None = None
        told = to_all(self._remember, *live_line(progress, self._clock), *([report] if report else []))
        self._runner = Runner(
            spark, queue.log, process, map_arrow, columns, schema, sink is not None, self._settings.fast_rows
        )
        self._life: Membership | Backfill
        self._conclude: Callable[[], None] = lambda: None
        if group is None:
            self._life = backfill = self._backfill(start, end, told)
            sink, self._conclude = backfill.defer(sink), backfill.conclude
        else:
            self._life = self._member(spark, member, start, end, told)
            bind(sink, queue.store)
        super().__init__(self._life, self._shares)
        self._life.ended = weakly(self._ended)
        self._parts = self._assembly(sink, start)
        self._loop = BatchLoop(self._parts)
        self._thread = threading.Thread(target=self._run, name=f"pxrs-batches-{self._group.name}", daemon=True)
        _all.add(self)

    # ---- what users call -----------------------------------------------------------------------------------------

    def start(self) -> Pipeline:
        """Begin, without blocking."""
        if self._thread.ident is not None:
            raise Closed("a pipeline starts once; make a new one")
        self._life.enter()  # in this thread: what is refused now is raised here
        self._queue.users.add(self)
        self._thread.start()
        return self

    def run(self, until_end: bool = False) -> None:
        """Work until stopped: by ``stop``, by SIGTERM or SIGINT (a clean leave), or by an error, which is raised.

        ``until_end``: also when all that is in the queue now is processed, by this member or by others.
        """
        if until_end:
            self._group.refuse_lost_log()
            self._target = self._parts.ends = self._queue.ends()
            self._parts.idle_seconds = LOOK_SECONDS
        with signals(self._life.request_stop):
            self.start()
            self._life.wait()
            self._thread.join(LAST_SECONDS)
        self.check()

    def stop(self, timeout: float | None = None) -> None:
        """Leave cleanly: finish the running batch, commit, release; the others see it at once. Blocks until done."""
        check_seconds("timeout", timeout)
        self._life.stop(timeout, [self._thread])
        if self._thread.ident is not None and threading.current_thread() is not self._thread and self._life.is_done:
            self._thread.join(LAST_SECONDS)

    @property
    def state(self) -> str:
        """registering, waiting (it owns nothing yet), running, troubled (no answer from the registry), stopping,
        stopped or fenced.
        """
        return self._life.state or ("running" if self.partitions else "waiting")

    @property
    def partitions(self) -> list[int]:
        """The partitions in this pipeline's hands now."""
        return self._shares.partitions

    def __repr__(self) -> str:
        owned = ", ".join(map(str, self.partitions)) or "none"
        return f"<Pipeline of group {self._group.name!r}: {self.state}, partitions {owned}>"

    def __enter__(self) -> Pipeline:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- putting it together ----------------------------------------------------------------------------------------

    def _member(
        self, spark: SparkSession, member: str | None, start: Places, end: Places | None, told: Report
    ) -> Membership:
        if end is not None:
            raise BadSetting("end= is for a backfill, which belongs to no group; run(until_end=True) ends a member")
        target, drain = self._settings.target_batch_ms, self._settings.drain_ms
        if target >= drain:
            raise BadSetting(
                f"target_batch_ms = {target} must be below drain_ms = {drain}: a hand-over waits for the running batch"
            )
        self._group.resolve(_each(start, [0]))  # a bad start is refused here, not later in a thread
        membership = self._queue.join(self._group.name, self._shares, member, about(spark), self._settings, told)
        self._shares.wake = membership.wake
        return membership

    def _backfill(self, start: Places, end: Places | None, told: Report) -> Backfill:
        named = (
            start if isinstance(start, Mapping) else end if isinstance(end, Mapping) else range(self._queue.partitions)
        )
        begin = self._group.resolve(_each(start, named))
        ends = self._group.resolve(_each("latest" if end is None else end, named))
        if set(begin) != set(ends):
            raise BadSetting(f"start= names partitions {sorted(begin)}, end= names {sorted(ends)}: name the same ones")
        for partition, first in begin.items():
            if first > ends[partition]:
                raise BadSetting(f"partition {partition}: start {first} is behind end {ends[partition]}")
        return Backfill(self._shares, begin, ends, told, Meter(self._queue.log, GROUP, self._clock))

    def _assembly(self, sink: Sink | None, start: Places) -> BatchParts:
        life = self._life
        return BatchParts(
            log=self._queue.log,
            group=self._group.name,
            owner=life.owner,
            shares=self._shares,
            settings=self._settings,
            clock=self._clock,
            execute=self._runner.execute,
            is_fatal=self._runner.is_fatal,
            probe=self._runner.probe,
            as_raised=as_raised,
            sink=sink,
            submit=life.submit,
            start_at=lambda partition: start_of(self._group, start, partition),
            dead_letters=self._group.dead_letters,
            stop=life.request_stop,
            fail=self._fail,
            report=life.report,
            max_partitions=self._queue.store.max_atomic,
            ends=life.ends,
            is_over=self._is_over,
            is_stopping=lambda: life.stopping or life.is_done or self._shares.is_halted,
            idle_seconds=None if life.ends is None else LOOK_SECONDS,
        )

    def _is_over(self) -> bool:
        if self._target is None or self._life.ends is not None:
            return self._life.is_over
        try:
            rows = self._group.registry.partitions()
        except Unavailable:
            return False
        me, shares = self._life.owner.id, self._shares
        if any(owes_output(row, me, shares.where(row.number)) for row in rows):
            return False
        return all(row.position >= self._target[row.number] for row in rows)

    # ---- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._is_warm():
            self._life.start()
            self._loop.run()
        self._conclude()

    def _is_warm(self) -> bool:
        """Get Spark ready before this member joins the group: no partition waits for it meanwhile."""
        try:
            self._runner.warm_up()
        except Exception as error:
            self._fail(HandlerFailed(f"Spark cannot run anything: {error}"))
        if self._life.stopping:  # failed, or told to stop before it began: there is nothing to leave
            self._life.stop(own_threads=[self._thread])
        return not self._life.stopping

    def _fail(self, error: PxrsError) -> None:
        """The work cannot go on. Where Spark is gone that is the reason, whatever it said in pages of Java."""
        if self._runner.is_gone():
            told = HandlerFailed(
                f"Spark was stopped under the pipeline of group {self._group.name!r}, or has died: {STOP}"
            )
            told.__cause__ = error
            error = told
        self._life.fail(error)

    def end_with_process(self) -> list[threading.Thread]:
        """Take no more batches; returns the thread that ends by this."""
        self._life.end_with_process()
        return [self._thread]

    def _ended(self) -> None:
        """The member is gone. A batch that still runs does not count any more: let Spark drop it."""
        self._shares.halt()
        self._queue.users.discard(self)
        threading.Thread(target=self._runner.cancel, name="pxrs-cancel", daemon=True).start()

    def _remember(self, kind: str, facts: Mapping[str, Any]) -> None:
        if kind == "batch":
            self.recent.append(facts)
            passed, self._runner.passed_over = self._runner.passed_over, 0
            if facts["outcome"] == "committed":
                self._shares.count(passed_over=passed, handled=-passed)


_all: weakref.WeakSet[Pipeline] = weakref.WeakSet()
after_fork(_all.clear)  # they are the parent's, and a thread of it may have held their locks


@at_exit(Stage.THREADS)
def _end_threads() -> list[threading.Thread]:
    return [thread for pipeline in list(_all) for thread in pipeline.end_with_process()]


def _each(places: Places, partitions: Iterable[int]) -> dict[int, Place]:
    """Give each partition its start: one value for all, or a mapping."""
    return dict(places) if isinstance(places, Mapping) else dict.fromkeys(partitions, places)


def start_of(group: GroupHandle, start: Places, partition: int) -> int:
    """The start of a partition without a checkpoint; one that the mapping does not name starts at its beginning."""
    place = start.get(partition, "earliest") if isinstance(start, Mapping) else start
    return group.resolve({partition: place})[partition]


# ---- the line that shows progress -----------------------------------------------------------------------------------


def live_line(wanted: bool | None, clock: Clock, out: TextIO | None = None) -> list[Report]:
    """The listener that draws the progress line: if it is asked for, and by default on a terminal."""
    terminal = out or sys.stderr
    shown = terminal.isatty() if wanted is None else wanted
    return [_LiveLine(terminal, clock)] if shown else []


class _LiveLine:
    """Rewrites one line for each batch; where lines cannot be rewritten, writes one for each."""

    def __init__(self, out: TextIO, clock: Clock) -> None:
        self._out = out
        self._clock = clock
        self._began: float | None = None
        self._rows = 0
        self._width = 0

    def __call__(self, kind: str, facts: Mapping[str, Any]) -> None:
        if kind == "batch":
            self._began = self._began or self._clock.monotonic() - facts["seconds"]
            self._rows += facts["rows"] if facts["outcome"] == "committed" else 0
            self._show(line(facts, self._rows))
        elif kind == "left" and self._width:
            self._end()

    def _show(self, text: str) -> None:
        end = "" if self._out.isatty() else "\n"
        begin = "\r" if self._out.isatty() else ""
        self._out.write(begin + text.ljust(self._width if begin else 0) + end)
        self._out.flush()
        self._width = len(text)

    def _end(self) -> None:
        if self._out.isatty():
            self._out.write("\n")
            self._out.flush()
        self._width = 0


def line(facts: Mapping[str, Any], total: int) -> str:
    """One batch in a line for people."""
    seconds = max(facts["seconds"], 1e-6)
    return (
        f"{facts['member']}: batch {facts['batch']} {facts['outcome']}, {facts['rows']:,} rows in {seconds:.2f} s "
        f"({facts['rows'] / seconds:,.0f} rows/s), {facts['owned']} partitions, lag {facts['lag']:,}, {total:,} in all"
    )
