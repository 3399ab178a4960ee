"""``manifest.json`` of a partition: every damage is named, and nothing else is ever read from it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pxrs.errors import Damaged, NewerFormat
from pxrs.io.locks import close_held, open_held, try_lock
from pxrs.logs.file.log import FileLog
from pxrs.logs.formats.manifest import (
    NAME,
    NOTHING,
    Manifest,
    Sealed,
    Summary,
    read_manifest,
    read_summary,
    write_manifest,
)
from tests.logs.conftest import OpenFile
from tests.logs.file.check.test_damage import put
from tests.logs.helpers import entries, numbered, read_all

FILES = tuple(Sealed(f"{n:020d}.parquet", n, n + 2, 5 * n, 5 * n + 4, 100 + n, "0123456789abcdef") for n in (4, 6))
MANIFEST = Manifest(Summary(4, 8), FILES)
ATTEMPTS: tuple[Callable[[FileLog], object], ...] = (
    lambda log: log.bounds(0),
    lambda log: log.read(0, 0),
    lambda log: log.seal(0),
    lambda log: log.trim(0, 4),
    lambda log: log.append({0: entries([b"x"])}),
)


def test_what_is_written_is_read_and_the_first_line_is_enough_for_most(tmp_path: Path) -> None:
    assert read_manifest(str(tmp_path)) == NOTHING and read_summary(str(tmp_path)) == Summary(0, 0)
    write_manifest(str(tmp_path), MANIFEST)
    assert read_manifest(str(tmp_path)) == MANIFEST
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    lines = (tmp_path / NAME).read_text().splitlines()
    assert [json.loads(line)["file"] for line in lines[1:]] == [sealed.file for sealed in FILES]
    (tmp_path / NAME).write_text(lines[0] + "\n")
    assert read_summary(str(tmp_path)) == MANIFEST.summary
    with pytest.raises(Damaged, match=r"manifest\.json is damaged: its list of files"):
        read_manifest(str(tmp_path))


def test_b34_every_flipped_bit_is_named_or_changes_nothing(tmp_path: Path) -> None:
    write_manifest(str(tmp_path), MANIFEST)
    path = tmp_path / NAME
    good, first = path.read_bytes(), len(path.read_bytes().splitlines()[0])
    named = harmless = 0
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        put(path, bad)
        try:
            found = read_manifest(str(tmp_path))
        except Damaged as error:
            named += str(path) in str(error)
        else:
            assert found == MANIFEST, bit
            harmless += 1
        if bit // 8 > first:
            assert read_summary(str(tmp_path)) == MANIFEST.summary
    assert named + harmless == 8 * len(good)
    assert harmless < 80, "a blank or the end of the first line, at most"


def test_b34_a_manifest_cut_anywhere_is_named(tmp_path: Path) -> None:
    write_manifest(str(tmp_path), MANIFEST)
    path = tmp_path / NAME
    good = path.read_bytes()
    for size in range(len(good)):
        path.write_bytes(good[:size])
        with pytest.raises(Damaged, match=r"manifest\.json is damaged"):
            read_manifest(str(tmp_path))
    path.write_bytes(good + b"\n")
    with pytest.raises(Damaged, match="its list of files"):
        read_manifest(str(tmp_path))


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"format": 2, "something": "new"}\n')
    for read in (read_summary, read_manifest):
        with pytest.raises(NewerFormat, match=r"manifest\.json has format 2"):
            read(str(tmp_path))


def test_b34_a_partition_with_a_damaged_manifest_is_refused_and_nothing_in_it_is_deleted(
    open_file: OpenFile, queue: Path
) -> None:
    log = open_file(segment_bytes=1, durability="flush", delete_delay_ms=0)
    for number in range(5):
        log.append({0: entries(numbered(2, 2 * number))})
    log.seal(0)
    path = queue / "partition-0" / NAME
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"sealed_end": 6', b'"sealed_end": 4'))
    before = sorted(os.listdir(path.parent))
    for attempt in ATTEMPTS:
        with pytest.raises(Damaged, match=r"manifest\.json is damaged.*pxrs log repair"):
            attempt(open_file(delete_delay_ms=0))
    with pytest.raises(Damaged, match=r"manifest\.json is damaged"):
        log.bounds(0)  # also who had it open
    assert sorted(os.listdir(path.parent)) == before
    path.write_bytes(good)
    assert read_all(open_file(), 0) == list(enumerate(numbered(10)))


@pytest.mark.parametrize("how", ["lost", "old"])
def test_b34_a_manifest_that_is_lost_or_old_costs_no_sealed_file(open_file: OpenFile, queue: Path, how: str) -> None:
    """Sealed files that nobody lists are leftovers only while their segments are there."""
    log, path = open_file(segment_bytes=1, durability="flush", delete_delay_ms=0), queue / "partition-0" / NAME
    for number in range(4):
        log.append({0: entries(numbered(2, 2 * number))})
    log.seal(0)
    older = path.read_bytes()
    for number in range(4, 6):
        log.append({0: entries(numbered(2, 2 * number))})
    log.seal(0)
    reader = open_file()
    good, _ = path.read_bytes(), reader.bounds(0)
    path.unlink()
    if how == "old":
        path.write_bytes(older)
    before = sorted(os.listdir(path.parent))
    for attempt in ATTEMPTS:
        with pytest.raises(Damaged, match=r"manifest\.json is missing or older .*pxrs log repair"):
            attempt(open_file(delete_delay_ms=0))
    for _ in range(2):
        with pytest.raises(Damaged, match=r"manifest\.json is gone|manifest\.json is missing or older"):
            reader.bounds(0)
    assert sorted(os.listdir(path.parent)) == before
    path.write_bytes(good)
    assert read_all(open_file(), 0) == read_all(reader, 0) == list(enumerate(numbered(12)))


def test_b34_a_lost_manifest_is_noticed_also_while_another_is_at_work_there(open_file: OpenFile, queue: Path) -> None:
    """Who may not sweep, now or ever, must not take the first segment for the start of the log."""
    log, path = open_file(segment_bytes=1, durability="flush"), queue / "partition-0" / NAME
    for number in range(4):
        log.append({0: entries(numbered(2, 2 * number))})
    log.seal(0)
    good = path.read_bytes()
    path.unlink()
    fd = open_held(str(path.with_name("housekeeping.lock")), os.O_RDWR)
    try:
        assert try_lock(fd)
        reader = open_file()
        for attempt in (lambda: reader.bounds(0), lambda: reader.append({0: entries([b"x"])})):
            with pytest.raises(Damaged, match=r"manifest\.json is missing or older .*pxrs log repair"):
                attempt()
        path.write_bytes(good)
        assert read_all(reader, 0) == list(enumerate(numbered(8)))
    finally:
        close_held(fd)
