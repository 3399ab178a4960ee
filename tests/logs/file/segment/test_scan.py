"""Finding batches costs little, whatever their size; what has just come is seen whole, whatever stands before it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pxrs.logs.base import FewRows
from pxrs.logs.formats.segment import MAX_HEADER
from tests.logs.conftest import OpenFile
from tests.logs.helpers import entries, numbered

LARGE, SMALL = 3 * MAX_HEADER, 5_000


@contextmanager
def counted_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many bytes each ``pread`` has given."""
    real, found = os.pread, []

    def noted(fd: int, length: int, position: int) -> bytes:
        data = real(fd, length, position)
        found.append(len(data))
        return data

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", noted)
        yield found


def test_little_is_read_of_large_batches_to_find_them(open_file: OpenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_file(durability="flush")
    for number in range(20):
        log.append({0: entries([bytes(LARGE)], time_us=number)})
    with counted_reads(monkeypatch) as reads:
        assert open_file().bounds(0) == (0, 20)
    assert sum(reads) < 20 * MAX_HEADER / 3


def test_many_small_batches_are_found_with_few_reads(open_file: OpenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_file(durability="flush")
    for number in range(200):
        log.append({0: entries(numbered(1, number), time_us=number)})
    with counted_reads(monkeypatch) as reads:
        assert open_file().bounds(0) == (0, 200)
    assert len(reads) < 12


@pytest.mark.parametrize("before", [[], [SMALL], [LARGE], [LARGE, SMALL], [SMALL, LARGE], [LARGE, LARGE]])
@pytest.mark.parametrize("opened_late", [False, True])
def test_a_few_messages_at_the_end_are_seen_whole(open_file: OpenFile, before: list[int], opened_late: bool) -> None:
    writer, reader = open_file(durability="flush"), open_file()
    for size in before:
        writer.append({0: entries([bytes(size)])})
        assert opened_late or reader.bounds(0)[0] == 0
    few = FewRows([1, 2], [b"a", None], [b"v0", bytes(SMALL)], bytes(32))
    writer.append_rows({0: few})
    found = reader.read(0, len(before))
    assert found is not None and found.column("value").to_pylist() == [b"v0", bytes(SMALL)]
