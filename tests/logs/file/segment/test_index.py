"""The memory of a log is bounded: however long a process reads and writes, few segments keep their index."""

from __future__ import annotations

import os
import random

import pytest

from pxrs.errors import Damaged
from pxrs.logs.base import Stamp
from pxrs.logs.file.log import FileLog
from pxrs.logs.file.segment.index import BatchIndex
from pxrs.logs.formats.segment import Header
from tests.logs.conftest import OpenFile
from tests.logs.helpers import entries, numbered, pairs, read_all

SEGMENTS = 30
KEPT = 3
"""The active segment, the one before it, and the full one that was read last."""


def indexed(log: FileLog) -> list[int]:
    """The first offsets of the segments that are indexed now."""
    return [segment.base for segment in log._partition(0)[0]._segments if len(segment.index)]


def write_segments(open_file: OpenFile, count: int = SEGMENTS) -> FileLog:
    """Segments of one batch of two messages each, with rising times."""
    log = open_file(segment_bytes=1, durability="flush")
    for number in range(count):
        log.append({0: entries(numbered(2, 2 * number), time_us=number)}, {0: Stamp("p", number)})
        assert len(indexed(log)) <= KEPT
    return log


def test_reading_front_to_back_keeps_few_segments_indexed(open_file: OpenFile) -> None:
    writer, expected = write_segments(open_file), list(enumerate(numbered(2 * SEGMENTS)))
    for log in (writer, open_file()):
        for offset in range(2 * SEGMENTS):
            batch = log.read(0, offset)
            assert batch is not None and pairs(batch)[0] == expected[offset]
            assert len(indexed(log)) <= KEPT
        assert read_all(log, 0) == expected


def test_random_access_returns_the_right_messages(open_file: OpenFile) -> None:
    write_segments(open_file)
    log, chance, expected = open_file(), random.Random(5), list(enumerate(numbered(2 * SEGMENTS)))
    for _ in range(300):
        offset = chance.randrange(2 * SEGMENTS)
        batch = log.read(0, offset)
        assert batch is not None and pairs(batch)[0] == expected[offset]
        assert len(indexed(log)) <= KEPT


def test_a_search_by_time_and_pieces_keep_few_segments_indexed(open_file: OpenFile) -> None:
    write_segments(open_file)
    log = open_file()
    for time_us in (SEGMENTS, 3, SEGMENTS - 1, 0, 17):
        assert log.offset_at(0, time_us) == 2 * time_us
        assert len(log.pieces(0, 0, 2 * SEGMENTS)) == SEGMENTS
        assert len(indexed(log)) <= KEPT


def test_a_second_search_by_time_opens_no_segment_that_is_too_old(
    open_file: OpenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segments(open_file)
    log = open_file()
    log.offset_at(0, SEGMENTS)
    opened: list[str] = []
    real = os.open

    def noted(path: str, *args: int) -> int:
        opened.append(os.path.basename(path))
        return real(path, *args)

    monkeypatch.setattr(os, "open", noted)
    assert log.offset_at(0, 7) == 14
    assert {name for name in opened if name != "lock"} == {f"{14:020d}.arrow"}


def test_appends_leave_the_segment_in_use_its_index(open_file: OpenFile) -> None:
    log = write_segments(open_file)
    log.read(0, 4)
    for number in range(SEGMENTS, SEGMENTS + 5):
        log.append({0: entries(numbered(2, 2 * number))}, {0: Stamp("p", number)})
        assert indexed(log) == [4, 2 * number - 2, 2 * number]


def test_b62_the_window_of_retries_is_the_same_in_an_object_that_has_read_everything(open_file: OpenFile) -> None:
    log, end = write_segments(open_file), 2 * SEGMENTS
    read_all(log, 0)
    for number in (SEGMENTS - 1, SEGMENTS - 2):
        assert log.append({0: entries(numbered(2))}, {0: Stamp("p", number)}) == {0: 2 * number}
    assert log.append({0: entries(numbered(2))}, {0: Stamp("p", SEGMENTS - 3)}) == {0: end}, "outside the window"


def test_damage_that_is_found_while_an_index_is_built_again_is_named_each_time(open_file: OpenFile) -> None:
    log = open_file(segment_bytes=2_500)
    while len(log._partition(0)[0]._segments) < 4:
        log.append({0: entries(numbered(2))})
    first, second = log._partition(0)[0]._segments[:2]
    assert first.base not in indexed(log)
    os.truncate(first.path, os.path.getsize(first.path) - 1)
    for _ in range(3):
        with pytest.raises(Damaged, match=first.path):
            log.read(0, 0)
    assert log.read(0, second.base) is not None


def header(base: int, stamp: Stamp | None) -> Header:
    return Header(base, 1, 8, 16, base, base, stamp)


def test_stamps_are_found_in_whatever_order_they_came() -> None:
    index = BatchIndex()
    stamps = [Stamp("p", 5), Stamp("q", 3), None, Stamp("p", 3), Stamp("q", 5), Stamp("p", 0)]
    for base, stamp in enumerate(stamps):
        index.add(16 * base, header(base, stamp))
    assert [index.find(stamp) for stamp in stamps if stamp is not None] == [0, 1, 3, 4, 5]
    absent = [Stamp("p", 6), Stamp("p", 4), Stamp("q", 0), Stamp("r", 0), Stamp("q", 6)]
    assert [index.find(stamp) for stamp in absent] == [None] * len(absent)
    index.cut(4)
    assert [index.find(stamp) for stamp in stamps if stamp is not None] == [0, 1, 3, None, None]
    assert len(index) == 4
