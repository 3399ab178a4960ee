"""A table that changes while members write to it, and rules that are looked at late: who is blamed, and who waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import pxrs
from pxrs.errors import HandlerFailed, NotFound, Refused
from pxrs.runtime.consumer.consumer import Consumer
from pxrs.sinks.sql.table import TargetTable
from pxrs.testing.servers.postgres import PostgresServer
from tests.runtime.support import PATIENT, eventually
from tests.sinks.sql.support import KEYED, PLAIN, SqlPlace, elsewhere, place_name
from tests.sinks.sql.test_sql import one, publish

DEFERRED = 'CREATE TABLE {table} ("key" {word}, value {word}, UNIQUE (value) DEFERRABLE INITIALLY DEFERRED)'
ASIDE = pytest.mark.parametrize("aside", [False, True], ids=["one transaction", "aside"])


def key_and_value(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["key", "value"])


class Run:
    """A consumer that writes to the table, and what it has put aside."""

    def __init__(self, place: SqlPlace, queue: pxrs.Queue) -> None:
        self.queue = queue
        self._place = place
        self.consumer: Consumer = queue.consumer("g", key_and_value, deliver="arrow", sink=place.sink())

    def send(self, *values: str) -> None:
        with self.queue.producer() as producer:
            for value in values:
                producer.send("k", value)

    def await_values(self, *values: str) -> None:
        eventually(lambda: self._place.values() == sorted(values), "the table holds them")

    def await_parked(self, said: str) -> None:
        eventually(lambda: said in str(self.consumer.troubles.get(0)), "the partition waits")

    @property
    def letters(self) -> list[str]:
        return [str(letter.value, "utf-8") for letter in self.queue.group("g").dead_letters]


@contextmanager
def running(place: SqlPlace, directory: Path, aside: bool) -> Iterator[Run]:
    place.registry_elsewhere = elsewhere(directory) if aside else ""
    with place.opened(f"file:{directory}/orders", partitions=1, settings=PATIENT.with_(tries=1)) as queue:
        run = Run(place, queue)
        run.consumer.start()
        yield run
        assert run.consumer.error is None


@ASIDE
@pytest.mark.parametrize("change", ["rename", "drop"])
def test_a_table_whose_columns_change_parks_the_partition_and_blames_no_message(
    place: SqlPlace, tmp_path: Path, aside: bool, change: str
) -> None:
    place.make(KEYED)
    key = "`key`" if place.engine.dialect.name == "mysql" else '"key"'
    there = {"rename": f"RENAME COLUMN {key} TO other", "drop": f"DROP COLUMN {key}"}[change]
    back = {"rename": f"RENAME COLUMN other TO {key}", "drop": f"ADD COLUMN {key} VARCHAR(100)"}[change]
    with running(place, tmp_path, aside) as run:
        run.send("a", "b")
        run.await_values("a", "b")
        place.run(f"ALTER TABLE {place.table} {there}")
        run.send("c", "d")
        run.await_parked("has other columns than before")
        place.run(f"ALTER TABLE {place.table} {back}")
        run.await_values("a", "b", "c", "d")
        assert run.letters == []


@ASIDE
def test_a_table_that_is_dropped_parks_the_partition_until_it_is_made_again(
    place: SqlPlace, tmp_path: Path, aside: bool
) -> None:
    place.make(KEYED)
    with running(place, tmp_path, aside) as run:
        run.send("a")
        run.await_values("a")
        place.run(f"DROP TABLE {place.table}")
        run.send("b", "c")
        run.await_parked("has no table")
        place.make(KEYED)
        run.await_values("b", "c")
        assert run.letters == []


@pytest.fixture
def postgres(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[SqlPlace]:
    place = SqlPlace(postgres_server, place_name(request.node.nodeid))
    yield place
    place.close()


@ASIDE
def test_a_rule_that_waits_for_the_commit_puts_aside_the_one_message_that_breaks_it(
    postgres: SqlPlace, tmp_path: Path, aside: bool
) -> None:
    postgres.make(DEFERRED)
    postgres.run(f"INSERT INTO {postgres.table} VALUES ('k', 'taken')")
    with running(postgres, tmp_path, aside) as run:
        run.send("a", "taken", "b", "c")
        run.await_values("a", "b", "c", "taken")
        eventually(lambda: run.letters == ["taken"], "that one is kept")


def test_a_column_that_was_never_there_is_for_the_message_to_answer_for(place: SqlPlace) -> None:
    """Only a change of the table parks: another output than before does not."""
    place.make(PLAIN)
    sink = place.sink()
    publish(sink, pa.table({"value": ["a"]}))
    with pytest.raises(Refused, match="has no column 'extra'") as refused:
        sink.stage(one(2), pa.table({"value": ["b"], "extra": [1]}))
    assert not isinstance(refused.value, NotFound)
    place.run(f"ALTER TABLE {place.table} ADD COLUMN extra INT")
    publish(sink, pa.table({"value": ["b"], "extra": [1]}), 2)
    with pytest.raises(HandlerFailed, match="column 'value'"):
        sink.stage(one(3), pa.table({"value": ["x" * 101]}))
    assert place.values() == ["a", "b"]
    assert isinstance(sink._took, TargetTable) and "extra" in sink._took.shape
