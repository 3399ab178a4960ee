"""The form of a file log on the disk, and what other programs can do with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from pxrs.errors import BadName, BadUrl, BeyondEnd, Damaged, Expired, NewerFormat, Refused
from pxrs.logs.base import SCHEMA, OpenOptions, Stamp
from pxrs.logs.file.log import FileLog
from pxrs.logs.pieces import read_range
from pxrs.settings import Settings
from tests.logs.conftest import OpenFile
from tests.logs.helpers import entries, numbered, pairs, read_all


def segments(queue: Path, partition: int = 0) -> list[Path]:
    return sorted((queue / f"partition-{partition}").glob("*.arrow"))


def test_ls_shows_what_is_there(open_file: OpenFile, queue: Path) -> None:
    log = open_file(partitions=2, segment_bytes=1)
    for _ in range(2):
        log.append({1: entries(numbered(3))})
    names = sorted(str(path.relative_to(queue)) for path in queue.rglob("*"))
    assert names == [
        "partition-0",
        "partition-1",
        "partition-1/00000000000000000000.arrow",
        "partition-1/00000000000000000000.index",
        "partition-1/00000000000000000003.arrow",
        "partition-1/lock",
        "queue.json",
    ]


def test_anybody_opens_a_segment_as_an_arrow_stream(open_file: OpenFile, queue: Path) -> None:
    log = open_file()
    log.append({0: entries(numbered(3))})
    log.append({0: entries(numbered(2, 3))}, {0: Stamp("p", 7)})
    with pa.memory_map(str(segments(queue)[0])) as file, pa.ipc.open_stream(file) as reader:
        assert reader.schema.equals(SCHEMA)
        first, second = (reader.read_next_batch_with_custom_metadata() for _ in range(2))
        with pytest.raises(StopIteration):
            reader.read_next_batch()
    assert pairs(first.batch) + pairs(second.batch) == list(enumerate(numbered(5)))
    said = second.custom_metadata
    assert (int(said["pxrs.base"]), int(said["pxrs.rows"]), int(said["pxrs.sequence"])) == (3, 2, 7)


def test_b36_an_empty_segment_opens_too_and_is_appended_to(open_file: OpenFile, queue: Path) -> None:
    log = open_file()
    log.append({0: entries(numbered(1))})
    [segment] = segments(queue)
    os.truncate(segment, SCHEMA.serialize().size)  # as if killed between its creation and its first batch
    (segment.parent / "lock").unlink()  # with the mark in it
    with pa.memory_map(str(segment)) as file, pa.ipc.open_stream(file) as reader:
        assert reader.read_all().num_rows == 0
    log = open_file()
    assert log.bounds(0) == (0, 0)
    log.append({0: entries(numbered(2))})
    assert read_all(open_file(), 0) == list(enumerate(numbered(2)))


def test_a_reader_follows_another_object_across_segments(open_file: OpenFile, queue: Path) -> None:
    writer, reader = open_file(segment_bytes=3_000), open_file()
    offset = 0
    for number in range(12):
        writer.append({0: entries(numbered(5, 5 * number))})
        assert [value for _, value in read_all(reader, 0, offset)] == numbered(5, 5 * number)
        offset += 5
    assert len(segments(queue)) > 2
    assert read_all(open_file(), 0) == list(enumerate(numbered(60)))


def test_batches_that_were_read_stay_when_the_file_grows(open_file: OpenFile) -> None:
    log = open_file()
    log.append({0: entries(numbered(5))})
    kept = log.read(0, 0)
    for _ in range(5):
        log.append({0: entries(numbered(1_000))})
    read_all(log, 0)
    log.close()
    assert kept is not None and pairs(kept) == list(enumerate(numbered(5)))


def test_a_read_copies_nothing(open_file: OpenFile) -> None:
    log = open_file()
    for number in range(4):
        log.append({0: entries([b"x" * 100_000] * 10, time_us=number)})
    reader = open_file()
    before = pa.total_allocated_bytes()
    kept = [reader.read(0, 10 * number) for number in range(4)]
    assert all(batch is not None and batch.nbytes > 1_000_000 for batch in kept)
    assert pa.total_allocated_bytes() - before < 100_000


def test_pieces_are_read_alone(open_file: OpenFile) -> None:
    log = open_file(segment_bytes=4_000)
    for number in range(10):
        log.append({0: entries(numbered(5, 5 * number))})
    for start, end in [(0, 50), (7, 8), (12, 43), (20, 25), (5, 5)]:
        pieces = log.pieces(0, start, end)
        read = [pair for batch in read_range(pieces, start, end) for pair in pairs(batch)]
        assert read == list(enumerate(numbered(50)))[start:end]
        assert all(piece.kind == "arrow" and os.path.isabs(piece.path) for piece in pieces)
        assert all(piece.start < end and piece.end > start for piece in pieces)
    assert len(log.pieces(0, 0, 50)) > 2
    with pytest.raises(BeyondEnd):
        log.pieces(0, 0, 51)


def test_b39_a_deleted_segment_is_a_gap_with_a_name(open_file: OpenFile, queue: Path) -> None:
    log = open_file(segment_bytes=1)
    for number in range(3):
        log.append({0: entries(numbered(5, 5 * number))})
    segments(queue)[0].unlink()
    reader = open_file()
    assert reader.bounds(0) == (5, 15)
    with pytest.raises(Expired, match="offsets 2 to 4 are no longer stored"):
        reader.read(0, 2)
    assert read_all(reader, 0, 5) == list(enumerate(numbered(15)))[5:]


def test_b62_the_window_reaches_over_one_change_of_segments_and_a_reopening(open_file: OpenFile) -> None:
    log = open_file(segment_bytes=1)
    for number in range(3):
        log.append({0: entries([b"%d" % number])}, {0: Stamp("p", number)})
    again = open_file(segment_bytes=1)
    assert again.append({0: entries([b"2"])}, {0: Stamp("p", 2)}) == {0: 2}
    assert again.append({0: entries([b"1"])}, {0: Stamp("p", 1)}) == {0: 1}
    assert again.bounds(0) == (0, 3)
    # Outside the window it is stored again, and visible.
    assert again.append({0: entries([b"0"])}, {0: Stamp("p", 0)}) == {0: 3}
    assert read_all(again, 0)[-1] == (3, b"0")


def test_the_recorded_name_survives_a_move(open_file: OpenFile, queue: Path) -> None:
    open_file(partitions=3)
    moved = queue.rename(queue.with_name("elsewhere"))
    log = FileLog.open(f"file:{moved}", OpenOptions(), Settings(), create=False)
    assert (log.identity.name, log.identity.partitions) == ("orders", 3)


def test_a_newer_format_is_refused(open_file: OpenFile, queue: Path) -> None:
    open_file()
    path = queue / "queue.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(NewerFormat, match=r"queue\.json has format 2"):
        open_file()


def test_a_queue_made_again_in_the_same_place_has_another_id(open_file: OpenFile, queue: Path) -> None:
    first = open_file().identity
    (queue / "queue.json").unlink()
    second = open_file().identity
    assert replace(first, id=second.id) == second and first.id != second.id


def test_a_queue_json_without_an_id_is_damaged(open_file: OpenFile, queue: Path) -> None:
    open_file()
    path = queue / "queue.json"
    values = json.loads(path.read_text())
    del values["id"], values["xxh3"]
    checksum = xxhash.xxh3_64_hexdigest(json.dumps(values, sort_keys=True).encode())
    path.write_text(json.dumps({**values, "xxh3": checksum}))
    with pytest.raises(Damaged, match=r"queue\.json is damaged: it has no id"):
        open_file()


def test_every_damage_to_queue_json_is_named(open_file: OpenFile, queue: Path) -> None:
    identity = open_file(partitions=8).identity
    path = queue / "queue.json"
    good = path.read_bytes()
    named = 0
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bad)
        try:
            found = open_file(partitions=None, create=False).identity
        except Damaged as error:
            named += str(path) in str(error)
        else:
            assert found == identity  # a changed blank changes nothing
            named += 1
    assert named == len(good) * 8
    path.write_bytes(good[:-20])
    with pytest.raises(Damaged, match=r"queue\.json"):
        open_file()


@pytest.mark.parametrize("place", ["", "/", "//host/orders"])
def test_a_url_without_a_local_directory_is_refused(place: str) -> None:
    with pytest.raises(BadUrl):
        FileLog.open(f"file:{place}", OpenOptions(), Settings(), create=True)


def test_b66_nothing_is_created_for_a_bad_name(tmp_path: Path) -> None:
    for place in ("..", ".", "x\0/orders", "a b", "a" * 300):
        with pytest.raises((BadName, BadUrl)):
            FileLog.open(f"file:{tmp_path}/{place}", OpenOptions(), Settings(), create=True)
    assert list(tmp_path.iterdir()) == []


def test_b66_a_sibling_cannot_stand_in_a_partitions_place(open_file: OpenFile) -> None:
    log = open_file()
    for name in ("partition-0", "partition-7/x", "queue.json"):
        with pytest.raises(BadName):
            log.sibling(name, 1, create=True)


def test_creators_that_race_agree(tmp_path: Path) -> None:
    def create(count: int) -> int:
        try:
            return FileLog.open(f"file:{tmp_path}/race", OpenOptions(count), Settings(), True).identity.partitions
        except ValueError:
            return 0

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(create, range(1, 9)))
    winner = max(made)
    assert sorted(made) == [0] * 7 + [winner]
    assert len(list((tmp_path / "race").glob("partition-*"))) == winner


def test_b35_names_are_synced_in_the_right_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def note(name: str) -> None:
        real = getattr(os, name)

        def noted(*args: object, **more: object) -> object:
            done = real(*args, **more)
            target = os.readlink(f"/proc/self/fd/{args[0]}") if isinstance(args[0], int) else str(args[-1])
            steps.append(f"{name} {os.path.relpath(target, tmp_path)}")
            return done

        monkeypatch.setattr(os, name, noted)

    for name in ("fsync", "fdatasync", "rename"):
        note(name)
    log = FileLog.open(f"file:{tmp_path}/q", OpenOptions(1), Settings(), True)
    log.append({0: entries([b"x"])})
    assert steps == [
        "fsync .",
        "fsync q",
        "fsync q/queue.json.tmp",
        "rename q/queue.json",
        "fsync q",
        "fsync q/partition-0/new-segment.tmp",
        "rename q/partition-0/00000000000000000000.arrow",
        "fsync q/partition-0",
        "fdatasync q/partition-0/00000000000000000000.arrow",
    ]


def test_a_range_that_the_pieces_do_not_cover_is_an_error(open_file: OpenFile) -> None:
    log = open_file(segment_bytes=1)
    for number in range(3):
        log.append({0: entries(numbered(2, 2 * number))})
    pieces = log.pieces(0, 0, 6)
    with pytest.raises(Damaged, match="end at offset 4, 6 was asked for"):
        list(read_range(pieces[:2], 0, 6))
    with pytest.raises(Damaged, match="offset 2 is missing; 4 follows"):
        list(read_range([pieces[0], pieces[2]], 0, 6))
    with pytest.raises(Damaged, match="is gone"):
        list(read_range([pieces[0]._replace(path=pieces[0].path + "x")], 0, 2))
    with pytest.raises(Refused, match="'tape'"):
        list(read_range([pieces[0]._replace(kind="tape")], 0, 2))


@pytest.mark.processes
def test_a_process_that_reads_a_piece_loads_little() -> None:
    program = (
        "import sys, pxrs.logs.pieces; print(*sorted(m for m in sys.modules if '.' not in m or m.startswith('pxrs.')))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(ended.stdout.split())
    assert not loaded & {"yaml", "typer", "rich", "prometheus_client", "sqlite3", "mmh3", "greenlet"}
    assert {name for name in loaded if name.startswith("pxrs.")} == {
        "pxrs.errors", "pxrs.logs", "pxrs.logs.base", "pxrs.logs.batches",
        "pxrs.logs.formats", "pxrs.logs.formats.segment", "pxrs.logs.pieces",
        "pxrs.settings",
    }  # fmt: skip


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_what_cannot_be_compressed_is_stored_as_well(open_file: OpenFile, compression: str) -> None:
    values = [os.urandom(9_000_000), os.urandom(1)]
    open_file(compression=compression).append({0: entries(values)})
    assert read_all(open_file(), 0) == list(enumerate(values))


def test_row_groups_are_bounded_by_bytes_too(open_file: OpenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pxrs.logs.formats.sealed_parquet.ROW_GROUP_BYTES", 1_000)
    log = open_file(segment_bytes=20_000)
    for number in range(60):
        log.append({0: entries(numbered(5, 5 * number))})
    [first, *_] = log.seal(0)
    assert pq.ParquetFile(first.path).metadata.num_row_groups > 2
    assert read_all(open_file(), 0) == list(enumerate(numbered(300)))


@pytest.mark.parametrize("create", [True, False])
def test_a_queue_without_its_file_is_not_created_anew_over_its_messages(
    open_file: OpenFile, queue: Path, create: bool
) -> None:
    open_file().append({0: entries(numbered(2))})
    (queue / "queue.json").unlink()
    with pytest.raises(Damaged, match=r"partition-0/0{20}\.arrow.*queue\.json is gone"):
        FileLog.open(f"file:{queue}", OpenOptions(), Settings(), create)
