"""Whom a batch loop blames: no message for what its log or its sink cannot do, and nobody for a word in a text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pxrs.errors import Damaged, HandlerFailed, Mismatch, NotFound, PxrsError, Refused, StopConsuming, Unavailable
from pxrs.logs.read_errors import ReadFailed, reading
from pxrs.model import Batch
from pxrs.spark.pipeline.runner import as_raised
from tests.runtime.batches.test_batching import MemorySink, Place, Yard, places
from tests.runtime.support import PATIENT, eventually


@pytest.mark.parametrize("policy", ["skip", "stop", "dead-letter"])
@pytest.mark.parametrize("trouble", [Unavailable("the log is away"), Damaged("a checksum is wrong")])
def test_a_log_that_cannot_be_read_parks_and_blames_no_message(policy: Any, trouble: PxrsError) -> None:
    away = {"now": True}
    with Yard(2, PATIENT.with_(on_failure=policy, tries=1)) as yard:

        def execute(batch: Batch) -> list[Place]:
            for part in batch.ranges:
                with reading(part.partition):
                    if away["now"] and part.partition == 1:
                        raise trouble
            return yard.record(batch)

        yard.site.send(20)
        engine = yard.engine("A", execute)
        eventually(lambda: 1 in engine.shares.troubles() and yard.site.lag() == 10, "the other partition is done")
        assert engine.shares.troubles() == {1: trouble}
        away["now"] = False
        yard.await_end()
        tally = engine.shares.tally()
        assert (tally.skipped, tally.dead_lettered, tally.retried) == (0, 0, 0) and engine.life.error is None


def test_a_log_that_is_away_when_a_function_fails_is_waited_for() -> None:
    """Spark's own readers say it in words that nobody can tell from those of a function."""
    away = {"now": True}
    with Yard(1, PATIENT.with_(on_failure="skip", tries=1)) as yard:
        engine = yard.engine("A", lambda batch: None)
        yard.site.await_owners("A")
        bounds = engine.parts.log.bounds

        def execute(batch: Batch) -> list[Place]:
            if away["now"]:
                engine.parts.log.bounds = gone  # type: ignore[method-assign]
                raise RuntimeError("Connection refused")
            return yard.record(batch)

        def gone(partition: int) -> tuple[int, int]:
            raise Unavailable("the log is away")

        engine.parts.execute = execute
        yard.site.send(3)
        eventually(lambda: 0 in engine.shares.troubles(), "the partition waits")
        away["now"], engine.parts.log.bounds = False, bounds  # type: ignore[method-assign]
        yard.await_end()
        assert len(yard.done) == 3 and engine.shares.tally().skipped == 0


def test_the_word_in_a_text_stops_nobody() -> None:
    with Yard(1, PATIENT.with_(tries=1)) as yard:

        def execute(batch: Batch) -> list[Place]:
            if (0, 2) in places(batch):
                raise KeyError("StopConsuming")
            return yard.record(batch)

        yard.site.send(5)
        engine = yard.engine("A", execute)
        yard.await_end()
        assert [letter.offset for letter in engine.group.dead_letters] == [2]
        assert not engine.life.is_done


_WORKER = (
    "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
    '  File "worker.py", line 3, in main\n    go()\n    ^^^^\n{}\n SQLSTATE: 38000'
)


def told_by_spark(line: str, kind: str = "PythonException") -> Exception:
    """As Spark raises it in the driver."""
    named: type[Exception] = type(kind, (Exception,), {"__module__": "pyspark.errors.exceptions.captured"})
    return named(_WORKER.format(line))


class Java:
    """An exception of the JVM, as py4j shows it."""

    def __init__(self, name: str, message: str, cause: Java | None = None) -> None:
        self._said = name, message, cause

    def getClass(self) -> SimpleNamespace:  # noqa: N802 - Java's
        return SimpleNamespace(getName=lambda: self._said[0])

    def getMessage(self) -> str:  # noqa: N802 - as above
        return self._said[1]

    def getCause(self) -> Java | None:  # noqa: N802 - as above
        return self._said[2]


def told_by_java(cause: Java) -> Exception:
    named: type[Exception] = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})
    error = named(cause.getMessage())
    error.java_exception = cause  # type: ignore[attr-defined]
    return error


def test_what_a_task_has_raised_is_known_by_the_name_under_its_traceback() -> None:
    assert isinstance(as_raised(told_by_spark("pxrs.errors.StopConsuming")), StopConsuming)
    assert isinstance(as_raised(told_by_spark("pxrs.errors.StopConsuming: enough")), StopConsuming)
    worker = Java("org.apache.spark.api.python.PythonException", _WORKER.format("pxrs.errors.StopConsuming"))
    assert isinstance(as_raised(told_by_java(Java("org.apache.spark.SparkException", "", worker))), StopConsuming)
    for trouble in (Unavailable("the log is away"), Damaged("a checksum is wrong")):
        told = as_raised(told_by_spark(f"pxrs.logs.read_errors.ReadFailed: {ReadFailed(3, trouble)}"))
        assert isinstance(told, ReadFailed) and told.partition == 3
        assert (type(told.trouble), str(told.trouble)) == (type(trouble), str(trouble))


_WHOLE = (
    "x\n\nDuring handling of the above exception, another exception occurred:\n\n"
    'Traceback (most recent call last):\n  File "worker.py", line 3, in main\npxrs.errors.StopConsuming: enough'
)


@pytest.mark.parametrize(
    "error",
    [
        *map(told_by_spark, ("KeyError: 'pxrs.errors.StopConsuming'", "ValueError: x\npxrs.errors.StopConsuming")),
        told_by_spark("StopConsuming"),
        told_by_spark(f"ValueError: {_WHOLE}"),
        told_by_spark("pxrs.errors.StopConsuming", kind="NumberFormatException"),
        told_by_java(Java("org.apache.spark.SparkException", _WORKER.format("pxrs.errors.StopConsuming"))),
        ValueError(_WORKER.format("pxrs.errors.StopConsuming")),
    ],
)
def test_no_text_passes_for_the_error_of_a_task(error: Exception) -> None:
    """A function's own text, a value that Spark could not cast, and the text of what is no error of Spark."""
    assert as_raised(error) is error


@pytest.mark.parametrize("error", [NotFound("there is no table bills"), Mismatch("the directory is another one")])
def test_a_table_that_is_away_parks_and_fills_no_dead_letters(error: Refused) -> None:
    class Away(MemorySink):
        away = False

        def stage(self, batch: Batch, output: list[Place]) -> str:
            if self.away:
                raise error
            return super().stage(batch, output)

    with Yard(2, PATIENT.with_(tries=1)) as yard:
        sink = yard.sink = Away()
        engine = yard.engine("A", sink=sink)
        yard.site.send(4)
        yard.await_shown()
        sink.away = True
        yard.site.send(4)
        eventually(lambda: len(engine.shares.troubles()) == 2, "both partitions wait")
        assert list(engine.group.dead_letters) == []
        sink.away = False
        yard.await_shown()
        assert engine.life.error is None


@pytest.mark.parametrize("error", [Refused("violates a foreign key"), HandlerFailed("a value does not fit")])
def test_output_that_is_refused_at_the_commit_is_rolled_back_and_its_message_found(error: PxrsError) -> None:
    class Deferred(MemorySink):
        """Rows and checkpoints are one transaction, and its rules are looked at when it is committed."""

        def bind(self, store: Any) -> None: ...

        def join(self, note: str) -> None:
            if (0, 7) in self.staged.get(note.removeprefix("show "), []):
                raise error

    with Yard(1, PATIENT.with_(tries=1)) as yard:
        sink = yard.sink = Deferred()
        yard.site.send(10)
        engine = yard.engine("A", sink=sink)
        yard.await_end()
        eventually(lambda: len(sink.shown) == 9, "all others are shown")
        assert [letter.offset for letter in engine.group.dead_letters] == [7]
        assert (0, 7) not in sink.shown and engine.life.error is None
        assert not [event for event in engine.events if event["kind"] == "troubled"]


class Choosy(MemorySink):
    """Takes nothing that these places are in."""

    def __init__(self, *bad: Place) -> None:
        super().__init__()
        self.bad = set(bad)

    def stage(self, batch: Batch, output: list[Place]) -> str:
        if self.bad & set(output):
            raise Refused("the columns are others")
        return super().stage(batch, output) if output else ""


def test_a_first_message_that_the_sink_refuses_is_put_aside_when_a_later_one_proves_the_sink() -> None:
    with Yard(1, PATIENT.with_(tries=1)) as yard:
        sink = yard.sink = Choosy((0, 0))
        yard.site.send(1)
        engine = yard.engine("A", sink=sink)
        eventually(lambda: engine.shares.troubles(), "nothing proves the sink yet")
        assert list(engine.group.dead_letters) == [] and sink.shown == []
        yard.site.send(5)
        yard.await_end()
        eventually(lambda: len(sink.shown) == 5, "all others are shown")
        assert [letter.offset for letter in engine.group.dead_letters] == [0] and engine.life.error is None
        assert sink.staged == {}, "what was only tried is discarded"


def test_a_sink_that_takes_nothing_parks_what_it_refuses() -> None:
    """Output without any row proves nothing: the sink has not seen a row of it."""
    with Yard(1, PATIENT.with_(tries=1)) as yard:
        sink = yard.sink = Choosy(*((0, offset) for offset in range(1, 40)))
        yard.site.send(40)
        engine = yard.engine("A", lambda batch: [place for place in places(batch) if place != (0, 0)], sink=sink)
        eventually(lambda: 0 in engine.shares.troubles(), "the partition waits")
        eventually(lambda: len(sink.discarded) > 60, "and was tried again")
        assert list(engine.group.dead_letters) == [] and engine.life.error is None
