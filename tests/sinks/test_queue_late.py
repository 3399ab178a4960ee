"""An owner that sleeps right before it appends: when it wakes, its output stands in the queue once all the same."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pxrs
from pxrs.errors import Unavailable
from pxrs.logs.jetstream import writer as jetstream_writer
from pxrs.model import Range
from pxrs.runtime.queue.queue import Queue
from pxrs.sinks import QueueSink, queue
from pxrs.sinks.staging import Staging
from pxrs.testing.servers.nats import NatsServer
from tests.sinks.support import batch_of

BATCH = batch_of(Range(2, 0, 40, 1), Range(5, 0, 30, 3))
OUTPUT = pa.table({"key": [f"k{n % 7}" for n in range(50)], "value": [b"%06d" % n for n in range(50)]})
TRAFFIC = pa.table({"key": [f"{n}" for n in range(50)], "value": ["x" * 100] * 50})
WINDOW_MS = 100


class Yard:
    """One output queue, opened as often as there are processes, and a log that soon forgets what was appended."""

    def __init__(self, kind: str, directory: Path, server: NatsServer | None, stack: ExitStack) -> None:
        self._staging = directory / "staging"
        self._registry = f"sqlite:{directory}/registry.db"
        options = f"duplicate_window_ms={WINDOW_MS}"
        name = "".join(letter for letter in directory.name if letter.isalnum())
        self._url = f"file:{directory}/target" if server is None else server.url(name, options)
        self.kind = kind
        self._stack = stack

    def open(self) -> Queue:
        settings = pxrs.Settings(segment_bytes=2_000)
        opened = pxrs.open(log=self._url, registry=self._registry, partitions=2, settings=settings)
        return self._stack.enter_context(opened)

    def sink(self, patience: float = 30) -> tuple[Queue, QueueSink]:
        target = self.open()
        return target, QueueSink(target, self._staging, patience=patience)

    def forget(self) -> None:
        """So much is sent by others, and so much time passes, that no retry is recognised any more."""
        with self.open().producer() as producer:
            for _ in range(20):
                producer.send_batch(TRAFFIC).result()
        if self.kind == "jetstream":
            time.sleep(3 * WINDOW_MS / 1000)  # too short would only make the test easier

    def content(self) -> Counter[bytes]:
        found = self.open()
        values = [m.value for p in range(2) for m in found.read(p, found.log.bounds(p)[0], limit=100_000)]
        return Counter(value for value in values if value != b"x" * 100)


@pytest.fixture(params=["file", pytest.param("jetstream", marks=pytest.mark.processes)])
def yard(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    monkeypatch.setattr(queue, "CHUNK", 20)  # the output goes in three appends
    monkeypatch.setattr(jetstream_writer, "LOOK_BACK", 1)
    monkeypatch.setattr(jetstream_writer, "LOOK_BACK_AT_LEAST", 2)
    monkeypatch.setattr(jetstream_writer, "_REMEMBERED", 3)
    server = request.getfixturevalue("nats_server") if request.param == "jetstream" else None
    with ExitStack() as stack:
        yield Yard(request.param, tmp_path, server, stack)


def sleep_before(target: Queue, number: int, act: Callable[[], None]) -> None:
    """Let the owner of this queue object sleep before its append with this number, after all its looks."""
    append, calls = target.log.append, iter(range(100))

    def asleep(*args: Any) -> dict[int, int]:
        if next(calls) == number:
            act()
        return append(*args)

    target.log.append = asleep  # type: ignore[method-assign, assignment]  # this object's alone


@pytest.mark.parametrize("other", ["finishes", "dies before it can say so"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_owner_that_wakes_when_the_log_has_forgotten_the_stamps_appends_nothing_twice(
    yard: Yard, number: int, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, sleeper = yard.sink()
    note = sleeper.stage(BATCH, OUTPUT)

    def meanwhile() -> None:
        with monkeypatch.context() as patch:
            if other != "finishes":
                patch.setattr(Staging, "finish", lambda *_: None)
            yard.sink()[1].publish(note)
        yard.forget()

    sleep_before(target, number, meanwhile)
    sleeper.publish(note)
    assert yard.content() == Counter(OUTPUT.column("value").to_pylist())
    yard.sink()[1].publish(note)
    assert yard.content() == Counter(OUTPUT.column("value").to_pylist())


def test_an_owner_that_wakes_when_another_has_appended_a_part_appends_the_rest(yard: Yard) -> None:
    target, sleeper = yard.sink()
    note = sleeper.stage(BATCH, OUTPUT)

    def meanwhile() -> None:
        other, sink = yard.sink(patience=0)
        sleep_before(other, 2, _crash)
        with pytest.raises(Unavailable, match="crashed"):
            sink.publish(note)
        yard.forget()

    sleep_before(target, 0, meanwhile)
    sleeper.publish(note)
    assert yard.content() == Counter(OUTPUT.column("value").to_pylist())


def _crash() -> None:
    raise Unavailable("crashed")


def test_what_retention_has_deleted_before_a_late_owner_looks_is_appended_again(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit that remains: another owner has died before it could say that it is done, and all rows are gone."""
    target, sleeper = yard.sink()
    note = sleeper.stage(BATCH, OUTPUT)

    def meanwhile() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Staging, "finish", lambda *_: None)
            yard.sink()[1].publish(note)
        yard.forget()
        other = yard.open()
        for partition in range(2):
            other.log.trim(partition, other.log.bounds(partition)[1])
        assert yard.content() == Counter()

    sleep_before(target, 0, meanwhile)
    sleeper.publish(note)
    assert yard.content() == Counter(OUTPUT.column("value").to_pylist()), (
        "deleted rows are not known to have been there"
    )


def test_what_another_has_finished_is_not_appended_again_although_retention_has_deleted_it(yard: Yard) -> None:
    target, sleeper = yard.sink()
    note = sleeper.stage(BATCH, OUTPUT)

    def meanwhile() -> None:
        yard.sink()[1].publish(note)
        yard.forget()
        other = yard.open()
        for partition in range(2):
            other.log.trim(partition, other.log.bounds(partition)[1])

    sleep_before(target, 1, meanwhile)
    sleeper.publish(note)
    assert yard.content() == Counter()
