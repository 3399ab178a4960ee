"""A consumer of threads with a fenced sink: what its handler returns is seen once, whatever happens to its owner."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import pxrs
from pxrs.errors import BadSetting, HandlerFailed, NotFound, Refused
from pxrs.runtime.consumer.sink_worker import SinkWorker
from pxrs.sinks import ParquetSink, parquet
from tests.runtime.support import HASTY, PATIENT, eventually

Place = tuple[int, int]


def places_of(batch: pa.RecordBatch, context: pxrs.Context) -> pa.RecordBatch:
    """A handler: the offsets that it was given, and whose epoch it worked under."""
    epoch = pa.array([context.epoch] * batch.num_rows, pa.int64())
    return pa.RecordBatch.from_arrays(
        [batch.column("offset"), batch.column("value"), epoch], ["offset", "value", "epoch"]
    )


def shown(directory: Path) -> Counter[bytes]:
    """What a reader that knows nothing of PXRS finds."""
    found = ds.dataset(directory, format="parquet").to_table() if directory.exists() else pa.table({})
    return Counter(found.column("value").to_pylist() if found.num_rows else ())


class Choosy(ParquetSink):
    """A sink that refuses one value."""

    def __init__(self, directory: Path, bad: bytes) -> None:
        super().__init__(directory)
        self._bad = bad

    def stage(self, batch: Any, output: Any) -> str:
        if self._bad in pa.Table.from_batches(output).column("value").to_pylist():
            raise Refused("this cannot be a directory")
        return super().stage(batch, output)


class Setup:
    """A queue in a directory, and consumers with sinks into one other directory."""

    def __init__(self, directory: Path, settings: pxrs.Settings = PATIENT, partitions: int = 4) -> None:
        self.url = f"file:{directory}/orders"
        self.out = directory / "out"
        self.settings = settings
        self.queue = pxrs.open(self.url, partitions=partitions, settings=settings)
        self.sent: Counter[bytes] = Counter()
        self._queues = [self.queue]

    def send(self, count: int) -> None:
        first = len(self.sent)
        with self.queue.producer() as producer:
            for number in range(first, first + count):
                producer.send(None, b"%d" % number)
                self.sent[b"%d" % number] += 1

    def consumer(self, name: str, handler: Any = places_of, sink: Any = None) -> pxrs.Consumer:
        queue = pxrs.open(self.url, settings=self.settings)
        self._queues.append(queue)
        sink = sink or ParquetSink(self.out)
        return queue.consumer("g", handler, name, deliver="arrow", sink=sink).start()

    def await_shown(self, expected: Counter[bytes] | None = None) -> None:
        wanted = self.sent if expected is None else expected
        eventually(lambda: shown(self.out) == wanted, "every message is shown once")

    def __enter__(self) -> Setup:
        return self

    def __exit__(self, *_: object) -> None:
        for queue in reversed(self._queues):
            queue.close()


def test_output_appears_with_the_checkpoints_and_once(tmp_path: Path) -> None:
    with Setup(tmp_path) as setup:
        setup.send(300)
        consumer = setup.consumer("A")
        setup.await_shown()
        setup.send(50)
        setup.await_shown()
        consumer.stop()
        assert setup.queue.group("g").describe().total_lag == 0


def test_a_clean_move_flushes_first_and_nothing_is_doubled(tmp_path: Path) -> None:
    with Setup(tmp_path, PATIENT.with_(commit_interval_ms=60_000, commit_every=1_000_000)) as setup:
        setup.send(200)
        first = setup.consumer("A")
        eventually(lambda: first.tally.handled == 200, "A has handled all, and committed nothing by itself")
        assert shown(setup.out) == Counter()
        second = setup.consumer("B")
        eventually(lambda: len(second.partitions) == 2, "B has taken its share")
        first.stop()
        second.stop()
        setup.await_shown()


def test_a_killed_owner_has_shown_only_what_it_committed(tmp_path: Path) -> None:
    with Setup(tmp_path, HASTY.with_(commit_every=10)) as setup:
        setup.send(400)
        seen = threading.Event()

        def until_some(batch: pa.RecordBatch, context: pxrs.Context) -> pa.RecordBatch:
            if shown(setup.out):
                seen.set()
            return places_of(batch, context)

        victim = setup.consumer("A", until_some)
        setup.send(400)
        assert seen.wait(30)
        victim.kill()
        setup.consumer("B")
        setup.send(10)
        setup.await_shown()


def test_a_failing_message_goes_to_the_dead_letters_and_its_neighbours_to_the_sink(tmp_path: Path) -> None:
    with Setup(tmp_path, PATIENT.with_(tries=2)) as setup:

        def fussy(batch: pa.RecordBatch, context: pxrs.Context) -> pa.RecordBatch:
            if b"42" in batch.column("value").to_pylist():
                raise ValueError("not 42")
            return places_of(batch, context)

        setup.send(100)
        setup.consumer("A", fussy)
        setup.await_shown(setup.sent - Counter([b"42"]))
        assert [letter.value for letter in setup.queue.group("g").dead_letters] == [b"42"]


def test_a_handler_may_return_nothing_and_progress_is_stored_all_the_same(tmp_path: Path) -> None:
    with Setup(tmp_path) as setup:
        setup.send(100)
        setup.consumer("A", lambda batch: None)
        eventually(lambda: setup.queue.group("g").describe().total_lag == 0, "all is committed")
        setup.consumer("B")
        setup.send(20)
        eventually(lambda: setup.queue.group("g").describe().total_lag == 0, "and goes on")


def test_what_is_no_batch_ends_the_consumer_and_blames_no_message(tmp_path: Path) -> None:
    with Setup(tmp_path) as setup:
        setup.send(10)
        consumer = setup.consumer("A", lambda batch: "text")
        assert consumer.wait(30)
        with pytest.raises(HandlerFailed, match="returned a str"):
            consumer.check()
        assert list(setup.queue.group("g").dead_letters) == []
        assert setup.queue.group("g").describe().total_lag == 10


def test_a_sink_that_cannot_write_parks_the_partitions_and_moves_nothing_until_it_can(tmp_path: Path) -> None:
    class Full(ParquetSink):
        full = True

        def stage(self, batch: Any, output: Any) -> str:
            if self.full:
                raise OSError(28, "No space left on device")
            return super().stage(batch, output)

    with Setup(tmp_path) as setup:
        setup.send(40)
        sink = Full(setup.out)
        consumer = setup.consumer("A", sink=sink)
        eventually(lambda: len(consumer.troubles) == 4, "all partitions wait")
        assert all("No space left" in str(trouble) for trouble in consumer.troubles.values())
        assert setup.queue.group("g").describe().total_lag == 40 and consumer.error is None
        sink.full = False
        setup.await_shown()
        eventually(lambda: not consumer.troubles, "the partitions go on")
        assert consumer.error is None


def test_a_parked_partition_is_handed_over_at_what_is_stored(tmp_path: Path) -> None:
    class Full(ParquetSink):
        def stage(self, batch: Any, output: Any) -> str:
            raise OSError(28, "No space left on device")

    with Setup(tmp_path) as setup:
        setup.send(40)
        first = setup.consumer("A", sink=Full(setup.out))
        eventually(lambda: len(first.troubles) == 4, "all partitions wait")
        first.stop(30)
        first.check()
        setup.consumer("B")
        setup.await_shown()


def test_one_message_whose_output_the_sink_refuses_is_put_aside_and_its_neighbours_are_shown(tmp_path: Path) -> None:
    with Setup(tmp_path, PATIENT.with_(tries=2)) as setup:
        consumer = setup.consumer("A", sink=Choosy(setup.out, b"13"))
        setup.send(4)
        setup.await_shown()
        setup.send(36)
        setup.await_shown(setup.sent - Counter([b"13"]))
        letters = list(setup.queue.group("g").dead_letters)
        assert [letter.value for letter in letters] == [b"13"] and "cannot be a directory" in letters[0].cause
        eventually(lambda: setup.queue.group("g").describe().total_lag == 0, "all is committed")
        assert consumer.error is None


def test_a_message_for_another_group_is_not_processed_when_a_refused_one_is_looked_for(tmp_path: Path) -> None:
    def fussy(message: pxrs.Message) -> None:
        if message.value == b"0":
            raise ValueError("B cannot")

    seen: list[bytes] = []

    def noted(batch: pa.RecordBatch, context: pxrs.Context) -> pa.RecordBatch:
        seen.extend(batch.column("value").to_pylist())
        return places_of(batch, context)

    # Stored at offset 2, and then at 6: what is looked through lies between.
    settings = PATIENT.with_(tries=1, commit_interval_ms=60_000, commit_every=4)
    with Setup(tmp_path, settings, partitions=1) as setup:
        setup.send(2)
        letters = setup.queue.group("b").dead_letters
        with setup.queue.consumer("b", fussy):
            eventually(lambda: len(list(letters)) == 1, "B has put it aside")
        letters.retry()
        setup.send(3)
        consumer = setup.consumer("A", noted, Choosy(setup.out, b"3"))
        setup.await_shown(setup.sent - Counter([b"3"]))
        assert seen.count(b"0") == 1 and seen.count(b"2") == 2, "the others were looked through again"
        assert consumer.tally.passed_over == 1


def test_a_sink_whose_table_is_away_parks_and_puts_no_message_aside(tmp_path: Path) -> None:
    class Away(ParquetSink):
        away = False

        def stage(self, batch: Any, output: Any) -> str:
            if self.away:
                raise NotFound("there is no table now")
            return super().stage(batch, output)

    with Setup(tmp_path) as setup:
        sink = Away(setup.out)
        consumer = setup.consumer("A", sink=sink)
        setup.send(4)
        setup.await_shown()
        sink.away = True
        setup.send(20)
        eventually(lambda: len(consumer.troubles) == 4, "all partitions wait")
        sink.away = False
        setup.await_shown()
        assert list(setup.queue.group("g").dead_letters) == [] and consumer.error is None


def test_staged_output_that_somebody_deleted_parks_the_partition_and_is_written_again(tmp_path: Path) -> None:
    class Robbed(ParquetSink):
        robbed = False

        def _write(self, batch: Any, output: Any, data: str) -> None:
            super()._write(batch, output, data)
            if self.robbed:
                shutil.rmtree(tmp_path / "_out.staging")
                raise OSError(5, "Input/output error")

    with Setup(tmp_path, partitions=1) as setup:
        sink = Robbed(setup.out)
        consumer = setup.consumer("A", sink=sink)
        setup.send(2)
        setup.await_shown()
        sink.robbed = True
        setup.send(3)
        eventually(lambda: consumer.troubles, "the partition waits")
        sink.robbed = False
        (tmp_path / "_out.staging").mkdir()
        setup.await_shown()
        eventually(lambda: not consumer.troubles, "it goes on")
        assert consumer.error is None


def test_a_thread_that_ends_by_itself_is_a_trouble_and_its_partition_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Setup(tmp_path, HASTY.with_(poll_ms=400), partitions=1) as setup:
        with monkeypatch.context() as patch:
            patch.setattr(SinkWorker, "_loop", lambda worker: None)
            consumer = setup.consumer("A")
            eventually(lambda: "has ended" in str(consumer.troubles.get(0)), "it is shown")
        setup.send(3)
        setup.await_shown()
        assert consumer.error is None and not consumer.troubles


def test_a_sink_that_has_taken_nothing_yet_parks_what_it_refuses(tmp_path: Path) -> None:
    class Wrong(ParquetSink):
        def stage(self, batch: Any, output: Any) -> str:
            raise Refused("the columns are others than those in the directory")

    with Setup(tmp_path) as setup:
        setup.send(40)
        consumer = setup.consumer("A", sink=Wrong(setup.out))
        eventually(lambda: len(consumer.troubles) == 4, "all partitions wait")
        assert list(setup.queue.group("g").dead_letters) == [] and consumer.error is None


def test_a_first_message_that_the_sink_refuses_is_put_aside_when_a_later_one_proves_the_sink(tmp_path: Path) -> None:
    with Setup(tmp_path, PATIENT.with_(tries=1, deliver_rows=1, commit_every=1), partitions=1) as setup:
        setup.send(1)
        consumer = setup.consumer("A", sink=Choosy(setup.out, b"0"))
        eventually(lambda: consumer.troubles, "nothing proves the sink yet")
        assert list(setup.queue.group("g").dead_letters) == []
        setup.send(2)
        setup.await_shown(setup.sent - Counter([b"0"]))
        assert [letter.value for letter in setup.queue.group("g").dead_letters] == [b"0"] and consumer.error is None


def test_a_commit_that_the_database_refuses_is_looked_through_and_ends_nothing(tmp_path: Path) -> None:
    class Deferred(ParquetSink):
        """As a table whose rules are checked at the COMMIT."""

        def bind(self, store: Any) -> None:
            self.bad: set[str] = set()

        def stage(self, batch: Any, output: Any) -> str:
            note = super().stage(batch, output)
            if b"1" in pa.Table.from_batches(output).column("value").to_pylist():
                self.bad.add(note)
            return note

        def join(self, note: str) -> None:
            if note in self.bad:
                raise Refused("a foreign key is broken")

    with Setup(tmp_path, PATIENT.with_(tries=1), partitions=1) as setup:
        setup.send(4)
        consumer = setup.consumer("A", sink=Deferred(setup.out))
        setup.await_shown(setup.sent - Counter([b"1"]))
        assert [letter.value for letter in setup.queue.group("g").dead_letters] == [b"1"] and consumer.error is None


def test_output_of_another_type_is_put_aside_and_a_lone_none_is_not(tmp_path: Path) -> None:
    def rows(batch: pa.RecordBatch) -> pa.Table:
        values = [value.decode() for value in batch.column("value").to_pylist()]
        made = [{"value": v, "n": {"2": None, "3": "three"}.get(v, 1)} for v in values]
        return pa.Table.from_pylist(made)

    def numbers() -> dict[str, Any]:
        found = ds.dataset(setup.out, format="parquet").to_table().to_pylist() if setup.out.exists() else []
        return {row["value"]: row["n"] for row in found}

    with Setup(tmp_path, PATIENT.with_(tries=1, deliver_rows=1, commit_every=5), partitions=1) as setup:
        setup.send(5)
        consumer = setup.consumer("A", rows)
        eventually(lambda: numbers() == {"0": 1, "1": 1, "2": None, "4": 1}, "all but one are shown")
        assert [letter.value for letter in setup.queue.group("g").dead_letters] == [b"3"] and consumer.error is None


def test_a_sink_that_is_set_up_wrongly_ends_the_consumer(tmp_path: Path) -> None:
    class Misplaced(ParquetSink):
        def stage(self, batch: Any, output: Any) -> str:
            raise BadSetting("give staging=DIR on the same file system")

    with Setup(tmp_path) as setup:
        setup.send(10)
        consumer = setup.consumer("A", sink=Misplaced(setup.out))
        assert consumer.wait(30)
        with pytest.raises(BadSetting, match="staging=DIR"):
            consumer.check()


def test_output_that_could_be_shown_only_half_is_finished_and_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Setup(tmp_path, HASTY) as setup:
        sound, moved = parquet._move, []

        def one_only(path: str, shown_path: str) -> None:
            moved.append(path)
            if len(moved) == 2:
                raise OSError(5, "Input/output error")
            sound(path, shown_path)

        def by_last_digit(batch: pa.RecordBatch, context: pxrs.Context) -> pa.RecordBatch:
            made = places_of(batch, context)
            digit = pa.array([int(value[-1:]) % 2 for value in made.column("value").to_pylist()])
            return pa.RecordBatch.from_arrays([*made.columns, digit], ["offset", "value", "epoch", "digit"])

        monkeypatch.setattr(parquet, "_move", one_only)
        setup.send(40)
        consumer = setup.consumer("A", by_last_digit, ParquetSink(setup.out, partition_by="digit"))
        eventually(lambda: len(moved) > 2, "it is tried again")
        setup.await_shown()
        assert consumer.error is None


def test_output_that_was_shown_only_half_is_finished_by_the_next_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Setup(tmp_path, HASTY) as setup:
        sound = parquet._move

        def broken(path: str, shown_path: str) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(parquet, "_move", broken)
        setup.send(40)
        first = setup.consumer("A")
        eventually(lambda: len(first.troubles) == 4, "all partitions wait")
        first.kill()
        monkeypatch.setattr(parquet, "_move", sound)
        setup.consumer("B")
        setup.await_shown()


def test_a_sink_needs_arrow_batches(tmp_path: Path) -> None:
    with Setup(tmp_path) as setup, pytest.raises(BadSetting, match="deliver='arrow'"):
        setup.queue.consumer("g", places_of, sink=ParquetSink(setup.out))
