"""Network file systems: one machine writes; others read the planned files, without locks.

No such file system can be mounted here. What can be shown is that readers of planned pieces need nothing of it but to
open files, and that the embedded registries say where they stand.
"""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

import pxrs
from pxrs.io import file_system
from pxrs.logs.pieces import read_range
from pxrs.settings import Settings
from pxrs.stores.sqlite.store import SqliteStore

NFS = 0x6969
COUNT = 400


@pytest.fixture(params=["as it is written", "sealed"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[pxrs.Queue]:
    settings = Settings(segment_bytes=64 << 10)
    with pxrs.open(log=f"file:{tmp_path}/orders", partitions=1, settings=settings) as queue:
        with queue.producer() as producer:
            for number in range(COUNT):
                producer.send(f"key-{number}", b"x" * 1_000)
                if number % 40 == 0:
                    producer.flush()
        if request.param == "sealed":
            assert queue.log.seal(0)
        yield queue


def everything_below(directory: Path) -> dict[str, tuple[int, int]]:
    found = {path: path.stat() for path in directory.rglob("*")}
    return {str(path): (stat.st_mtime_ns, stat.st_size) for path, stat in found.items()}


def test_a_reader_of_what_was_planned_takes_no_lock_and_writes_nothing(
    queue: pxrs.Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = queue.log.pieces(0, 0, COUNT)
    before = everything_below(tmp_path / "orders" / "partition-0")

    def refuse(*_: Any) -> NoReturn:
        raise AssertionError("a lock was asked for")

    for name in ("flock", "lockf"):
        monkeypatch.setattr(fcntl, name, refuse)
    offsets = [offset for batch in read_range(pieces, 0, COUNT) for offset in batch.column("offset").to_pylist()]
    assert offsets == list(range(COUNT))
    assert everything_below(tmp_path / "orders" / "partition-0") == before


def test_a_registry_in_sqlite_says_that_a_network_file_system_is_for_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(file_system, "kind_of_file_system", lambda _: NFS)
    with caplog.at_level(logging.WARNING, "pxrs"):
        SqliteStore.open(f"sqlite:{tmp_path}/registry.db", Settings()).close()
    [line] = [record.getMessage() for record in caplog.records]
    assert "NFS" in line and "one machine" in line and f"{tmp_path}/registry.db" in line


def test_on_a_disk_of_this_machine_it_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pxrs"):
        SqliteStore.open(f"sqlite:{tmp_path}/registry.db", Settings()).close()
    assert not caplog.records
