"""A consumer of threads with a fenced sink: what its handler returns is seen once, whatever happens to its owner."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from tests.runtime.support import HASTY, PATIENT, eventually

import pxrs
from pxrs.errors import BadSetting, HandlerFailed, Refused
from pxrs.sinks import ParquetSink, parquet

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


class Shop:
    """A queue in a directory, and consumers with sinks into one other directory."""

    def __init__(self, directory: Path, settings: pxrs.Settings = PATIENT) -> None:
        self.url = f"file:{directory}/orders"
        self.out = directory / "out"
        self.settings = settings
        self.queue = pxrs.open(self.url, partitions=4, settings=settings)
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

    def __enter__(self) -> Shop:
        return self

    def __exit__(self, *_: object) -> None:
        for queue in reversed(self._queues):
            queue.close()


def test_output_appears_with_the_checkpoints_and_once(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        shop.send(300)
        consumer = shop.consumer("A")
        shop.await_shown()
        shop.send(50)
        shop.await_shown()
        consumer.stop()
        assert shop.queue.group("g").describe().total_lag == 0


def test_a_clean_move_flushes_first_and_nothing_is_doubled(tmp_path: Path) -> None:
    with Shop(tmp_path, PATIENT.with_(commit_interval_ms=60_000, commit_every=1_000_000)) as shop:
        shop.send(200)
        first = shop.consumer("A")
        eventually(lambda: first.tally.handled == 200, "A has handled all, and committed nothing by itself")
        assert shown(shop.out) == Counter()
        second = shop.consumer("B")
        eventually(lambda: len(second.partitions) == 2, "B has taken its share")
        first.stop()
        second.stop()
        shop.await_shown()


def test_a_killed_owner_has_shown_only_what_it_committed(tmp_path: Path) -> None:
    with Shop(tmp_path, HASTY.with_(commit_every=10)) as shop:
        shop.send(400)
        seen = threading.Event()

        def until_some(batch: pa.RecordBatch, context: pxrs.Context) -> pa.RecordBatch:
            if shown(shop.out):
                seen.set()
            return places_of(batch, context)

        victim = shop.consumer("A", until_some)
        shop.send(400)
        assert seen.wait(30)
        victim.kill()
        shop.consumer("B")
        shop.send(10)
        shop.await_shown()


def test_a_failing_message_goes_to_the_dead_letters_and_its_neighbours_to_the_sink(tmp_path: Path) -> None:
    with Shop(tmp_path, PATIENT.with_(tries=2)) as shop:

        def fussy(batch: pa.RecordBatch, context: pxrs.Context) -> pa.RecordBatch:
            if b"42" in batch.column("value").to_pylist():
                raise ValueError("not 42")
            return places_of(batch, context)

        shop.send(100)
        shop.consumer("A", fussy)
        shop.await_shown(shop.sent - Counter([b"42"]))
        assert [letter.value for letter in shop.queue.group("g").dead_letters] == [b"42"]


def test_a_handler_may_return_nothing_and_progress_is_stored_all_the_same(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        shop.send(100)
        shop.consumer("A", lambda batch: None)
        eventually(lambda: shop.queue.group("g").describe().total_lag == 0, "all is committed")
        shop.consumer("B")
        shop.send(20)
        eventually(lambda: shop.queue.group("g").describe().total_lag == 0, "and goes on")


def test_what_is_no_batch_ends_the_consumer_and_blames_no_message(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        shop.send(10)
        consumer = shop.consumer("A", lambda batch: "text")
        assert consumer.wait(30)
        with pytest.raises(HandlerFailed, match="returned a str"):
            consumer.check()
        assert list(shop.queue.group("g").dead_letters) == []
        assert shop.queue.group("g").describe().total_lag == 10


def test_a_sink_that_cannot_write_parks_the_partitions_and_moves_nothing_until_it_can(tmp_path: Path) -> None:
    class Full(ParquetSink):
        full = True

        def stage(self, batch: Any, output: Any) -> str:
            if self.full:
                raise OSError(28, "No space left on device")
            return super().stage(batch, output)

    with Shop(tmp_path) as shop:
        shop.send(40)
        sink = Full(shop.out)
        consumer = shop.consumer("A", sink=sink)
        eventually(lambda: len(consumer.troubles) == 4, "all partitions wait")
        assert all("No space left" in str(trouble) for trouble in consumer.troubles.values())
        assert shop.queue.group("g").describe().total_lag == 40 and consumer.error is None
        sink.full = False
        shop.await_shown()
        eventually(lambda: not consumer.troubles, "the partitions go on")
        assert consumer.error is None


def test_a_parked_partition_is_handed_over_at_what_is_stored(tmp_path: Path) -> None:
    class Full(ParquetSink):
        def stage(self, batch: Any, output: Any) -> str:
            raise OSError(28, "No space left on device")

    with Shop(tmp_path) as shop:
        shop.send(40)
        first = shop.consumer("A", sink=Full(shop.out))
        eventually(lambda: len(first.troubles) == 4, "all partitions wait")
        first.stop(30)
        first.check()
        shop.consumer("B")
        shop.await_shown()


def test_one_message_whose_output_the_sink_refuses_is_put_aside_and_its_neighbours_are_shown(tmp_path: Path) -> None:
    class Choosy(ParquetSink):
        def stage(self, batch: Any, output: Any) -> str:
            if b"13" in pa.Table.from_batches(output).column("value").to_pylist():
                raise Refused("this cannot be a directory")
            return super().stage(batch, output)

    with Shop(tmp_path, PATIENT.with_(tries=2)) as shop:
        consumer = shop.consumer("A", sink=Choosy(shop.out))
        shop.send(4)
        shop.await_shown()
        shop.send(36)
        shop.await_shown(shop.sent - Counter([b"13"]))
        letters = list(shop.queue.group("g").dead_letters)
        assert [letter.value for letter in letters] == [b"13"] and "cannot be a directory" in letters[0].cause
        eventually(lambda: shop.queue.group("g").describe().total_lag == 0, "all is committed")
        assert consumer.error is None


def test_a_sink_that_has_taken_nothing_yet_parks_what_it_refuses(tmp_path: Path) -> None:
    class Wrong(ParquetSink):
        def stage(self, batch: Any, output: Any) -> str:
            raise Refused("the columns are others than those in the directory")

    with Shop(tmp_path) as shop:
        shop.send(40)
        consumer = shop.consumer("A", sink=Wrong(shop.out))
        eventually(lambda: len(consumer.troubles) == 4, "all partitions wait")
        assert list(shop.queue.group("g").dead_letters) == [] and consumer.error is None


def test_a_sink_that_is_set_up_wrongly_ends_the_consumer(tmp_path: Path) -> None:
    class Misplaced(ParquetSink):
        def stage(self, batch: Any, output: Any) -> str:
            raise BadSetting("give staging=DIR on the same file system")

    with Shop(tmp_path) as shop:
        shop.send(10)
        consumer = shop.consumer("A", sink=Misplaced(shop.out))
        assert consumer.wait(30)
        with pytest.raises(BadSetting, match="staging=DIR"):
            consumer.check()


def test_output_that_could_be_shown_only_half_is_finished_and_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Shop(tmp_path, HASTY) as shop:
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
        shop.send(40)
        consumer = shop.consumer("A", by_last_digit, ParquetSink(shop.out, partition_by="digit"))
        eventually(lambda: len(moved) > 2, "it is tried again")
        shop.await_shown()
        assert consumer.error is None


def test_output_that_was_shown_only_half_is_finished_by_the_next_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Shop(tmp_path, HASTY) as shop:
        sound = parquet._move

        def broken(path: str, shown_path: str) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(parquet, "_move", broken)
        shop.send(40)
        first = shop.consumer("A")
        eventually(lambda: len(first.troubles) == 4, "all partitions wait")
        first.kill()
        monkeypatch.setattr(parquet, "_move", sound)
        shop.consumer("B")
        shop.await_shown()


def test_a_sink_needs_arrow_batches(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop, pytest.raises(BadSetting, match="deliver='arrow'"):
        shop.queue.consumer("g", places_of, sink=ParquetSink(shop.out))
