"""Readers show only what is durable: they look in the middle of a sync, and after a writer was killed there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pxrs.logs.base import Stamp
from pxrs.logs.file import durable_mark as mark
from pxrs.logs.file import reader as partition
from pxrs.logs.file.durable_mark import Mark, read_mark, write_mark
from tests.logs.conftest import OpenFile
from tests.logs.helpers import entries, numbered, read_all


def test_b32_a_batch_is_not_seen_before_it_is_synced(open_file: OpenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, other = open_file(), open_file()
    writer.append({0: entries(numbered(3))})
    seen: list[tuple[int, int]] = []
    sync = os.fdatasync

    def look_and_sync(fd: int) -> None:
        seen.extend((log.bounds(0)[1], len(read_all(log, 0))) for log in (other, writer))
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", look_and_sync)
    writer.append({0: entries(numbered(2, 3))})
    assert seen == [(3, 3), (3, 3)], "neither another process's view nor our own threads'"
    assert len(read_all(other, 0)) == len(read_all(writer, 0)) == 5


def test_a_reader_that_opens_while_a_segment_is_new_sees_the_full_ones(
    open_file: OpenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_file(segment_bytes=1)
    writer.append({0: entries(numbered(3))})
    writer.append({0: entries(numbered(2, 3))})
    seen: list[tuple[int, int]] = []
    sync = os.fdatasync

    def look_and_sync(fd: int) -> None:
        seen.append(open_file().bounds(0))
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", look_and_sync)
    writer.append({0: entries(numbered(2, 5))})
    assert seen == [(0, 5), (0, 5)], "before the new segment is made, and before its first batch is durable"


def test_a_reader_that_meets_the_first_writer_of_all_sees_nothing_before_it_is_synced(
    open_file: OpenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, other = open_file(), open_file()
    missing = [None]  # what a reader finds that looks before there is a mark, and goes on when there is one

    def read_too_early(directory: str) -> Mark | None:
        return missing.pop() if missing else read_mark(directory)

    seen: list[tuple[int, int]] = []
    sync = os.fdatasync

    def look_and_sync(fd: int) -> None:
        seen.append(other.bounds(0))
        sync(fd)

    monkeypatch.setattr(partition, "read_mark", read_too_early)
    monkeypatch.setattr(os, "fdatasync", look_and_sync)
    writer.append({0: entries(numbered(3))})
    assert not missing and seen == [(0, 0)]
    assert other.bounds(0) == (0, 3)


KILLED_BEFORE_ITS_SYNC = """
    import os, signal, sys
    from pxrs.logs.base import Stamp, Wish
    from pxrs.logs.file.log import FileLog
    from pxrs.settings import Settings
    from tests.logs.helpers import entries, numbered

    log = FileLog.open("file:" + sys.argv[1], Wish(1), Settings(), True)
    log.append({0: entries(numbered(3))})
    os.fdatasync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)
    log.append({0: entries(numbered(2, 3))}, {0: Stamp("p", 1)})
"""


@pytest.mark.processes
def test_b32_what_a_killed_writer_did_not_sync_is_hidden_until_the_next_one_vouches(
    queue: Path, open_file: OpenFile
) -> None:
    program = textwrap.dedent(KILLED_BEFORE_ITS_SYNC)
    ended = subprocess.run([sys.executable, "-c", program, str(queue)], cwd=Path(__file__).parents[3], timeout=60)
    assert ended.returncode == -signal.SIGKILL
    reader = open_file()
    assert reader.bounds(0) == (0, 3), "it was never acknowledged"
    firsts = open_file().append({0: entries(numbered(2, 3))}, {0: Stamp("p", 1)})
    assert firsts == {0: 3}, "the retry is recognised, synced and shown"
    assert [value for _, value in read_all(reader, 0)] == numbered(5)


def test_a_mark_of_an_earlier_boot_hides_nothing(
    open_file: OpenFile, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file().append({0: entries(numbered(3))})
    lock = os.open(queue / "partition-0" / "lock", os.O_RDWR)
    write_mark(lock, Mark(0, 1))
    os.close(lock)
    assert open_file().bounds(0) == (0, 0)
    monkeypatch.setattr(mark, "_boot", lambda: "f" * 16)
    assert read_mark(str(queue / "partition-0")) is None
    assert open_file().bounds(0) == (0, 3)


@pytest.mark.parametrize("content", [b"", b"x", b"0" * 75, b"\xff" * 75])
def test_a_lock_file_without_a_whole_mark_hides_nothing(open_file: OpenFile, queue: Path, content: bytes) -> None:
    open_file().append({0: entries(numbered(3))})
    (queue / "partition-0" / "lock").write_bytes(content)
    assert open_file().bounds(0) == (0, 3)


def test_a_new_segment_is_shown_with_its_first_batch(open_file: OpenFile) -> None:
    writer, reader = open_file(segment_bytes=1), open_file(segment_bytes=1)
    for number in range(4):
        writer.append({0: entries(numbered(2, 2 * number))})
        assert [value for _, value in read_all(reader, 0)] == numbered(2 * number + 2)
