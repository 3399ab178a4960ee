"""Slips of the first hour: the error says what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import pxrs
from pxrs.errors import BadKey, BadSetting, NotFound, Refused
from pxrs.sinks import ParquetSink, QueueSink, SqlSink


@pytest.fixture
def queue() -> Iterator[pxrs.Queue]:
    with pxrs.open("memory:", partitions=4) as queue:
        with queue.producer() as producer:
            for number in range(20):
                producer.send(f"k{number}", b"v")
        yield queue


@pytest.mark.parametrize(
    "make", [lambda **wrong: pxrs.Settings(**wrong), lambda **wrong: pxrs.Settings().with_(**wrong)]
)
def test_a_mistyped_setting_names_the_one_that_was_meant(make: Callable[..., pxrs.Settings]) -> None:
    with pytest.raises(BadSetting, match="unknown setting 'leese_ms'; did you mean 'lease_ms'"):
        make(leese_ms=1)


@pytest.mark.parametrize(
    ("value", "write"),
    [({"a": 1}, "json.dumps(value)"), ([1], "json.dumps(value)"), (None, "json.dumps(value)"), (7, "str(value)"),
     (1.5, "str(value)"), (bytearray(b"x"), "bytes(value)"), (memoryview(b"x"), "bytes(value)")],
)  # fmt: skip
def test_a_value_that_is_no_bytes_says_what_to_write(queue: pxrs.Queue, value: Any, write: str) -> None:
    with queue.producer() as producer, pytest.raises(Refused) as refused:
        producer.send("k", value)
    assert f"not {type(value).__name__}" in str(refused.value) and write in str(refused.value)


def test_a_key_or_a_header_that_is_no_bytes_says_what_to_write(queue: pxrs.Queue) -> None:
    wrong: Any = {"n": 1}
    with queue.producer() as producer:
        for key in (42, uuid4()):
            with pytest.raises(BadKey, match=r"write str\(key\)"):
                producer.send(key, b"v")  # type: ignore[arg-type]
        with pytest.raises(Refused, match=r"a header value must be bytes or str, not int: write str\(value\)"):
            producer.send("k", b"v", headers=wrong)


def test_seek_takes_one_word_or_time_for_all_partitions(queue: pxrs.Queue) -> None:
    group = queue.make_group("billing")
    assert group.seek("latest") == queue.ends()
    assert group.seek("earliest") == dict.fromkeys(range(4), 0)
    assert group.seek(datetime(2020, 1, 1, tzinfo=UTC)) == dict.fromkeys(range(4), 0)
    assert [line.checkpoint for line in group.describe()] == [0, 0, 0, 0]


def test_seek_refuses_what_is_no_place_for_all(queue: pxrs.Queue) -> None:
    queue.consumer("billing", print)
    group, five, listed = queue.group("billing"), 5, [0, 1]
    with pytest.raises(Refused, match="'erliest': an offset, 'earliest', 'latest' or a datetime"):
        group.seek("erliest")
    for wrong in (five, listed, None):
        with pytest.raises(Refused, match="does not name partitions"):
            group.seek(wrong)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="has no partition 9"):
        group.seek({9: 0})


def _nothing(*_: Any) -> None: ...


WRONG: dict[str, tuple[Callable[[pxrs.Queue], Any], str]] = {
    "settings of a consumer": (lambda q: q.consumer("g", _nothing, settings=5), "settings = 5: must be pxrs.Settings"),  # type: ignore[arg-type]
    "no settings": (lambda q: q.consumer("g", _nothing, settings=0), "settings = 0: must be pxrs.Settings"),  # type: ignore[arg-type]
    "assigned": (lambda q: q.consumer("g", _nothing, assigned=5), r"assigned = 5: must be a function of \(partition,"),  # type: ignore[arg-type]
    "revoked": (lambda q: q.consumer("g", _nothing, revoked=5), r"revoked = 5: must be a function of \(partition,"),  # type: ignore[arg-type]
    "report": (lambda q: q.consumer("g", _nothing, report=5), r"report = 5: must be a function of \(kind, facts\)"),  # type: ignore[arg-type]
    "partition as text": (lambda q: q.read("0", 0), "has no partition '0': they are 0 to 3"),  # type: ignore[arg-type]
    "partition as truth": (lambda q: q.read(True, 0), "has no partition True: they are 0 to 3"),
    "limit as text": (lambda q: q.read(0, 0, limit="x"), "limit = 'x': must be a number of messages"),  # type: ignore[arg-type]
    "limit below 0": (lambda q: q.read(0, 0, limit=-1), "limit = -1: must be a number of messages"),
    "limit of nothing": (lambda q: q.read(0, 0, limit=None), "limit = None: must be"),  # type: ignore[arg-type]
    "one letter": (lambda q: q.group("g").dead_letters.retry(5), r"numbers = 5: must be .* as \[5\] is"),  # type: ignore[arg-type]
    "letters as text": (lambda q: q.group("g").dead_letters.retry("12"), "numbers = '12': must be"),  # type: ignore[arg-type]
    "a letter as text": (lambda q: q.group("g").dead_letters.get("x"), "number = 'x': must be the number"),  # type: ignore[arg-type]
    "wait": (lambda q: q.consumer("g", _nothing).wait("x"), "timeout = 'x': must be a number of seconds"),  # type: ignore[arg-type]
    "stop": (lambda q: q.consumer("g", _nothing).stop("x"), "timeout = 'x': must be a number of seconds"),  # type: ignore[arg-type]
    "wait of no number": (lambda q: q.consumer("g", _nothing).wait(float("nan")), "timeout = nan: must be a number"),
    "flush": (lambda q: q.producer().flush("x"), "timeout = 'x': must be a number of seconds"),  # type: ignore[arg-type]
    "a receipt": (lambda q: q.producer().send("k", b"v").result("x"), "timeout = 'x': must be"),  # type: ignore[arg-type]
    "receipts": (lambda q: q.producer().send_batch(pa.table({"key": ["k"], "value": [b"v"]})).result("x"), "'x'"),  # type: ignore[arg-type]
    "a file's number": (lambda _: pxrs.load_settings(5), "path = 5: must be the name of a YAML file"),  # type: ignore[arg-type]
    "no file's name": (lambda _: pxrs.load_settings([]), r"path = \[\]: must be the name of a YAML file"),  # type: ignore[arg-type]
    "no environment": (lambda _: pxrs.load_settings(environ=5), "environ = 5: must be a mapping"),  # type: ignore[arg-type]
    "no mapping": (lambda _: pxrs.Settings.from_mapping(5), "settings = 5: must be a mapping"),  # type: ignore[arg-type]
    "require": (lambda _: pxrs.open("memory:", require=5), "require = 5: must be a guarantee"),  # type: ignore[arg-type]
    "assignor": (lambda _: pxrs.open("memory:", assignor=[]), r"assignor \[\] is not known"),  # type: ignore[arg-type]
    "directory": (lambda _: ParquetSink(None), "directory = None: must be a local directory"),  # type: ignore[arg-type]
    "bytes": (lambda _: ParquetSink(b"x"), "directory = b'x': must be a local directory"),  # type: ignore[arg-type]
    "staging": (lambda _: ParquetSink("x", staging=5), "staging = 5: must be a local directory"),  # type: ignore[arg-type]
    "columns": (lambda _: ParquetSink("x", partition_by=5), "partition_by = 5: must be the name of a column"),  # type: ignore[arg-type]
    "a column": (lambda _: ParquetSink("x", partition_by=[5]), r"partition_by = \[5\]: must be"),  # type: ignore[list-item]
    "staging of a queue": (lambda q: QueueSink(q, 5), "staging = 5: must be a local directory"),  # type: ignore[arg-type]
    "patience of a queue": (lambda q: QueueSink(q, "x", patience="x"), "patience = 'x': seconds are"),  # type: ignore[arg-type]
    "database": (lambda _: SqlSink(None, "t"), "database = None: must be a URL"),  # type: ignore[arg-type]
    "table": (lambda _: SqlSink("postgresql://u@h/n", 5), "table = 5: the name of a table is needed"),  # type: ignore[arg-type]
    "patience": (lambda _: SqlSink("postgresql://u@h/n", "t", patience="x"), "patience = 'x': seconds are"),  # type: ignore[arg-type]
    "no patience": (lambda _: SqlSink("postgresql://u@h/n", "t", patience=None), "patience = None: seconds are"),  # type: ignore[arg-type]
    "patience below 0": (lambda _: SqlSink("postgresql://u@h/n", "t", patience=-1), "patience = -1: seconds are"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_an_argument_of_another_kind_is_refused_by_its_name(what: str, queue: pxrs.Queue) -> None:
    call, said = WRONG[what]
    with pytest.raises(Refused, match=said):
        call(queue)


def test_a_consumer_whose_stop_is_refused_goes_on(queue: pxrs.Queue) -> None:
    consumer = queue.consumer("billing", _nothing)
    with pytest.raises(BadSetting):
        consumer.stop("soon")  # type: ignore[arg-type]
    assert consumer.state == "registering"
