"""Verify finds all faults of a directory, and repair deletes nothing that might hold a message."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pxrs.errors import BeyondEnd, Damaged, NewerFormat, Unavailable
from pxrs.io.locks import close_held, open_held, try_lock
from pxrs.logs.base import Stamp
from pxrs.logs.file.check import inspection
from pxrs.logs.file.check import repair as repairing
from pxrs.logs.file.check.damage import find_damage
from pxrs.logs.file.check.inspection import inspect
from pxrs.logs.file.check.repair import Repaired, rebuild_manifest, repair
from pxrs.logs.file.log import FileLog
from pxrs.logs.file.segment import index as indexfile
from pxrs.logs.file.segment.index import BatchIndex
from pxrs.logs.formats.manifest import Manifest, Summary, read_manifest, write_manifest
from pxrs.settings import Settings
from tests.logs.conftest import OpenFile
from tests.logs.helpers import entries, numbered, pairs, read_all

WHOLE = list(enumerate(numbered(60)))


class Setup:
    """One partition: sealed files of ten messages each, then segments of ten in two batches."""

    def __init__(self, open_file: OpenFile, queue: Path, sealed: int = 3, segments: int = 3) -> None:
        self.directory = queue / "partition-0"
        self._open = open_file
        log = self.open()
        for number in range(sealed + segments):
            if sealed and number == sealed + 2:
                log.seal(0)
            for half in (10 * number, 10 * number + 5):
                log.append({0: entries(numbered(5, half))}, {0: Stamp("p", half)})
        assert len(self.names("*.parquet")) == sealed and len(self.names("*.arrow")) == segments

    def open(self) -> FileLog:
        return self._open(segment_bytes=2_500, delete_delay_ms=0)

    def read(self) -> list[tuple[int, bytes]]:
        log = self.open()
        return read_all(log, 0, log.bounds(0)[0])

    def repair(self, cut_damaged: bool = False) -> Repaired:
        return repair("orders", 0, str(self.directory), Settings(), cut_damaged)

    def kinds(self) -> list[str]:
        return [finding.kind for finding in inspect(str(self.directory))]

    def damage(self) -> list[str]:
        return [finding.kind for finding in inspect(str(self.directory)) if finding.is_damage]

    def path(self, base: int, kind: str = "arrow") -> Path:
        return self.directory / f"{base:020d}.{kind}"

    def names(self, pattern: str) -> list[str]:
        return sorted(path.name for path in self.directory.glob(pattern))


@pytest.fixture
def setup(open_file: OpenFile, queue: Path) -> Setup:
    """Offsets 0 to 29 are sealed, 30 to 59 stand in segments."""
    return Setup(open_file, queue)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_sound_partition_has_no_findings_and_nothing_is_done_to_it(setup: Setup) -> None:
    before = {path: path.read_bytes() for path in setup.directory.iterdir() if path.name != "lock"}
    assert setup.kinds() == [] and find_damage(str(setup.directory)) is None
    assert setup.repair(cut_damaged=True) == Repaired([], None)
    assert {path: path.read_bytes() for path in setup.directory.iterdir() if path.name != "lock"} == before
    assert setup.read() == WHOLE


def test_an_empty_partition_is_sound(open_file: OpenFile, queue: Path) -> None:
    empty = Setup(open_file, queue, sealed=0, segments=0)
    assert empty.kinds() == [] and empty.repair(cut_damaged=True) == Repaired([], None)


def test_a_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    assert [finding.kind for finding in inspect(str(tmp_path / "x"))] == ["directory"]
    with pytest.raises(Damaged, match="is gone"):
        repair("orders", 0, str(tmp_path / "x"), Settings())


# ---- the manifest ---------------------------------------------------------------------------------------------------


def spoil_head(path: Path) -> None:
    flip(path, 20)


def spoil_list(path: Path) -> None:
    flip(path, -20)


@pytest.mark.parametrize("spoil", [spoil_head, spoil_list, os.unlink, lambda path: path.write_bytes(b"")])
def test_a_lost_manifest_is_made_anew_from_the_sealed_files(setup: Setup, spoil: Callable[[Path], None]) -> None:
    path = setup.directory / "manifest.json"
    before = read_manifest(str(setup.directory))
    spoil(path)
    assert "manifest" in setup.damage()
    done = setup.repair()
    assert [(step.action, step.path) for step in done.steps] == [("rebuilt", str(path))] and done.damage is None
    assert read_manifest(str(setup.directory)) == before
    assert setup.read() == WHOLE and setup.kinds() == []


def test_a_manifest_that_is_too_old_is_made_anew(setup: Setup) -> None:
    whole = read_manifest(str(setup.directory))
    write_manifest(str(setup.directory), Manifest(Summary(0, 20), whole.files[:2]))
    assert setup.damage() == ["manifest"]
    assert [step.action for step in setup.repair().steps] == ["rebuilt"]
    assert read_manifest(str(setup.directory)) == whole and setup.read() == WHOLE


def test_a_manifest_with_a_gap_is_no_history(setup: Setup) -> None:
    whole = read_manifest(str(setup.directory))
    write_manifest(str(setup.directory), Manifest(Summary(0, 30), (whole.files[0], whole.files[2])))
    assert "manifest" in setup.damage()
    setup.repair()
    assert read_manifest(str(setup.directory)) == whole


def test_a_manifest_of_a_later_version_is_not_touched(setup: Setup) -> None:
    path = setup.directory / "manifest.json"
    path.write_text(json.dumps({"format": 2}))
    for look in (lambda: inspect(str(setup.directory)), setup.repair):
        with pytest.raises(NewerFormat):
            look()
    assert json.loads(path.read_text()) == {"format": 2}


def test_without_sealed_files_the_segments_tell_where_the_partition_starts(open_file: OpenFile, queue: Path) -> None:
    setup = Setup(open_file, queue, sealed=0, segments=6)
    setup.open().trim(0, 20)
    (setup.directory / "manifest.json").write_bytes(b"?")
    setup.repair()
    assert read_manifest(str(setup.directory)) == Manifest(Summary(20, 20), ())
    assert setup.read() == WHOLE[20:]


def test_files_before_a_gap_are_kept_aside_when_the_manifest_is_lost(setup: Setup) -> None:
    """Trimmed, half deleted, and the manifest is gone: only what follows the gap can be the history."""
    setup.path(10, "parquet").unlink()
    (setup.directory / "manifest.json").unlink()
    done = setup.repair()
    assert done.damage is None and setup.names("*.cut-*") == [f"{0:020d}.parquet.cut-0"]
    assert setup.read() == WHOLE[20:]


def test_a_sealed_file_that_cannot_be_read_keeps_its_place_and_the_others_can_be(setup: Setup) -> None:
    flip(setup.path(10, "parquet"), -5)
    (setup.directory / "manifest.json").unlink()
    manifest, aside = rebuild_manifest(str(setup.directory))
    assert aside == [] and [(file.start, file.end) for file in manifest.files] == [(0, 10), (10, 20), (20, 30)]
    done = setup.repair()
    assert done.damage is not None and (done.damage.offset, done.damage.end) == (10, 60)
    log = setup.open()
    assert pairs(log.read(0, 0)) == WHOLE[:10] and pairs(log.read(0, 20)) == WHOLE[20:30]
    with pytest.raises(Damaged, match=f"{10:020d}.parquet.* 10 to 19"):
        log.read(0, 10)


def test_of_a_sealed_file_that_was_never_finished_and_its_segment_the_segment_counts(setup: Setup) -> None:
    setup.path(30, "parquet").write_bytes(b"half a file")
    (setup.directory / "manifest.json").unlink()
    setup.repair()
    assert setup.names("*.cut-*") == [f"{30:020d}.parquet.cut-0"]
    assert setup.read() == WHOLE


# ---- what can be done without ---------------------------------------------------------------------------------------


def test_leftovers_are_removed_and_only_they(setup: Setup) -> None:
    segment = setup.path(30).read_bytes()
    setup.path(10).write_bytes(segment)  # sealed, and not yet deleted
    setup.path(10, "index").write_bytes(b"")
    setup.path(40, "parquet").write_bytes(b"never listed, and its segment is there")
    setup.path(777, "index").write_bytes(b"of a segment that is gone")
    (setup.directory / "manifest.json.tmp").write_bytes(b"")
    (setup.directory / "notes.txt").write_bytes(b"somebody's own")
    setup.path(30, "arrow.cut-5").write_bytes(b"kept aside before")
    assert set(setup.kinds()) == {"leftover"} and setup.damage() == []
    done = setup.repair()
    assert sorted(os.path.basename(step.path) for step in done.steps) == [
        f"{10:020d}.arrow", f"{10:020d}.index", f"{40:020d}.parquet", f"{777:020d}.index", "manifest.json.tmp",
    ]  # fmt: skip
    assert {step.action for step in done.steps} == {"removed"} and setup.kinds() == []
    assert (setup.directory / "notes.txt").exists() and setup.path(30, "arrow.cut-5").exists()
    assert setup.read() == WHOLE


def test_what_was_trimmed_and_waits_for_its_deletion_is_no_leftover(open_file: OpenFile, queue: Path) -> None:
    setup = Setup(open_file, queue)
    open_file(segment_bytes=2_500, delete_delay_ms=3_600_000).trim(0, 20)
    assert setup.path(0, "parquet").exists()
    assert setup.kinds() == [] and setup.repair() == Repaired([], None)
    assert setup.path(0, "parquet").exists()


@pytest.mark.parametrize("at", [0, 10, 45, -1])
def test_b37_a_spoilt_index_is_found_and_made_anew(setup: Setup, at: int) -> None:
    path = setup.path(30, "index")
    before = path.read_bytes()
    flip(path, at)
    assert setup.kinds() == ["index"]
    [step] = setup.repair().steps
    assert (step.action, step.path) == ("rebuilt", str(path)) and path.read_bytes() == before
    assert setup.kinds() == [] and setup.read() == WHOLE


def test_b37_an_index_of_another_segment_is_damage(setup: Setup) -> None:
    path = setup.path(30, "index")
    path.write_bytes(setup.path(40, "index").read_bytes())
    assert setup.damage() == ["index"]
    setup.repair()
    assert setup.kinds() == [] and setup.read() == WHOLE


def test_a_torn_tail_is_reported_and_cut(setup: Setup) -> None:
    active = setup.path(50)
    active.write_bytes(active.read_bytes()[:-100])
    (setup.directory / "lock").write_bytes(b"")  # the machine was restarted: no mark means anything
    assert setup.kinds() == ["tail"] and setup.damage() == []
    [step] = setup.repair().steps
    assert (step.action, step.path) == ("cut", str(active)) and "bytes of an unfinished batch" in step.detail
    assert setup.kinds() == [] and setup.read() == WHOLE[:55]


# ---- damaged messages -----------------------------------------------------------------------------------------------


def body_of(path: Path, batch: int) -> int:
    """A byte in the body of a batch of a segment: 0 is the first, 1 the second."""
    size = path.stat().st_size
    return size - 20 if batch else size - 1_512 - 20


@pytest.mark.parametrize(("base", "batch", "offset"), [(30, 0, 30), (30, 1, 35), (40, 1, 45), (50, 0, 50)])
def test_damage_in_a_segment_is_reported_and_cut_only_when_asked(
    setup: Setup, base: int, batch: int, offset: int
) -> None:
    path = setup.path(base)
    flip(path, body_of(path, batch))
    stored = {found.name: found.read_bytes() for found in setup.directory.glob("*.arrow")}
    done = setup.repair()
    assert done.steps == [] and done.damage is not None
    assert (done.damage.path, done.damage.offset, done.damage.end, done.damage.lost) == (
        str(path),
        offset,
        60,
        60 - offset,
    )
    assert path.name in done.damage.why and {p.name: p.read_bytes() for p in setup.directory.glob("*.arrow")} == stored
    cut = setup.repair(cut_damaged=True)
    assert cut.damage is None and {step.action for step in cut.steps} == {"kept aside"}
    assert setup.read() == WHOLE[:offset]
    kept = {p.name.partition(".cut-")[0]: p for p in setup.directory.glob("*.cut-*")}
    for name, content in stored.items():
        left = (setup.directory / name).read_bytes() if (setup.directory / name).exists() else b""
        assert left + (kept[name].read_bytes() if name in kept else b"") == content, "no byte is lost"
    log = setup.open()
    assert log.append({0: entries([b"after"])}) == {0: offset}
    assert read_all(log, 0) == [*WHOLE[:offset], (offset, b"after")]
    with pytest.raises(BeyondEnd):
        log.read(0, 59)


def test_a_header_that_is_damaged_is_where_the_partition_is_cut(setup: Setup) -> None:
    path = setup.path(40)
    flip(path, path.stat().st_size - 1_512 + 30)
    damage = setup.repair().damage
    assert damage is not None and (damage.offset, damage.lost) == (45, 15)
    assert setup.repair(cut_damaged=True).damage is None and setup.read() == WHOLE[:45]


def test_a_segment_that_does_not_even_begin_as_one_is_kept_aside_as_a_whole(setup: Setup) -> None:
    flip(setup.path(40), 8)
    damage = setup.repair().damage
    assert damage is not None and (damage.position, damage.offset) == (0, 40)
    assert setup.repair(cut_damaged=True).damage is None
    assert setup.names("*.cut-*") == [f"{40:020d}.arrow.cut-0", f"{50:020d}.arrow.cut-0"]
    assert setup.read() == WHOLE[:40]


def test_a_missing_segment_is_reported_with_its_offsets(setup: Setup) -> None:
    setup.path(40).unlink()
    damage = setup.repair().damage
    assert damage is not None and "40 to 49 are missing" in damage.why and (damage.offset, damage.end) == (40, 60)
    assert setup.repair(cut_damaged=True).damage is None and setup.read() == WHOLE[:40]
    assert setup.open().append({0: entries([b"after"])}) == {0: 40}


def lose(path: Path) -> None:
    path.unlink()


def spoil(path: Path) -> None:
    flip(path, 30)


@pytest.mark.parametrize("harm", [lose, spoil])
@pytest.mark.parametrize("base", [0, 20])
def test_damage_in_a_sealed_file_is_reported_and_cut_only_when_asked(
    setup: Setup, base: int, harm: Callable[[Path], None]
) -> None:
    harm(setup.path(base, "parquet"))
    damage = setup.repair().damage
    assert damage is not None and (damage.offset, damage.end) == (base, 60)
    assert setup.names("*.cut-*") == []
    assert setup.repair(cut_damaged=True).damage is None
    assert setup.read() == WHOLE[:base] and setup.kinds() == []
    sealed = [number for number in (0, 10, 20) if number >= base and not (harm is lose and number == base)]
    assert len(setup.names("*.parquet.cut-0")) == len(sealed) and len(setup.names("*.arrow.cut-0")) == 3
    assert setup.open().append({0: entries([b"after"])}) == {0: base}


def test_nothing_that_was_kept_aside_before_is_overwritten(setup: Setup) -> None:
    setup.path(40, "arrow.cut-0").write_bytes(b"from an earlier repair")
    flip(setup.path(40), 8)
    setup.repair(cut_damaged=True)
    assert setup.path(40, "arrow.cut-0").read_bytes() == b"from an earlier repair"
    assert setup.path(40, "arrow.cut-0.1").exists()


def test_a_repair_waits_for_others_and_gives_up(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairing, "_PATIENCE", 0.05)
    fd = open_held(str(setup.directory / "housekeeping.lock"), os.O_RDWR)
    try:
        assert try_lock(fd)
        with pytest.raises(Unavailable, match=r"housekeeping\.lock"):
            setup.repair()
    finally:
        close_held(fd)
    assert setup.repair() == Repaired([], None)


def test_a_partition_that_is_sealed_while_it_is_looked_at_is_looked_at_again(
    open_file: OpenFile, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the manifest and the list of files another process seals: that is no lost manifest."""
    setup = Setup(open_file, queue, sealed=0, segments=6)
    sealing = [setup.open()]

    def read(directory: str) -> Manifest:
        manifest = read_manifest(directory)
        for log in sealing[:]:
            sealing.remove(log)
            assert len(log.seal(0)) == 4
        return manifest

    monkeypatch.setattr(inspection, "read_manifest", read)
    assert setup.kinds() == [] and sealing == []


# ---- others at work -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lock", "name"),
    [("housekeeping.lock", f"{30:020d}.parquet.tmp"), ("lock", "new-segment.tmp"), ("lock", f"{50:020d}.arrow.tmp")],
)
def test_what_another_process_is_writing_now_is_not_left_over(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, lock: str, name: str
) -> None:
    monkeypatch.setattr(inspection, "_PATIENCE", 0.05, raising=False)
    (setup.directory / name).write_bytes(b"half")
    (setup.directory / "somebody.tmp").write_bytes(b"not ours")
    fd = open_held(str(setup.directory / lock), os.O_RDWR)
    try:
        assert try_lock(fd)
        assert setup.kinds() == []
    finally:
        close_held(fd)
    assert setup.kinds() == ["leftover"]
    assert [os.path.basename(step.path) for step in setup.repair().steps] == [name]
    assert (setup.directory / "somebody.tmp").exists() and setup.kinds() == []


def test_an_index_that_grows_while_it_is_looked_at_is_not_spoilt(
    setup: Setup, open_file: OpenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexfile, "BLOCK", 1)
    log, load, done = open_file(), indexfile.load, list[str]()
    log.append({0: entries([b"x"])})

    def load_and_append(path: str, index: BatchIndex) -> indexfile.Saved:
        saved = load(path, index)
        if not done and path == str(setup.path(50, "index")):
            done.append(path)
            log.append({0: entries([b"y"])})
        return saved

    monkeypatch.setattr(indexfile, "load", load_and_append)
    assert setup.kinds() == [] and done


def test_of_a_segment_and_its_sealed_file_the_one_that_is_whole_is_never_deleted(setup: Setup, queue: Path) -> None:
    setup.path(10).write_bytes(b"a segment that was sealed, and not yet deleted")
    flip(setup.path(10, "parquet"), 30)
    done = setup.repair()
    assert [(step.action, step.path) for step in done.steps] == [("kept aside", f"{setup.path(10)}.cut-0")]
    assert done.damage is not None and done.damage.offset == 10


@pytest.mark.parametrize("how", ["cut between two batches", "deleted"])
def test_what_is_shorter_than_it_was_is_never_appended_to(open_file: OpenFile, queue: Path, how: str) -> None:
    """Or the offsets of messages that groups have consumed would be given to others, which they then pass over."""
    setup = Setup(open_file, queue)
    last = setup.directory / f"{50:020d}.arrow"
    if how == "deleted":
        last.unlink()
    else:
        index = BatchIndex()
        inspection.walk_segment(str(last), 50, index)
        os.truncate(last, index.positions[1])
    left = 50 if how == "deleted" else 55
    with pytest.raises(Damaged, match=r"was durable up to byte .* --cut-damaged"):
        setup.open().append({0: entries([b"new"])})
    found = find_damage(str(setup.directory))
    assert found is not None and found.offset == left and "a file was cut or deleted" in found.why
    setup.repair(cut_damaged=True)
    assert find_damage(str(setup.directory)) is None
    assert setup.read() == WHOLE[:left]
    assert setup.open().append({0: entries([b"new"])}) == {0: left}
