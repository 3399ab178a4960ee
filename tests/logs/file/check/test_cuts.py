"""Files that are cut beside living writers and readers: who knew more than is left must see it, and nothing that was
acknowledged is cut without being told to."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pxrs.errors import Damaged
from pxrs.logs.base import SCHEMA, Stamp
from pxrs.logs.file import durable_mark as mark
from pxrs.logs.file.check import repair as repairing
from pxrs.logs.file.check.damage import Damage, find_damage
from pxrs.logs.file.check.inspection import inspect
from pxrs.logs.file.check.repair import repair
from pxrs.logs.file.segment import index as indexfile
from pxrs.logs.file.segment.file import cut_segment
from pxrs.settings import Settings
from tests.logs.conftest import OpenFile
from tests.logs.file.check.test_damage import put, write_three
from tests.logs.helpers import entries, numbered, read_all

SCHEMA_BYTES = SCHEMA.serialize().size
LARGE = [b"large" * 2_000]


def flip(segment: Path, at: int) -> None:
    content = bytearray(segment.read_bytes())
    content[at] ^= 1
    put(segment, content)


def cut_damaged(segment: Path) -> None:
    assert repair("orders", 0, str(segment.parent), Settings(), cut_damaged=True).damage is None


# --- who knew what is gone


def test_a_living_writer_sees_that_a_repair_has_cut_what_it_knew(open_file: OpenFile, queue: Path) -> None:
    segment, ends = write_three(open_file, queue)
    living = open_file()
    living.append({0: entries(numbered(2, 6))})
    flip(segment, ends[2] - 40)
    cut_damaged(segment)
    assert open_file().append({0: entries(LARGE)}) == {0: 2}, "acknowledged, and longer than what was cut"
    assert living.append({0: entries([b"more"])}) == {0: 3}
    for log in (living, open_file()):
        assert read_all(log, 0) == [*enumerate(numbered(2)), (2, LARGE[0]), (3, b"more")]


def test_a_reader_sees_that_the_next_writer_has_cut_what_it_knew(
    open_file: OpenFile, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power loss the last batch has its header and not its content."""
    segment, _ = write_three(open_file, queue)
    flip(segment, -40)
    monkeypatch.setattr(mark, "_boot", lambda: "f" * 16)
    reader = open_file()
    assert reader.bounds(0) == (0, 6)
    assert open_file().append({0: entries(LARGE)}) == {0: 4}
    assert read_all(reader, 0) == [*enumerate(numbered(4)), (4, LARGE[0])]


def test_a_reader_that_has_messages_in_its_hands_gets_the_new_ones_of_the_same_offsets(
    open_file: OpenFile, queue: Path
) -> None:
    segment, ends = write_three(open_file, queue)
    reader = open_file()
    assert len(read_all(reader, 0)) == 6
    flip(segment, ends[2] - 40)
    cut_damaged(segment)
    open_file().append({0: entries([b"new"] * 9)})
    assert reader.bounds(0) == (0, 11)
    assert read_all(reader, 0, 5) == [(offset, b"new") for offset in range(5, 11)]


def test_a_new_file_that_was_given_the_number_of_the_old_one_is_noticed_by_its_content(
    open_file: OpenFile, queue: Path
) -> None:
    segment, ends = write_three(open_file, queue)
    living = open_file()
    assert living.bounds(0) == (0, 6)
    put(segment, segment.read_bytes()[: ends[1]])  # in place, so that it is the same file
    (segment.parent / "lock").write_bytes(b"")
    assert open_file().append({0: entries(LARGE)}) == {0: 2}
    assert living.append({0: entries([b"more"])}) == {0: 3}
    assert read_all(open_file(), 0) == [*enumerate(numbered(2)), (2, LARGE[0]), (3, b"more")]


def test_a_writer_whose_segment_was_put_aside_gets_one_error_and_goes_on(open_file: OpenFile, queue: Path) -> None:
    living = open_file(segment_bytes=1)
    for number in range(3):
        living.append({0: entries(numbered(2, 2 * number))})
    segment = queue / "partition-0" / f"{2:020d}.arrow"
    flip(segment, 8)
    cut_damaged(segment)
    with pytest.raises(Damaged, match="gone"):
        living.append({0: entries([b"x"])})
    assert living.append({0: entries([b"after"])}) == {0: 2}
    assert read_all(living, 0) == [*enumerate(numbered(2)), (2, b"after")]


def test_a_cut_keeps_the_mode_of_the_file_and_what_was_kept_aside_before(open_file: OpenFile, queue: Path) -> None:
    segment, ends = write_three(open_file, queue)
    whole = segment.read_bytes()
    segment.chmod(0o640)
    kept = [cut_segment(str(segment), end, keep=True) for end in (ends[2], ends[2])]
    assert kept == [f"{segment}.cut-{ends[2]}", f"{segment}.cut-{ends[2]}.1"]
    assert Path(str(kept[0])).read_bytes() == whole[ends[2] :] and segment.read_bytes() == whole[: ends[2]]
    assert segment.stat().st_mode & 0o777 == 0o640
    assert not list(segment.parent.glob("*.tmp"))


def test_damage_that_another_repairs_meanwhile_is_not_cut_a_second_time(
    open_file: OpenFile, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment, ends = write_three(open_file, queue)
    flip(segment, ends[2] - 40)
    looks: list[Damage | None] = []

    def find(directory: str) -> Damage | None:
        found = find_damage(directory)
        looks.append(found)
        if len(looks) == 1:
            cut_damaged(segment)
            open_file().append({0: entries(LARGE)})
        return found

    monkeypatch.setattr(repairing, "find_damage", find)
    cut_damaged(segment)
    assert looks[0] is not None
    assert read_all(open_file(), 0) == [*enumerate(numbered(2)), (2, LARGE[0])]


# --- what was acknowledged


def rot(content: bytearray, ends: list[int]) -> None:
    content[-40] ^= 1


def rot_of_a_header(content: bytearray, ends: list[int]) -> None:
    content[ends[2] + 40] ^= 1


def zeros(content: bytearray, ends: list[int]) -> None:
    content[ends[2] :] = bytes(ends[3] - ends[2])


def tear(content: bytearray, ends: list[int]) -> None:
    del content[-40:]


@pytest.mark.parametrize("harm", [rot, rot_of_a_header, zeros, tear])
def test_b29_a_last_batch_that_was_acknowledged_is_cut_only_when_asked(
    open_file: OpenFile, queue: Path, harm: Callable[[bytearray, list[int]], None]
) -> None:
    segment, ends = write_three(open_file, queue)
    content = bytearray(segment.read_bytes())
    harm(content, ends)
    put(segment, content)
    with pytest.raises(Damaged, match=rf"byte {ends[2]}, offset 4, .*acknowledged.*--cut-damaged"):
        open_file().append({0: entries([b"x"])})
    told = repair("orders", 0, str(segment.parent), Settings())
    assert told.steps == [] and told.damage is not None
    assert (told.damage.path, told.damage.position, told.damage.offset) == (str(segment), ends[2], 4)
    assert segment.read_bytes() == bytes(content)
    cut_damaged(segment)
    [aside] = segment.parent.glob("*.cut-*")
    assert aside.read_bytes() == bytes(content[ends[2] :])
    assert open_file().append({0: entries([b"after"])}) == {0: 4}
    assert read_all(open_file(), 0) == [*enumerate(numbered(4)), (4, b"after")]


def test_b29_a_part_of_an_acknowledged_batch_at_the_end_is_damage_for_verify(open_file: OpenFile, queue: Path) -> None:
    segment, ends = write_three(open_file, queue)
    put(segment, segment.read_bytes()[:-40])
    [found] = inspect(str(segment.parent))
    assert found.kind == "tail" and found.is_damage and f"byte {ends[2]}" in found.text


def test_a_repair_that_cut_is_not_held_against_the_next_crash(open_file: OpenFile, queue: Path) -> None:
    """The mark has gone back with the end of the log."""
    segment, ends = write_three(open_file, queue)
    flip(segment, ends[1] - 40)
    cut_damaged(segment)
    with segment.open("ab") as file:
        file.write(b"\xff\xff\xff\xff")
    assert open_file().append({0: entries([b"after"])}) == {0: 0}


# --- a sync that failed


class Killed(BaseException):
    """Stands for the end of the process."""


def killed_after(syncs: int) -> Callable[[int], None]:
    left = list(range(syncs))

    def fdatasync(_fd: int) -> None:
        if not left:
            raise Killed
        left.pop()

    return fdatasync


def refuse(_fd: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize(
    ("before", "rolls"), [(0, False), (2, False), (2, True)], ids=["first", "next", "first of a segment"]
)
def test_b31_what_a_dead_writer_left_and_a_sync_refused_is_never_believed(
    open_file: OpenFile, queue: Path, monkeypatch: pytest.MonkeyPatch, before: int, rolls: bool
) -> None:
    """The kernel drops the pages, says so once, and calls the next sync of the same bytes a success."""
    if before:
        open_file().append({0: entries(numbered(before))})
    retry = {0: entries(numbered(2, before))}, {0: Stamp("p", 1)}
    with monkeypatch.context() as dying:
        dying.setattr(os, "fdatasync", killed_after(syncs=1 if rolls else 0))
        with pytest.raises(Killed):
            open_file(segment_bytes=1 if rolls else 10_000).append(*retry)
        sizes = {path: path.stat().st_size for path in queue.rglob("*.arrow")}
        dying.setattr(os, "fdatasync", refuse)
        with pytest.raises(Damaged, match="could not be made durable"):
            open_file().append({0: entries([b"other"])})
    active = max(sizes)
    assert SCHEMA_BYTES <= active.stat().st_size < sizes[active]
    log = open_file()
    assert log.bounds(0) == (0, before)
    cut = active.stat().st_size
    assert log.append(*retry) == {0: before} and active.stat().st_size > cut, "stored anew"
    assert [value for _, value in read_all(open_file(), 0)] == numbered(before + 2)


# --- what a failed look leaves


def test_a_reader_that_met_damage_behind_a_good_index_reads_on_after_the_repair(
    open_file: OpenFile, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexfile, "BLOCK", 1)
    segment, ends = write_three(open_file, queue)
    index = segment.with_suffix(".index")
    os.truncate(index, index.stat().st_size - 1)  # the last batch is not in it
    writer = open_file()
    monkeypatch.setattr(indexfile, "BLOCK", 100)
    writer.append({0: entries(numbered(2, 6))})
    flip(segment, ends[2] + 20)
    reader = open_file()
    for _ in range(2):
        with pytest.raises(Damaged, match=f"byte {ends[2]}, offset 4"):
            reader.bounds(0)
    cut_damaged(segment)
    assert reader.bounds(0) == (0, 4) and read_all(reader, 0) == list(enumerate(numbered(4)))


def test_a_new_segment_never_takes_the_place_of_another(open_file: OpenFile, queue: Path) -> None:
    log = open_file(segment_bytes=1)
    log.append({0: entries(numbered(2))})
    files, writer = log._partition(0)
    other = queue / "partition-0" / f"{2:020d}.arrow"
    with writer.locked():
        other.write_bytes(b"somebody's messages")
        with pytest.raises(Damaged, match="exists already"):
            writer._roll(files.active)
    assert other.read_bytes() == b"somebody's messages"
