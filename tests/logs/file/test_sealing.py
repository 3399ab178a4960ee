"""Full segments become Parquet under the eyes of readers and beside writers, and nobody notices anything but that."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import count, pairwise
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pxrs.errors import BeyondEnd, Damaged, Expired, Unavailable
from pxrs.logs.base import SCHEMA, Chunk, OpenOptions, Piece, Stamp
from pxrs.logs.file import reader as partition
from pxrs.logs.file import sealed_files, sealing
from pxrs.logs.file.log import FileLog
from pxrs.logs.file.segment import file as segmentfile
from pxrs.logs.pieces import read_range
from pxrs.settings import Settings
from tests.logs.conftest import OpenFile
from tests.logs.helpers import entries, numbered, pairs, read_all
from tests.tools.waiting import eventually

SMALL = {"segment_bytes": 1, "durability": "flush", "delete_delay_ms": 0}


def write_segments(open_file: OpenFile, count: int, log: FileLog | None = None, first: int = 0) -> FileLog:
    """Segments of one batch of two messages each; the times of batch n begin at 1,000 n."""
    log = log or open_file(**SMALL)
    for number in range(first, first + count):
        log.append({0: entries(numbered(2, 2 * number), time_us=1_000 * number, step_us=1)}, {0: Stamp("p", number)})
    return log


def names(queue: Path) -> list[str]:
    return sorted(path.name.lstrip("0") or "0" for path in (queue / "partition-0").iterdir())


# --- what it looks like


def test_full_segments_become_parquet_and_the_last_two_stay(open_file: OpenFile, queue: Path) -> None:
    log = write_segments(open_file, 5)
    before = pa.Table.from_batches(read_range(log.pieces(0, 0, 10), 0, 10))
    made = log.seal(0)
    assert [(chunk.kind, chunk.start, chunk.end) for chunk in made] == [("parquet", n, n + 2) for n in (0, 2, 4)]
    assert names(queue) == [
        ".parquet", "2.parquet", "4.parquet", "6.arrow", "6.index", "8.arrow", "housekeeping.lock", "lock",
        "manifest.json",
    ]  # fmt: skip
    sealed = pa.concat_tables(pq.read_table(chunk.path) for chunk in made)
    assert sealed.schema.equals(SCHEMA) and sealed.equals(before.slice(0, 6))
    assert pa.Table.from_batches(read_range(log.pieces(0, 0, 10), 0, 10)).equals(before)
    assert log.seal(0) == [], "nothing is left to seal"


def test_segments_that_are_too_young_wait_and_so_do_those_after_them(open_file: OpenFile, queue: Path) -> None:
    log = write_segments(open_file, 6)
    assert log.seal(0, min_age_ms=3_600_000) == []
    for base in (0, 4):
        os.utime(queue / "partition-0" / f"{base:020d}.arrow", (0, 0))
    assert [chunk.start for chunk in log.seal(0, min_age_ms=3_600_000)] == [0]


def test_a_reader_that_knew_the_segments_finds_them_sealed_and_trimmed(open_file: OpenFile) -> None:
    log, expected = write_segments(open_file, 6), list(enumerate(numbered(12)))
    reader = open_file()
    planned = reader.pieces(0, 0, 12)
    assert read_all(reader, 0) == expected
    log.seal(0)
    assert read_all(reader, 0) == expected
    assert [pair for batch in read_range(planned, 0, 12) for pair in pairs(batch)] == expected, "planned before"
    assert log.trim(0, 7) == 6
    with pytest.raises(Expired, match="offsets 0 to 5 are no longer stored; the log starts at 6"):
        open_file().read(0, 0)
    assert read_all(open_file(), 0, 6) == expected[6:]
    with pytest.raises(BeyondEnd):
        log.trim(0, 13)


def test_b39_files_deleted_under_a_reader_are_a_gap_with_offsets(open_file: OpenFile) -> None:
    log = write_segments(open_file, 6)
    log.seal(0)
    reader, old = open_file(), open_file()
    planned = old.pieces(0, 0, 12)
    assert reader.bounds(0) == (0, 12)
    assert log.trim(0, 4) == 4
    with pytest.raises(Expired, match="offsets 1 to 3 are no longer stored; the log starts at 4"):
        reader.read(0, 1)
    with pytest.raises(Expired, match="offsets 0 to 3"):
        old.pieces(0, 0, 12)
    with pytest.raises(Damaged, match=r"a part of the log is gone: .*00000000000000000000\.parquet"):
        list(read_range(planned, 0, 12))


def test_a_search_by_time_goes_over_sealed_and_live_parts(open_file: OpenFile) -> None:
    log = write_segments(open_file, 8)
    log.seal(0)
    for one in (log, open_file()):
        for number in range(8):
            assert one.offset_at(0, 1_000 * number) == 2 * number
            assert one.offset_at(0, 1_000 * number + 1) == 2 * number + 1
            assert one.offset_at(0, 1_000 * number + 2) == 2 * number + 2
        assert one.offset_at(0, -5) == 0
    log.trim(0, 6)
    assert open_file().offset_at(0, 0) == 6


def test_b62_retries_are_recognised_in_the_last_two_segments_also_when_the_rest_is_sealed(open_file: OpenFile) -> None:
    log = write_segments(open_file, 6)
    log.seal(0)
    again = open_file(**SMALL)
    for number in (5, 4):
        assert again.append({0: entries(numbered(2, 2 * number))}, {0: Stamp("p", number)}) == {0: 2 * number}
    assert again.append({0: entries(numbered(2))}, {0: Stamp("p", 3)}) == {0: 12}, "outside of the window: stored again"


def test_files_of_trimmed_messages_stay_for_the_delay(open_file: OpenFile, queue: Path) -> None:
    log = write_segments(open_file, 5)
    log.seal(0)
    patient = open_file(**{**SMALL, "delete_delay_ms": 3_600_000})
    assert patient.trim(0, 8) == 8
    assert ".parquet" in names(queue) and "6.arrow" in names(queue)
    assert open_file(delete_delay_ms=3_600_000).bounds(0) == (8, 10)
    assert ".parquet" in names(queue)
    assert open_file(delete_delay_ms=0).bounds(0) == (8, 10)
    assert names(queue) == ["8.arrow", "housekeeping.lock", "lock", "manifest.json"]


# --- in the middle of what another process does


def once(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, first: Callable[[], object]) -> None:
    """Something happens just before a function is called for the first time."""
    real, done = getattr(owner, name), list[bool]()

    def called(*args: object, **more: object) -> object:
        if not done:
            done.append(True)
            first()
        return real(*args, **more)

    monkeypatch.setattr(owner, name, called)


@pytest.mark.parametrize("sealed_before", [0, 2])
def test_segments_sealed_while_a_reader_lists_the_directory_are_not_missed(
    open_file: OpenFile, monkeypatch: pytest.MonkeyPatch, sealed_before: int
) -> None:
    log = write_segments(open_file, 2 + sealed_before)
    log.seal(0)
    write_segments(open_file, 4, log, 2 + sealed_before)
    files = partition.PartitionFiles("orders", 0, log._partition(0)[0].directory)
    once(monkeypatch, os, "listdir", lambda: log.seal(0))
    assert files.bounds() == (0, 2 * (6 + sealed_before))
    assert files.read(0, 10) is not None


def test_a_manifest_replaced_while_a_reader_looks_shows_nothing_twice(
    open_file: OpenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_segments(open_file, 4)
    log.seal(0)
    write_segments(open_file, 3, log, 4)
    monkeypatch.setattr(sealing, "_delete_segment", lambda *_: None)  # the sealer has not come to that yet
    asks: tuple[Callable[[FileLog], Sequence[Piece | Chunk]], ...]
    asks = (lambda one: one.pieces(0, 0, 14), lambda one: one.chunks(0))
    for ask in asks:
        reader = open_file()
        write_segments(open_file, 1, log, log.bounds(0)[1] // 2)
        reader.bounds(0)
        once(monkeypatch, sealed_files, "read_manifest", lambda: log.seal(0))
        found = ask(reader)
        assert [one.start for one in found] == list(range(0, 2 * len(found), 2))


def test_a_reader_is_not_tired_by_a_sealer_that_is_always_one_segment_ahead(
    open_file: OpenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, reader = write_segments(open_file, 8), open_file()
    reader.bounds(0)
    full, indexed = sealing._full, partition.PartitionFiles._indexed
    monkeypatch.setattr(sealing, "_full", lambda *args: full(*args)[:1])

    def overtaken(self: partition.PartitionFiles, number: int) -> object:
        if self is reader._partition(0)[0]:
            log.seal(0)
        return indexed(self, number)

    monkeypatch.setattr(partition.PartitionFiles, "_indexed", overtaken)
    assert [chunk.start for chunk in reader.chunks(0)] == list(range(0, 16, 2))


def test_a_writer_that_was_idle_never_takes_a_segment_that_is_being_trimmed_for_the_active_one(
    open_file: OpenFile, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = write_segments(open_file, 1, open_file())
    busy = write_segments(open_file, 4, open_file(**SMALL), 1)
    first, unlink = queue / "partition-0" / f"{0:020d}.arrow", os.unlink
    kept = [str(first)]
    monkeypatch.setattr(os, "unlink", lambda path: None if path in kept else unlink(path))
    once(monkeypatch, os.path, "exists", lambda: busy.trim(0, 8))
    assert idle.append({0: entries([b"idle"])}) == {0: 10}
    assert read_all(open_file(), 0, 8) == [*list(enumerate(numbered(10)))[8:], (10, b"idle")]


def test_a_writer_that_was_idle_goes_on_when_its_last_segment_is_sealed_under_it(
    open_file: OpenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = write_segments(open_file, 1)
    busy = write_segments(open_file, 5, open_file(**SMALL), 1)
    once(monkeypatch, partition, "read_mark", lambda: busy.seal(0))
    once(monkeypatch, segmentfile.Segment, "refresh", lambda: busy.seal(0))
    assert idle.append({0: entries([b"idle"])}) == {0: 12}


def test_segments_sealed_while_a_reader_goes_from_one_to_the_next_are_not_the_end(
    open_file: OpenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = write_segments(open_file, 1)
    assert reader.bounds(0) == (0, 2)
    busy = write_segments(open_file, 5, open_file(**SMALL), 1)
    once(monkeypatch, os.path, "exists", lambda: busy.seal(0))
    assert reader.bounds(0) == (0, 12)


# --- what is not as it should be


def test_a_segment_from_the_future_is_sealed(open_file: OpenFile, queue: Path) -> None:
    log = write_segments(open_file, 4)
    os.utime(queue / "partition-0" / f"{0:020d}.arrow", (2**32, 2**32))
    assert [chunk.start for chunk in log.seal(0)] == [0, 2]


def test_a_sealed_file_that_is_gone_does_not_hold_up_retention(open_file: OpenFile, queue: Path) -> None:
    log = write_segments(open_file, 5)
    log.seal(0)
    (queue / "partition-0" / f"{0:020d}.parquet").unlink()
    assert log.trim(0, 4) == 4
    assert read_all(open_file(), 0, 4) == list(enumerate(numbered(10)))[4:]


def test_what_was_verified_is_forgotten_when_it_is_trimmed(open_file: OpenFile) -> None:
    log = write_segments(open_file, 5)
    log.seal(0)
    assert len(read_all(log, 0)) == 10
    log.trim(0, 4)
    assert [sealed.start for sealed in log._partition(0)[0].history._intact] == [4]


def test_a_sweep_leaves_a_segment_whose_sealed_file_is_gone(open_file: OpenFile, queue: Path) -> None:
    """It is all that is left of its messages."""
    log, first = write_segments(open_file, 4), queue / "partition-0" / f"{0:020d}.arrow"
    content = first.read_bytes()
    log.seal(0)
    first.with_suffix(".parquet").rename(queue / "elsewhere")
    first.write_bytes(content)
    orphan = first.with_name(f"{999:020d}.index")
    orphan.write_bytes(b"of a segment that is gone")
    open_file(**SMALL).bounds(0)
    assert first.exists() and not orphan.exists()
    (queue / "elsewhere").rename(first.with_suffix(".parquet"))
    open_file(**SMALL).bounds(0)
    assert not first.exists()


# --- real processes

STOPPED_SEALER = """
import os, signal, sys
from pxrs.logs.file import sealing
from pxrs.logs.base import Wish
from pxrs.logs.file.log import FileLog
from pxrs.settings import Settings

write = sealing.write_manifest

def stop_first(*args):
    os.kill(os.getpid(), signal.SIGSTOP)
    write(*args)

sealing.write_manifest = stop_first
print(len(FileLog.open("file:" + sys.argv[1], Wish(), Settings(), create=False).seal(0)))
"""


@pytest.mark.processes
def test_a_sealer_that_is_stopped_in_the_middle_holds_up_nobody(open_file: OpenFile, queue: Path) -> None:
    log = write_segments(open_file, 3)
    with subprocess.Popen([sys.executable, "-c", STOPPED_SEALER, str(queue)], stdout=subprocess.PIPE) as sealer:
        try:
            eventually(lambda: psutil.Process(sealer.pid).status() == psutil.STATUS_STOPPED, "the stop")
            assert (queue / "partition-0" / f"{0:020d}.parquet").exists(), "in the middle"
            write_segments(open_file, 4, log, 3)
            expected = list(enumerate(numbered(14)))
            assert read_all(log, 0) == read_all(open_file(), 0) == expected
            for second in (log, open_file()):
                assert second.seal(0) == [], "one at a time, and nobody waits"
            assert f"{0:020d}.parquet" in os.listdir(queue / "partition-0"), "nor is its work swept"
        finally:
            os.kill(sealer.pid, signal.SIGCONT)
        assert sealer.stdout is not None and sealer.stdout.read() == b"1\n"
    assert read_all(log, 0) == read_all(open_file(), 0) == expected
    assert len(log.seal(0)) == 4


@pytest.mark.processes
def test_a_trim_that_waits_for_a_stopped_sealer_gives_up_with_its_name(
    open_file: OpenFile, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_segments(open_file, 3)
    monkeypatch.setattr(sealing, "_PATIENCE", 0.05)
    with subprocess.Popen([sys.executable, "-c", STOPPED_SEALER, str(queue)], stdout=subprocess.PIPE) as sealer:
        try:
            eventually(lambda: psutil.Process(sealer.pid).status() == psutil.STATUS_STOPPED, "the stop")
            with pytest.raises(Unavailable, match=r"partition-0: another process has sealed or trimmed here"):
                log.trim(0, 4)
        finally:
            sealer.kill()
    assert log.trim(0, 4) == 4, "the kernel has freed the lock"


ROUNDS = 12


def append_until_enough(queue: str, start: Barrier, enough: Event, done: Event) -> None:
    """Batches of three, some ten to a segment, until enough of them was sealed and trimmed."""
    log = FileLog.open(f"file:{queue}", OpenOptions(), Settings(segment_bytes=15_000, durability="flush"), create=False)
    start.wait(60)
    for number in count():
        log.append({0: entries(numbered(3, 3 * number), time_us=number)}, {0: Stamp("p", number)})
        if enough.is_set():
            break
    done.set()


def seal_and_trim(queue: str, delay_ms: int, start: Barrier, enough: Event) -> None:
    log = FileLog.open(f"file:{queue}", OpenOptions(), Settings(delete_delay_ms=delay_ms), create=False)
    start.wait(60)
    rounds = 0
    while rounds < ROUNDS:
        rounds += bool(log.seal(0))
        log.trim(0, max(0, log.bounds(0)[1] - 200))
    enough.set()


def read_once(log: FileLog, offset: int, planned: bool) -> int:
    """Read up to the end, and check each message; returns how many were read. What is trimmed is skipped."""
    seen, end = 0, log.bounds(0)[1]
    while offset < end:
        try:
            batches = read_range(log.pieces(0, offset, end), offset, end) if planned else [log.read(0, offset)]
            for batch in batches:
                assert batch is not None
                assert pairs(batch) == list(enumerate(numbered(batch.num_rows, offset), offset))
                offset, seen = offset + batch.num_rows, seen + batch.num_rows
        except Expired as gap:
            found = re.search(r"offsets (\d+) to (\d+) are no longer stored; the log starts at (\d+)", str(gap))
            assert found is not None and int(found[1]) == offset and int(found[3]) == int(found[2]) + 1 > offset
            offset = int(found[3])
    return seen


def read_all_the_time(queue: str, fresh: bool, planned: bool, start: Barrier, done: Event) -> None:
    """From the start to the end again and again, with one object or a new one each time."""
    last, total = False, 0
    log = FileLog.open(f"file:{queue}", OpenOptions(), Settings(), create=False)
    start.wait(60)
    while not last:
        last = done.is_set()
        if fresh:
            log = FileLog.open(f"file:{queue}", OpenOptions(), Settings(), create=False)
        total += read_once(log, 0, planned)
        chunks = log.chunks(0)
        assert all(one.end == after.start for one, after in pairwise(chunks)), chunks
    assert total > 0


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("delay_ms", [0, 60_000])
def test_b38_b39_readers_see_every_message_once_while_others_append_seal_and_trim(
    open_file: OpenFile, queue: Path, delay_ms: int
) -> None:
    """What was planned is read from files, which stay for the delay; without one only ``read`` is asked."""
    open_file()
    spawn = multiprocessing.get_context("spawn")
    start, enough, done = spawn.Barrier(4), spawn.Event(), spawn.Event()
    processes = [
        spawn.Process(target=append_until_enough, args=(str(queue), start, enough, done)),
        spawn.Process(target=seal_and_trim, args=(str(queue), delay_ms, start, enough)),
        *(
            spawn.Process(target=read_all_the_time, args=(str(queue), fresh, delay_ms > 0, start, done))
            for fresh in (False, True)
        ),
    ]
    try:
        for process in processes:
            process.start()
        for process in reversed(processes):
            process.join(120)
            assert process.exitcode == 0
    finally:
        for process in processes:
            process.kill()
    log = open_file(delete_delay_ms=0)
    first, end = log.bounds(0)
    assert 0 < first < end
    assert read_all(log, 0, first) == list(enumerate(numbered(end)))[first:]


@pytest.mark.slow
def test_reading_copies_nothing_of_a_quarter_of_a_gigabyte(open_file: OpenFile) -> None:
    """The issue names 1 GB: the same loop four times as long, which a test need not write to a disk each time."""
    log = open_file(durability="flush", segment_bytes=32_000_000)
    batch = entries([b"x" * 100_000] * 160)
    while log.bounds(0)[1] * 100_000 < 256_000_000:
        log.append({0: batch})
    reader, offset, size, most = open_file(), 0, 0, 0
    before, end = pa.total_allocated_bytes(), log.bounds(0)[1]
    while offset < end:
        found = reader.read(0, offset)
        assert found is not None
        offset, size = offset + found.num_rows, size + found.nbytes
        most = max(most, pa.total_allocated_bytes() - before)
    assert size > 256_000_000
    assert most < 1_000_000
