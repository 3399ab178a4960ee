"""``BASE.index`` beside a segment: it makes opening quick, and nothing that happens to it changes what is read."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from pxrs.logs.base import Stamp
from pxrs.logs.file.log import FileLog
from pxrs.logs.file.segment import index as indexfile
from pxrs.logs.file.segment import scan as walk
from pxrs.logs.file.segment.index import BatchIndex
from pxrs.logs.formats.segment import Header, read_header
from tests.logs.conftest import OpenFile
from tests.logs.file.check.test_damage import put
from tests.logs.helpers import entries, numbered, read_all

BATCHES = 8


def path_of(queue: Path, base: int) -> Path:
    return queue / "partition-0" / f"{base:020d}.index"


def saved_in(path: Path) -> int:
    """How many batches an index knows."""
    return indexfile.load(str(path), BatchIndex()).batches


@pytest.fixture
def segments(open_file: OpenFile, queue: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The indexes of a full and of an active segment with eight batches of two messages each, in two blocks or more."""
    monkeypatch.setattr(indexfile, "BLOCK", 4)
    for first, last in ((0, BATCHES), (BATCHES, 2 * BATCHES)):
        log = open_file(segment_bytes=1 if first else 1_000_000, durability="flush")
        for number in range(first, last):
            log.append({0: entries(numbered(2, 2 * number), time_us=number)}, {0: Stamp(f"p{number % 2}", number)})
            log = open_file(segment_bytes=1_000_000, durability="flush") if number == first else log
    full, active = path_of(queue, 0), path_of(queue, 2 * BATCHES)
    assert saved_in(full) == saved_in(active) == BATCHES
    assert sorted(path.name for path in (queue / "partition-0").glob("*.index")) == [full.name, active.name]
    return full, active


def sees_everything(log: FileLog) -> bool:
    """Whether messages, times and stamps are found as they were written."""
    messages = read_all(log, 0) == list(enumerate(numbered(4 * BATCHES)))
    times = all(log.offset_at(0, number) == 2 * number for number in range(2 * BATCHES))
    find = partial(log._partition(0)[0].find_stamp, rows=2)
    stamps = all(find(Stamp(f"p{number % 2}", number)) == 2 * number for number in range(2 * BATCHES))
    strangers = [find(Stamp("p0", 1)), find(Stamp("p1", 2 * BATCHES + 1)), find(Stamp("q", 0))]
    return messages and times and stamps and strangers == [None] * 3


def damages(good: bytes, other: bytes) -> dict[str, bytes]:
    """What may happen to an index."""
    half = len(good) // 2
    cut = {f"cut at {size}": good[:size] for size in range(len(good))}
    flipped = {}
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        flipped[f"bit {bit}"] = bytes(bad)
    return {
        **cut,
        **flipped,
        "garbage after it": good + b"PXI1" + bytes(range(256)),
        "zeros after it": good + bytes(300),
        "its own block again": good + good,
        "another segment's": other,
        "another segment's after it": good + other,
        "half another's": good[:half] + other[half:],
        "zeros": bytes(len(good)),
    }


@pytest.mark.parametrize("which", [0, 1], ids=["full", "active"])
def test_b37_no_damage_to_an_index_changes_what_is_read(
    open_file: OpenFile, segments: tuple[Path, Path], which: int
) -> None:
    path, good, other = segments[which], segments[which].read_bytes(), segments[1 - which].read_bytes()
    true, every, blocks = BatchIndex(), random.Random(37), {0, 4, BATCHES - 1, BATCHES}
    indexfile.load(str(path), true)
    for what, bad in damages(good, other).items():
        put(path, bad)
        loaded = BatchIndex()
        believed = indexfile.load(str(path), loaded).batches in blocks and true.starts_with(loaded)
        assert believed or "another" in what, what
        if not what.startswith(("bit", "cut")) or every.random() < 0.03:
            assert sees_everything(open_file()), what
    path.unlink()
    assert sees_everything(open_file())


def test_b37_a_writer_goes_on_behind_a_damaged_index_and_puts_it_right(
    open_file: OpenFile, segments: tuple[Path, Path], queue: Path
) -> None:
    active = segments[1]
    segment = active.with_suffix(".arrow")
    lock = segment.parent / "lock"
    good, whole, mark = active.read_bytes(), segment.read_bytes(), lock.read_bytes()
    damaged = damages(good, segments[0].read_bytes())
    for what in ["cut at 0", "cut at 70", "bit 300", "bit 50", "garbage after it", "another segment's", "zeros"]:
        put(active, damaged[what])
        put(segment, whole)
        put(lock, mark)
        for number in range(4):  # a block's worth
            again = open_file(durability="flush")
            given = again.append({0: entries([b"more"])}, {0: Stamp("more", number)})
            assert given == {0: 4 * BATCHES + number}, what
            assert again.append({0: entries([b"more"])}, {0: Stamp("more", number)}) == given, "recognised"
        log = open_file(durability="flush")
        log.append({0: entries([b"last"])})
        assert saved_in(active) >= BATCHES, what
        assert read_all(open_file(), 0, 4 * BATCHES - 1)[1:5] == [(4 * BATCHES + n, b"more") for n in range(4)], what


def test_b37_an_index_of_an_older_state_is_gone_on_from(open_file: OpenFile, segments: tuple[Path, Path]) -> None:
    """As a copy of the directory may have it, taken file by file while batches were appended."""
    good = segments[1].read_bytes()
    sizes = [block.saved.size for block in indexfile._blocks(str(segments[1]))]
    assert len(sizes) > 1
    put(segments[1], good[: sizes[0]])
    assert sees_everything(open_file())


@pytest.mark.parametrize("lost", [1, 3])
def test_b37_an_index_ahead_of_its_segment_is_not_believed(
    open_file: OpenFile, segments: tuple[Path, Path], lost: int
) -> None:
    """The segment lost its end in a crash of the machine; the index, which is never synced, happened to keep it."""
    segment = segments[1].with_suffix(".arrow")
    files = open_file()._partition(0)[0]
    files.bounds()
    assert files.active is not None
    with segment.open("r+b") as file:
        file.truncate(files.active.index.positions[BATCHES - lost])
    (segment.parent / "lock").unlink()  # another boot: the mark of the last one says nothing
    before, log = read_all(open_file(), 0), open_file(durability="flush")
    assert len(before) == 2 * (2 * BATCHES - lost)
    for number in range(6):  # of another size than those that are lost: the index must not go on from them
        first = len(before) + number
        assert log.append({0: entries([b"new" * 50 * number])}, {0: Stamp("new", number)}) == {0: first}
        assert read_all(open_file(), 0) == [*before, *((len(before) + n, b"new" * 50 * n) for n in range(number + 1))]
    assert saved_in(segments[1]) > BATCHES
    last, again = 2 * BATCHES - 1, open_file(durability="flush")
    given = again.append({0: entries([b"again"])}, {0: Stamp(f"p{last % 2}", last)})
    assert given == {0: len(before) + 6}, "what is lost is stored when it is sent again"


def test_b37_an_index_that_cannot_be_written_stops_no_append(
    open_file: OpenFile, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexfile, "BLOCK", 1)
    log = open_file(durability="flush")
    path_of(queue, 0).mkdir(parents=True)
    for number in range(3):
        assert log.append({0: entries(numbered(1, number))}) == {0: number}
    assert read_all(log, 0) == list(enumerate(numbered(3)))


def test_what_is_saved_is_loaded_block_by_block(tmp_path: Path) -> None:
    path, index = str(tmp_path / "x.index"), BatchIndex()
    for number in range(7):
        stamp = Stamp(f"p{number % 3}", number) if number % 2 else None
        index.add(100 * number, Header(number, 1, 50, 100, number, number, stamp))
        if number in (2, 6):
            saved = indexfile.save(path, index, 100 * number + 100, number + 1)
    loaded = BatchIndex()
    assert indexfile.load(path, loaded) == saved
    assert saved.batches == 7 and saved.position == 700 and saved.end == 7
    for column in ("positions", "bases", "last_us", "_producers", "_sequences"):
        assert getattr(loaded, column) == getattr(index, column)
    assert loaded.find(Stamp("p0", 3)) == 3 and loaded.find(Stamp("p2", 5)) == 5 and loaded.find(Stamp("p1", 4)) is None


def test_opening_a_long_segment_reads_its_index_and_not_its_headers(
    open_file: OpenFile, segments: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Header] = []

    def noted(data: bytes) -> Header:
        read.append(read_header(data))
        return read[-1]

    monkeypatch.setattr(walk, "read_header", noted)
    assert open_file().bounds(0) == (0, 4 * BATCHES)
    with_index = len(read)
    for path in segments:
        path.unlink()
    assert open_file().bounds(0) == (0, 4 * BATCHES)
    assert with_index == 0 and len(read) == BATCHES
