"""Torn tails are cut, damage elsewhere is named, and no flipped bit changes what a reader returns."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from pxrs.errors import Damaged, NotFound
from pxrs.logs.base import SCHEMA, Stamp
from pxrs.logs.file import durable_mark as mark
from pxrs.logs.file.reader import PartitionFiles
from pxrs.logs.formats.sealed_parquet import digest_of
from pxrs.logs.pieces import read_piece, read_range
from tests.logs.conftest import OpenFile
from tests.logs.helpers import entries, numbered, pairs, read_all

SCHEMA_BYTES = SCHEMA.serialize().size


def write_three(open_file: OpenFile, queue: Path, compression: str = "none") -> tuple[Path, list[int]]:
    """Three batches of two; returns the segment and the byte where each batch ends, after the schema's end."""
    log = open_file(compression=compression)
    segment = queue / "partition-0" / f"{0:020d}.arrow"
    ends = [SCHEMA_BYTES]
    for number in range(3):
        log.append({0: entries(numbered(2, 2 * number))}, {0: Stamp("p", number)})
        ends.append(segment.stat().st_size)
    return segment, ends


def put(segment: Path, content: bytes | bytearray) -> None:
    """Give the file this content in place: quicker by far than to empty it first."""
    with segment.open("r+b") as file:
        file.write(content)
        file.truncate()


@pytest.fixture
def restarts(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Restart the machine, as far as the log can see: after a power loss no mark of before means anything."""
    boots = (f"{number:016x}" for number in count(1))
    return lambda: monkeypatch.setattr(mark, "_boot", partial(str, next(boots)))


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_b28_b29_a_tail_torn_at_every_byte_is_cut_and_appends_go_on(
    open_file: OpenFile, queue: Path, restarts: Callable[[], None], step: int
) -> None:
    segment, ends = write_three(open_file, queue)
    whole = segment.read_bytes()
    for cut in range(ends[2], ends[3], step):
        put(segment, whole[:cut])
        restarts()
        reader = open_file()
        assert read_all(reader, 0) == list(enumerate(numbered(4))), cut
        assert segment.stat().st_size == cut, "a reader never writes"
        writer = open_file(durability="flush")
        assert writer.append({0: entries([b"after"])}) == {0: 4}, cut
        expected = [*enumerate(numbered(4)), (4, b"after")]
        assert read_all(writer, 0) == read_all(reader, 0) == read_all(open_file(), 0) == expected, cut
        assert not list(segment.parent.glob("*.cut-*")), "an incomplete batch was never acknowledged"


def test_b28_b29_a_tail_of_zeros_is_cut(open_file: OpenFile, queue: Path, restarts: Callable[[], None]) -> None:
    segment, ends = write_three(open_file, queue)
    restarts()
    os.truncate(segment, ends[2])
    os.truncate(segment, ends[3])  # the size without the content, as a power loss can leave it
    assert read_all(open_file(), 0) == list(enumerate(numbered(4)))
    assert open_file().append({0: entries([b"after"])}) == {0: 4}


def test_a_last_batch_with_half_its_content_is_set_aside_by_the_next_writer(
    open_file: OpenFile, queue: Path, restarts: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    segment, ends = write_three(open_file, queue)
    restarts()
    whole = segment.read_bytes()
    half = (ends[2] + 2 * ends[3]) // 3
    torn = whole[:half] + b"\0" * (ends[3] - half)
    put(segment, torn)
    reader = open_file()
    with pytest.raises(Damaged, match=r"\.arrow.* offset 4"):
        read_all(reader, 0)
    with caplog.at_level(logging.WARNING):
        assert open_file().append({0: entries([b"after"])}) == {0: 4}
    assert "cut" in caplog.text and str(segment) in caplog.text
    [aside] = segment.parent.glob("*.cut-*")
    assert aside.read_bytes() == torn[ends[2] :]
    assert read_all(open_file(), 0) == [*enumerate(numbered(4)), (4, b"after")]


def test_b29_damage_before_good_batches_is_an_error_that_names_the_place(open_file: OpenFile, queue: Path) -> None:
    segment, ends = write_three(open_file, queue)
    whole = segment.read_bytes()
    for position in (ends[1], ends[1] + 4, ends[1] + 5, ends[1] + 40, ends[1] + 400):
        bad = bytearray(whole)
        bad[position] ^= 0x40
        put(segment, bad)
        for attempt in (lambda: open_file().append({0: entries([b"x"])}), lambda: read_all(open_file(), 0)):
            with pytest.raises(Damaged, match=rf"{segment}.* byte {ends[1]}, offset 2"):
                attempt()
        assert segment.read_bytes() == bytes(bad), "nothing is cut that others wrote after"


def read_alone(segment: Path) -> list[tuple[int, bytes]]:
    """What a reader returns that has seen nothing before; quicker than to open the whole queue."""
    files = PartitionFiles("orders", 0, str(segment.parent))
    found: list[tuple[int, bytes]] = []
    while (batch := files.read(len(found), 100)) is not None:
        found += pairs(batch)
    return found


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("flips", [500, pytest.param(0, marks=pytest.mark.slow, id="all")])
def test_b34_no_flipped_bit_changes_what_a_reader_returns(
    open_file: OpenFile, queue: Path, flips: int, compression: str
) -> None:
    segment, _ = write_three(open_file, queue, compression)
    whole = segment.read_bytes()
    expected = list(enumerate(numbered(6)))
    bits = range(len(whole) * 8)
    chosen = random.Random(34).sample(bits, flips) if flips else list(bits)
    detected = harmless = 0
    for bit in chosen:
        bad = bytearray(whole)
        bad[bit // 8] ^= 1 << bit % 8
        put(segment, bad)
        try:
            read = read_alone(segment)
        except Damaged as error:
            detected += str(segment) in str(error)
        else:
            assert read == expected, bit
            harmless += 1
    assert detected + harmless == len(chosen)
    assert detected > 10 * harmless, "only the schema's padding may change unnoticed"


def write_sealed(open_file: OpenFile, queue: Path) -> Path:
    """Two sealed files and two segments of two messages each; returns the first sealed file."""
    log = open_file(segment_bytes=1, durability="flush")
    for number in range(4):
        log.append({0: entries(numbered(2, 2 * number))})
    assert len(log.seal(0)) == 2
    return queue / "partition-0" / f"{0:020d}.parquet"


def test_b34_every_flipped_bit_of_a_sealed_file_is_detected(open_file: OpenFile, queue: Path) -> None:
    """The checksum sees every flip, and a reader that sees the checksum fail says so: tried with one flip in forty."""
    path = write_sealed(open_file, queue)
    whole, good = path.read_bytes(), digest_of(str(path))
    for bit in range(len(whole) * 8):
        bad = bytearray(whole)
        bad[bit // 8] ^= 1 << bit % 8
        put(path, bad)
        assert digest_of(str(path)) != good, bit
        if bit % 41 == 0:
            with pytest.raises(Damaged, match=rf"{path}: .*offsets 0 to 1, fails its checksum"):
                open_file().read(0, 0)
    reader = open_file()
    assert read_all(reader, 0, 2) == list(enumerate(numbered(8)))[2:], "only that file is refused"
    put(path, whole)
    assert read_all(reader, 0) == list(enumerate(numbered(8)))


def test_b34_a_sealed_file_that_is_cut_or_not_one_at_all_is_named(open_file: OpenFile, queue: Path) -> None:
    path = write_sealed(open_file, queue)
    whole = path.read_bytes()
    for content in (*(whole[:size] for size in range(0, len(whole), 7)), b"", whole + b"x", bytes(len(whole))):
        put(path, content)
        for attempt in (lambda: open_file().read(0, 0), lambda: open_file().offset_at(0, 0)):
            with pytest.raises(Damaged, match=rf"{path}: .*offsets 0 to 1"):
                attempt()
    path.unlink()
    with pytest.raises(Damaged, match=rf"gone: .*{path}"):
        open_file().read(0, 0)
    assert read_all(open_file(), 0, 2) == list(enumerate(numbered(8)))[2:]


def test_b34_no_flipped_bit_of_a_sealed_piece_changes_what_a_task_returns(open_file: OpenFile, queue: Path) -> None:
    """A task has no manifest, and so no checksum of the whole file: only those of its pages."""
    path = write_sealed(open_file, queue)
    [piece] = open_file().pieces(0, 0, 2)
    whole, expected = path.read_bytes(), [batch.to_pylist() for batch in read_range([piece], 0, 2)]
    chosen = random.Random(36).sample(range(len(whole) * 8), 3_000)
    detected = harmless = 0
    for bit in chosen:
        bad = bytearray(whole)
        bad[bit // 8] ^= 1 << bit % 8
        put(path, bad)
        try:
            found = [batch.to_pylist() for batch in read_range([piece], 0, 2)]
        except Damaged as error:
            detected += str(path) in str(error)
        else:
            assert found == expected, bit
            harmless += 1
    assert detected + harmless == len(chosen)
    assert detected > harmless


def test_b34_a_damaged_body_refuses_only_its_own_batch(open_file: OpenFile, queue: Path) -> None:
    segment, ends = write_three(open_file, queue)
    bad = bytearray(segment.read_bytes())
    bad[ends[2] - 40] ^= 1
    put(segment, bad)
    reader = open_file()
    with pytest.raises(Damaged, match=f"byte {ends[1]}, offset 2"):
        reader.read(0, 2)
    assert read_all(reader, 0, 4) == list(enumerate(numbered(6)))[4:]
    first = reader.read(0, 0)
    assert first is not None and pairs(first) == list(enumerate(numbered(2)))
    with pytest.raises(Damaged, match="offset 2"):
        list(read_piece(reader.pieces(0, 0, 6)[0], 0, 6))


@pytest.mark.parametrize("begun", [3, 9, 700])
@pytest.mark.parametrize("reads", [1, 2, 3])
def test_a_batch_that_is_finished_while_a_reader_looks_is_no_damage(
    open_file: OpenFile, queue: Path, monkeypatch: pytest.MonkeyPatch, begun: int, reads: int
) -> None:
    _, ends = write_three(open_file, queue)
    real = os.pread
    left = reads

    def pread(fd: int, length: int, position: int) -> bytes:
        """The first few reads see only the beginning of the second batch."""
        nonlocal left
        data = real(fd, length, position)
        if SCHEMA_BYTES <= position <= ends[1] and left:
            left -= 1
            return data[: ends[1] + begun - position]
        return data

    monkeypatch.setattr(os, "pread", pread)
    reader = open_file()
    assert read_all(reader, 0) in [list(enumerate(numbered(rows))) for rows in (2, 6)]
    assert read_all(reader, 0) == list(enumerate(numbered(6)))
    assert left == 0


def test_a_missing_or_short_segment_in_the_middle_is_named(open_file: OpenFile, queue: Path) -> None:
    log = open_file(segment_bytes=1)
    for number in range(3):
        log.append({0: entries(numbered(2, 2 * number))})
    middle = queue / "partition-0" / f"{2:020d}.arrow"
    os.truncate(middle, middle.stat().st_size - 1)
    reader = open_file()
    assert reader.bounds(0) == (0, 6)
    with pytest.raises(Damaged, match=str(middle)):
        reader.read(0, 2)
    middle.unlink()
    with pytest.raises(Damaged, match=r"ends at offset 2, and the next segment starts at 4"):
        read_all(open_file(), 0)


def test_b27_a_log_that_was_recreated_shorter_is_noticed(open_file: OpenFile, queue: Path) -> None:
    segment, ends = write_three(open_file, queue)
    reader = open_file()
    assert reader.bounds(0) == (0, 6)
    os.truncate(segment, ends[1])
    with pytest.raises(Damaged, match="has shrunk"):
        reader.bounds(0)


def test_a_log_whose_partition_is_gone_says_so(open_file: OpenFile, queue: Path) -> None:
    log = open_file()
    (queue / "partition-0").rmdir()
    with pytest.raises(Damaged, match="partition-0"):
        log.bounds(0)
    with pytest.raises(Damaged, match="partition-0"):
        log.append({0: entries([b"x"])})
    with pytest.raises(NotFound, match="partition-0"):
        log.subscribe(0, lambda: None)


def test_a_segment_without_a_single_byte_is_damaged(
    open_file: OpenFile, queue: Path, restarts: Callable[[], None]
) -> None:
    """It was complete, with its schema, before it got its name: nobody may append to it as if it were new."""
    open_file().append({0: entries(numbered(3))})
    [segment] = (queue / "partition-0").glob("*.arrow")
    restarts()
    os.truncate(segment, 0)
    for _ in range(2):
        with pytest.raises(Damaged, match=f"{segment} is empty"):
            open_file().bounds(0)
        with pytest.raises(Damaged, match=f"{segment} is empty"):
            open_file().append({0: entries(numbered(3))})
