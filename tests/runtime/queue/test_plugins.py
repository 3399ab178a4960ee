"""Drivers and hashes of other packages, found by name."""

from __future__ import annotations

from importlib import metadata
from typing import NamedTuple

import pytest

import pxrs
from pxrs.drivers import find_driver, split_url
from pxrs.errors import BadSetting, BadUrl
from pxrs.logs.memory import MemoryLog
from pxrs.rules.routing import hashes as hashing


class Point(NamedTuple):
    name: str
    loads: object

    def load(self) -> object:
        return self.loads


def first_byte(key: bytes) -> int:
    return key[0]


OFFERED = {"pxrs.hashes": [Point("first-byte", first_byte)], "pxrs.logs": [Point("theirs", MemoryLog)]}


@pytest.fixture(autouse=True)
def _offered(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_points(group: str, name: str | None = None) -> list[Point]:
        return [point for point in OFFERED.get(group, ()) if name in (None, point.name)]

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    monkeypatch.setattr(hashing, "_registered", {})


def test_a_driver_of_another_package_is_found_by_its_scheme() -> None:
    assert find_driver("pxrs.logs", "theirs:x") is MemoryLog


def test_an_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(BadUrl, match=r"'ftp'.*file, memory, nats, theirs"):
        find_driver("pxrs.logs", "ftp:x")
    for text in ("orders", ":x", ""):
        with pytest.raises(BadUrl, match="no URL"):
            split_url(text)


def test_a_hash_of_another_package_is_registered_when_a_queue_asks_for_it() -> None:
    with pxrs.open("memory:", partitions=16, hash="first-byte") as queue:
        assert queue.partitioner.partition(b"\x05") == 5
    with pytest.raises(BadSetting, match="absent"):
        pxrs.open("memory:", hash="absent")
