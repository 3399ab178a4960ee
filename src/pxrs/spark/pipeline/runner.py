"""Runs one batch on Spark, in the driver's thread: reads ranges, calls the user's functions, hands the output on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JNetworkError
from pyspark.sql import DataFrame, SparkSession

from pxrs.errors import BadSetting, Damaged, StopConsuming, Unavailable
from pxrs.logs.base import Log
from pxrs.logs.read_errors import ReadFailed, reading
from pxrs.model import Batch
from pxrs.rules.addressing import Reader
from pxrs.runtime.delivery import taking
from pxrs.spark.read.columns import schema_of
from pxrs.spark.read.frame import Schema, frame_of, frame_spec, nothing, slices_for_tasks, table_of
from pxrs.spark.read.plan import Slice
from pxrs.spark.read.task import MapArrow, results

FAST_BYTES = 16 << 20
"""A batch of few but huge messages does not go through the driver."""

Process = Callable[..., Any]
"""``process(df, batch)`` or ``process(df)``; what it returns goes to the sink."""


class Runner:
    """Turns batches into output. A small one is read here, which spares it a Spark job; a large one by tasks."""

    def __init__(
        self,
        spark: SparkSession,
        log: Log,
        process: Process | None,
        map_arrow: MapArrow | None,
        columns: Iterable[str] | None,
        schema: Schema | None,
        has_sink: bool,
        fast_rows: int,
    ) -> None:
        if process is None and map_arrow is None and not has_sink:
            raise BadSetting("a pipeline needs something to do: process=, map_arrow= or sink=")
        for name, function in (("process", process), ("map_arrow", map_arrow)):
            if function is not None and not callable(function):
                raise BadSetting(f"{name} = {function!r}: must be a function")
        self._spark = spark
        self._log = log
        self._process = taking(process, 2)
        self._spec = frame_spec(log.identity.name, columns, map_arrow, schema)
        self._has_sink = has_sink
        self._fast_rows = fast_rows
        self._running: str | None = None
        self.passed_over = 0
        """The number of messages of the last batch for other groups; those that tasks pass over are not counted."""

    def execute(self, batch: Batch) -> Any:
        """The output of a batch: a DataFrame, or an Arrow table; None without a sink."""
        self._running = batch.name  # also after this returns: a sink computes what is lazy
        self.passed_over = 0
        spec = self._spec.of_group(Reader(self._log.identity.id, batch.group))  # a backfill's group is nobody's
        slices = self._for_tasks(batch)
        if slices is not None:
            self._label(batch)
            return self._processed(frame_of(self._spark, slices, spec), batch)
        table, self.passed_over = table_of(self._log, batch.ranges, spec)
        if self._process is None:
            return table
        self._label(batch)
        return self._processed(self._spark.createDataFrame(table, schema=spec.schema), batch)

    def _processed(self, df: DataFrame, batch: Batch) -> Any:
        if self._process is not None:
            return self._checked(self._process(df, batch))
        if self._has_sink:
            return df
        _compute(df)
        return None

    def _checked(self, output: Any) -> Any:
        if self._has_sink or not isinstance(output, DataFrame):
            return output
        raise BadSetting("process returned a DataFrame, and there is no sink= to write it: nothing would be computed")

    def _for_tasks(self, batch: Batch) -> tuple[Slice, ...] | None:
        """The slices that tasks read; None if the batch is small or in this process' memory: then it is read here."""
        with reading():
            slices = slices_for_tasks(self._log, batch.ranges)
        if slices is None or batch.rows > self._fast_rows:
            return slices
        size = sum(piece.length for part in slices for piece in part.pieces)
        return slices if size > FAST_BYTES else None

    def _label(self, batch: Batch) -> None:
        """The label of this batch's jobs in the Spark UI."""
        text = f"{batch.group}: batch {batch.number}, {batch.rows} rows of {len(batch.ranges)} partitions"
        self._spark.sparkContext.setJobGroup(batch.name, text)

    def warm_up(self) -> None:
        """Let Spark load what the first batch needs, before anybody waits for it: that takes seconds."""
        self._empty().collect()
        if sum(self._log.bounds(p)[1] for p in range(self._log.identity.partitions)) > self._fast_rows:
            _compute(nothing(self._spark, self._spec._replace(map_arrow=None)))

    def _empty(self) -> DataFrame:
        spec = self._spec
        return self._spark.createDataFrame(spec.reading.schema.empty_table(), schema=spec.schema)

    def probe(self, batch: Batch) -> Any:
        """Run the user's functions, where this batch runs them, on no message at all."""
        given, map_arrow = schema_of(self._spec.reading.columns), self._spec.map_arrow
        if map_arrow is not None:
            list(results(map_arrow(pa.RecordBatch.from_pylist([], schema=given))))
        df = self._empty() if self._for_tasks(batch) is None else nothing(self._spark, self._spec)
        output = self._process(df, replace(batch, ranges=())) if self._process is not None else df
        if isinstance(output, DataFrame) and not self._has_sink:
            _compute(output)
        return output

    def cancel(self) -> None:
        """End the jobs of the running batch: nobody waits for it any more."""
        if self._running is not None:
            with suppress(Exception):  # Spark may be gone already, and with it all that could be cancelled
                self._spark.sparkContext.cancelJobGroup(self._running)

    def is_fatal(self, error: BaseException) -> bool:
        """Whether Spark itself is gone: then no batch can run, and no message is to blame."""
        return isinstance(error, Py4JNetworkError | ConnectionError) or self.is_gone()

    def is_gone(self) -> bool:
        """Whether the session was stopped, or its JVM has ended."""
        try:
            return bool(self._spark.sparkContext._jsc.sc().isStopped())
        except Exception:
            return True


def _compute(df: DataFrame) -> None:
    df.write.format("noop").mode("append").save()


def about(spark: SparkSession) -> dict[str, str]:
    """The columns of a Spark application in the group's table."""
    context = spark.sparkContext
    pid = context._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]  # a live session has a JVM
    return {"engine": "spark", "app": context.applicationId, "ui": context.uiWebUrl or "", "jvm": str(pid)}


# ---- what a task has raised -----------------------------------------------------------------------------------------
# Texts can hold anything, a message too. So only the text of a Python worker is looked into, which is known by its
# class, and only up to its first line that no function has written: the name of the error under the first traceback.


_TRACEBACK = "Traceback (most recent call last):\n"
_OF_WORKERS = "org.apache.spark.api.python.PythonException"
_MOST_CAUSES = 20
_STOP = re.compile(r"pxrs\.errors\.StopConsuming(?::|$)")
_READ = re.compile(r"pxrs\.logs\.read_errors\.ReadFailed: partition (\d+|\?): (\w+): (.*)")


def as_raised(error: BaseException) -> BaseException:
    """The error of PXRS that a task has raised; any other error as it is."""
    line = _first_name(_text_of_worker(error))
    if _STOP.match(line):
        return StopConsuming(line)
    if found := _READ.match(line):
        kind = Damaged if found[2] in ("Damaged", "WentBack", "NewerFormat") else Unavailable
        return ReadFailed(None if found[1] == "?" else int(found[1]), kind(found[3]))
    return error


def _text_of_worker(error: BaseException) -> str:
    """The text of an error of Spark's Python worker; "" if the error is of another kind, whatever its text is."""
    for kind in type(error).__mro__:
        if kind.__name__ == "PythonException" and kind.__module__.startswith("pyspark.errors."):
            return str(error)
    cause: Any = getattr(error, "java_exception", None)  # of py4j: Spark has not found out what it is
    for _ in range(_MOST_CAUSES):
        if cause is None:
            break
        if cause.getClass().getName() == _OF_WORKERS:
            return str(cause.getMessage())
        cause = cause.getCause()
    return ""


def _first_name(text: str) -> str:
    """The line that names the error under the first traceback: the first one that is not indented.

    Spark leaves out what an error was raised from, so there is one traceback. More of them are text of that error.
    """
    _, _, traceback = text.partition(_TRACEBACK)
    return next((line for line in traceback.split("\n") if not line.startswith(" ")), "")
