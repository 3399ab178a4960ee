"""Slips of the first hour: the error says what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

import pxrs
from pxrs.errors import BadKey, BadSetting, NotFound, Refused


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
