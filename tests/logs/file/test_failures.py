"""Disks that are full, take less than they are given, or lie about syncing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pxrs.errors import Damaged, Unavailable
from pxrs.logs.base import Stamp
from tests.logs.conftest import OpenFile
from tests.logs.helpers import entries, numbered, read_all

Write = Callable[[int, memoryview], int]


def test_b33_a_short_write_is_continued(open_file: OpenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.write, []

    def short(fd: int, data: memoryview) -> int:
        calls.append(len(data))
        return real(fd, data[:37])

    log = open_file()
    monkeypatch.setattr(os, "write", short)
    log.append({0: entries(numbered(3))})
    assert len(calls) > 20
    monkeypatch.undo()
    assert read_all(open_file(), 0) == list(enumerate(numbered(3)))


def full_after(taken: int) -> Write:
    """A disk that takes so many bytes more, and then no space is left on it."""
    real, left = os.write, [taken]

    def write(fd: int, data: memoryview) -> int:
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real(fd, data[: left[0]])
        left[0] -= done
        return done

    return write


@pytest.mark.parametrize("taken", [0, 1, 7, 8, 500, 1_200])
def test_b30_a_full_disk_keeps_what_was_there_and_goes_on_when_freed(
    open_file: OpenFile, queue: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    log = open_file()
    log.append({0: entries(numbered(2))})
    segment = queue / "partition-0" / f"{0:020d}.arrow"
    size = segment.stat().st_size
    monkeypatch.setattr(os, "write", full_after(taken))
    with pytest.raises(Unavailable, match=r"\.arrow.*No space left"):
        log.append({0: entries(numbered(2, 2))}, {0: Stamp("p", 0)})
    assert segment.stat().st_size == size, "cut back to the last good batch"
    assert read_all(open_file(), 0) == read_all(log, 0) == list(enumerate(numbered(2)))
    monkeypatch.undo()
    assert log.append({0: entries(numbered(2, 2))}, {0: Stamp("p", 0)}) == {0: 2}
    assert read_all(open_file(), 0) == list(enumerate(numbered(4)))


def test_a_write_that_cannot_be_taken_back_poisons(open_file: OpenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_file()
    log.append({0: entries(numbered(2))})

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "write", full_after(100))
    monkeypatch.setattr(os, "ftruncate", fail)
    with pytest.raises(Unavailable):
        log.append({0: entries(numbered(2, 2))})
    monkeypatch.undo()
    with pytest.raises(Damaged, match="open the queue anew"):
        log.append({0: entries(numbered(2, 2))})
    assert open_file().append({0: entries(numbered(2, 2))}) == {0: 2}


def test_b31_a_failed_sync_poisons_the_writer_for_that_partition(
    open_file: OpenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_file(partitions=3)
    log.append({0: entries(numbered(1)), 1: entries(numbered(1))})
    real = os.fdatasync
    failed: list[int] = []

    def fail_once(fd: int) -> None:
        if "partition-1" in os.readlink(f"/proc/self/fd/{fd}") and not failed:
            failed.append(fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fail_once)
    stamps = {0: Stamp("p", 1), 1: Stamp("p", 1)}
    batches = {0: entries(numbered(1, 1)), 1: entries(numbered(1, 1))}
    for _ in range(3):  # the second sync would "succeed": it must never be believed
        with pytest.raises(Damaged, match=r"partition 1: .*open the queue anew"):
            log.append(batches, stamps)
    assert len(failed) == 1
    assert log.append({2: entries(numbered(1))}) == {2: 0}, "other partitions go on"
    assert open_file(partitions=3).bounds(1) == (0, 1), "what may not be on the disk is not in the log"
    assert open_file(partitions=3).append(batches, stamps) == {0: 1, 1: 1}
    assert [open_file(partitions=3).bounds(p)[1] for p in range(3)] == [2, 2, 1]


def test_b32_nothing_is_acknowledged_before_it_is_synced(
    open_file: OpenFile, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_file(partitions=4, segment_bytes=5_000)
    real = os.fdatasync
    synced: dict[str, int] = {}

    def noted(fd: int) -> None:
        real(fd)
        synced[os.readlink(f"/proc/self/fd/{fd}")] = os.fstat(fd).st_size

    monkeypatch.setattr(os, "fdatasync", noted)
    for number in range(8):
        log.append({partition: entries(numbered(9)) for partition in range(4)}, {0: Stamp("p", number)})
        sizes = {str(path): path.stat().st_size for path in queue.rglob("*.arrow")}
        assert synced == sizes
    assert len(synced) > 4, "segments changed on the way"


def test_b62_a_retry_is_acknowledged_only_after_a_sync_of_its_own(
    open_file: OpenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first try was killed after its write and before its sync.
    open_file(durability="flush").append({0: entries(numbered(2))}, {0: Stamp("p", 0)})
    log = open_file()
    real, synced = os.fdatasync, []

    def noted(fd: int) -> None:
        real(fd)
        synced.append(fd)

    monkeypatch.setattr(os, "fdatasync", noted)
    assert log.append({0: entries(numbered(2))}, {0: Stamp("p", 0)}) == {0: 0}
    assert len(synced) == 1


def test_flush_durability_does_not_sync(open_file: OpenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_file(durability="flush")
    log.append({0: entries(numbered(1))})

    def never(fd: int) -> None:
        raise AssertionError(f"synced {fd}")

    monkeypatch.setattr(os, "fdatasync", never)
    assert log.append({0: entries(numbered(1))}) == {0: 1}


LIMITED = """
import resource, sys
from pxrs.errors import Unavailable
from pxrs.logs.base import Wish
from pxrs.logs.file.log import FileLog
from pxrs.settings import Settings
from logs.helpers import entries, numbered

resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
log = FileLog.open("file:" + sys.argv[1], Wish(), Settings(), create=False)
stored = 0
try:
    while stored < 10_000:
        log.append({0: entries(numbered(10, stored))})
        stored += 10
except Unavailable as error:
    assert "could not be written" in str(error), error
    print(stored)
"""


@pytest.mark.processes
def test_b30_b33_a_real_limit_of_the_kernel(open_file: OpenFile, queue: Path) -> None:
    open_file()
    tests = str(Path(__file__).parents[2])
    child = subprocess.run(
        [sys.executable, "-c", LIMITED, str(queue)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    stored = int(child.stdout)
    assert 0 < stored < 10_000
    log = open_file()
    assert read_all(log, 0) == list(enumerate(numbered(stored)))
    assert log.append({0: entries([b"more"])}) == {0: stored}
