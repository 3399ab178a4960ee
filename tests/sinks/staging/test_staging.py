"""The staging directory: whose output may be removed and whose never, and what a note must say."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pxrs.errors import BadSetting, Damaged, Fenced, Refused, Unavailable
from pxrs.model import Batch, Grant, Owner, Range
from pxrs.runtime.ports.sink import Sink
from pxrs.sinks import ParquetSink
from pxrs.sinks.local_files import local_directory
from pxrs.sinks.staging import Staging
from tests.sinks.support import GROUP, LOG, QUEUE, Place, batch_of, output_of, pause_at, values_in

CLAIMED = Grant(3, Owner("B", "b" * 32), 7)


def staged(root: Path, batch: Batch) -> Path:
    """A batch as its owner leaves it that dies before the commit."""
    data = Path(Staging(str(root)).begin(batch))
    data.mkdir()
    (data / "x.parquet").write_bytes(b"...")
    return data


def recover(root: Path, grant: Grant = CLAIMED, keep: str = "") -> None:
    Staging(str(root)).clear_dead(QUEUE, LOG, GROUP, grant, keep)


# ---- what may be removed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [0, 5, 6])
def test_what_an_earlier_owner_left_is_removed(epoch: int, tmp_path: Path) -> None:
    data = staged(tmp_path, batch_of(Range(1, 0, 9, 99), Range(3, 0, 9, epoch)))
    recover(tmp_path)
    assert not data.exists() and os.listdir(tmp_path) == ["plans"]
    assert os.listdir(tmp_path / "plans") == ["place.json"]


LIVING: dict[str, Callable[[Batch], Batch]] = {
    "another group": lambda batch: replace(batch, group="other"),
    "another queue": lambda batch: replace(batch, queue="payments"),
    "another log of that name": lambda batch: replace(batch, log="log-2"),
    "another partition": lambda batch: replace(batch, ranges=(Range(4, 0, 9, 1),)),
    "the same epoch": lambda batch: replace(batch, ranges=(Range(3, 0, 9, 7),)),
    "a later epoch": lambda batch: replace(batch, ranges=(Range(3, 0, 9, 8),)),
}


@pytest.mark.parametrize("change", LIVING.values(), ids=LIVING)
def test_what_a_living_owner_could_still_commit_stays(change: Callable[[Batch], Batch], tmp_path: Path) -> None:
    batch = change(batch_of(Range(3, 0, 9, 6)))
    data = staged(tmp_path, batch)
    recover(tmp_path)
    recover(tmp_path)
    assert (data / "x.parquet").exists()
    assert (tmp_path / "plans" / f"{batch.name}.json").exists()


def test_the_batch_that_the_claimed_row_names_stays(tmp_path: Path) -> None:
    batch = batch_of(Range(3, 0, 9, 6))
    data = staged(tmp_path, batch)
    recover(tmp_path, keep=batch.name)
    assert data.exists()
    recover(tmp_path)
    assert not data.exists()


def test_what_a_task_writes_after_its_drivers_end_is_swept_by_the_next_claim(tmp_path: Path) -> None:
    data = staged(tmp_path, batch_of(Range(3, 0, 9, 6)))
    recover(tmp_path)
    late = data / "_temporary" / "0"
    late.mkdir(parents=True)
    (late / "part-00000.parquet").write_bytes(b"...")
    recover(tmp_path, Grant(5, CLAIMED.owner, 2))  # of any partition: no plan, so nobody's
    assert os.listdir(tmp_path) == ["plans"]


def test_a_sweep_in_the_middle_of_a_plan_does_not_disturb_its_owner(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    batch = batch_of(Range(1, 0, 9, 1))
    for at in range(100):
        with pause_at(at, lambda: recover(tmp_path)) as seen:
            Staging(str(tmp_path)).begin(batch)
        assert sorted(os.listdir(tmp_path / "plans")) == [f"{batch.name}.json", "place.json"]
        if len(seen) <= at:
            break
    assert at > 3


def test_a_plan_that_is_not_understood_is_not_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = staged(tmp_path, batch_of(Range(3, 0, 9, 6)))
    plan = next((tmp_path / "plans").glob("etl-*.json"))
    unknown = ("{", "[]", '{"format": 2, "epochs": {"3": 1}}', '{"format": 1}', '{"format": 1, "epochs": {"3": "1"}}')
    for content in unknown:
        plan.write_text(content)
        recover(tmp_path)
        assert data.exists() and plan.exists()
    assert caplog.text.count("is no plan") == len(unknown)


# ---- the plan and the data ------------------------------------------------------------------------------------------


def test_the_plan_is_durable_before_the_first_byte_of_data_is_written(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")
    batch = batch_of(Range(0, 0, 9, 1))
    sink.stage(replace(batch, number=2), output_of(batch))  # the directory is there
    with pause_at(1_000, lambda: None) as seen:
        sink.stage(batch, output_of(batch))
    renamed = seen.index("rename")
    assert seen[:renamed].count("fsync") >= 1, "the plan's content"
    assert seen[renamed : seen.index("write_table")].count("fsync") >= 1, "the plan's name"
    assert seen[seen.index("write_table") :].count("fsync") == 4, "the file, its seal, both directories"


def test_publishing_syncs_the_directories_after_the_last_move(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out", partition_by="key")
    batch = batch_of(Range(0, 0, 2, 1))
    note = sink.stage(batch, output_of(batch))
    with pause_at(1_000, lambda: None) as seen:
        sink.publish(note)
    moved = len(seen) - 1 - seen[::-1].index("fsync")
    assert seen[:moved].count("rename") == 2 and seen[:moved].count("fsync") >= 3
    assert seen[moved + 1 :].count("rename") == 1, "what is left is put away as a whole"


def test_an_owner_that_is_cleared_away_while_it_stages_is_fenced(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")
    batch = batch_of(Range(3, 0, 9, 6))

    def others_claim() -> None:
        recover(tmp_path / "_out.staging")
        recover(tmp_path / "_out.staging")

    told = []
    for at in range(100):
        try:
            with pause_at(at, others_claim) as seen:
                sink.stage(batch, output_of(batch))
        except Fenced as error:
            told.append(str(error))
        sink.discard(batch)
        if len(seen) <= at:
            break
    assert len(told) >= 3
    assert all("has a new owner" in text for text in told)


def test_discarding_removes_what_was_staged_and_is_harmless_otherwise(tmp_path: Path) -> None:
    place = Place(tmp_path, "parquet")
    batch = batch_of(Range(0, 0, 9, 1))
    with place.sink() as sink:
        sink.discard(batch)
        sink.stage(batch, output_of(batch))
        assert place.leftovers()
        sink.discard(batch)
        sink.discard(batch)
    assert place.leftovers() == []
    assert place.content() == []


def test_a_failed_stage_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, "parquet")
    monkeypatch.setattr("pyarrow.parquet.write_table", raise_no_space)
    batch = batch_of(Range(0, 0, 9, 1))
    with place.sink() as sink, pytest.raises(Unavailable, match="no space is left"):
        sink.stage(batch, output_of(batch))
    assert place.leftovers() == []


def raise_no_space(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


# ---- notes ----------------------------------------------------------------------------------------------------------


def test_an_owner_with_another_configuration_shows_what_was_committed(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")
    batch = batch_of(Range(3, 0, 9, 6))
    note = sink.stage(batch, output_of(batch))
    other = ParquetSink(tmp_path / "elsewhere", partition_by="key", staging=tmp_path / "aside")
    other.recover(QUEUE, LOG, GROUP, CLAIMED, note)
    assert len(values_in(tmp_path / "out")) == 9
    assert Place(tmp_path, "parquet").leftovers() == []


def test_another_sink_refuses_to_lose_what_it_cannot_show(tmp_path: Path) -> None:
    batch = batch_of(Range(3, 0, 9, 6))
    with Place(tmp_path, "queue").sink() as queue, Place(tmp_path, "parquet").sink() as parquet:
        for first, second in ((queue, parquet), (parquet, queue)):
            note = first.stage(batch, output_of(batch))
            with pytest.raises(Refused, match=r"was not shown yet\. Name that sink"):
                second.recover(QUEUE, LOG, GROUP, CLAIMED, note)
            first.publish(note)
            second.recover(QUEUE, LOG, GROUP, CLAIMED, note)  # now there is nothing to lose


def test_a_committed_batch_whose_directory_is_not_reachable_is_not_taken_for_shown(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")
    batch = batch_of(Range(3, 0, 9, 6))
    note = sink.stage(batch, output_of(batch))
    (tmp_path / "_out.staging").rename(tmp_path / "unmounted")
    with pytest.raises(Unavailable, match=r"_out\.staging is not here"):
        sink.recover(QUEUE, LOG, GROUP, CLAIMED, note)
    (tmp_path / "unmounted").rename(tmp_path / "_out.staging")
    sink.recover(QUEUE, LOG, GROUP, CLAIMED, note)
    assert len(values_in(tmp_path / "out")) == 9


@pytest.mark.parametrize("note", ["shown", "{", '{"sink": "parquet"}'])
def test_a_note_of_somebody_else_is_an_error_that_shows_it(note: str, tmp_path: Path) -> None:
    with pytest.raises(Damaged) as caught:
        ParquetSink(tmp_path / "out").publish(note)
    assert note in str(caught.value)


def test_no_note_means_that_nothing_is_to_be_shown(tmp_path: Path) -> None:
    sink: Sink = ParquetSink(tmp_path / "out")
    for note in ("", '{"batch": "an engine\'s own"}'):
        sink.publish(note)
        sink.recover(QUEUE, LOG, GROUP, CLAIMED, note)
    assert os.listdir(tmp_path) == []


# ---- directories ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["hdfs://name/out", "s3://bucket/out", "s3a:out", "file://host/out", "", "file:"])
def test_a_directory_that_is_not_local_is_refused_by_name(place: str) -> None:
    with pytest.raises(BadSetting) as caught:
        ParquetSink(place)
    assert repr(place) in str(caught.value)


def test_a_directory_may_be_a_path_or_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        local_directory("out") == local_directory("file:out") == local_directory(Path("out")) == str(tmp_path / "out")
    )
    assert local_directory(f"file://{tmp_path}/out") == local_directory(f"file:{tmp_path}/out") == str(tmp_path / "out")


def test_a_directory_that_is_a_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(BadSetting, match="out' is a file"):
        ParquetSink(tmp_path / "out")


def test_the_root_is_no_place_for_output() -> None:
    with pytest.raises(BadSetting, match="below it"):
        ParquetSink("/")


def test_a_users_own_files_in_a_given_staging_directory_are_never_touched(tmp_path: Path) -> None:
    (tmp_path / "aside").mkdir()
    (tmp_path / "aside" / "precious.txt").write_text("mine")
    sink = ParquetSink(tmp_path / "out", staging=tmp_path / "aside")
    batch = batch_of(Range(3, 0, 9, 6))
    sink.publish(sink.stage(batch, output_of(batch)))
    sink.recover(QUEUE, LOG, GROUP, CLAIMED, "")
    assert sorted(os.listdir(tmp_path / "aside")) == ["_staging", "precious.txt"]
    assert len(values_in(tmp_path / "out")) == 9


def test_a_staging_directory_on_another_file_system_is_refused_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ParquetSink(tmp_path / "out", staging=tmp_path / "aside")
    batch = batch_of(Range(3, 0, 9, 6))
    rename = os.rename

    def across(source: str, target: str) -> None:
        if target.startswith(str(tmp_path / "out")):
            raise OSError(18, "Invalid cross-device link")
        rename(source, target)

    monkeypatch.setattr(os, "rename", across)
    with pytest.raises(BadSetting, match="another file system"):
        sink.stage(batch, output_of(batch))
    assert os.listdir(tmp_path / "aside" / "_staging" / "plans") == ["place.json"]


@pytest.mark.parametrize("name", ["a\0b", "a\ud800"], ids=["NUL", "half of a character"])
def test_a_directory_that_no_file_system_can_name_is_refused_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadSetting, match="holds a NUL character or half of a character"):
        ParquetSink(tmp_path / name)
