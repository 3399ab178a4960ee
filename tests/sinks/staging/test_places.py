"""Staging directories that are not the same place: two machines with a disk each, under the same path."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pxrs.errors import BadSetting, Damaged, Unavailable
from pxrs.model import Grant, Owner, Range
from pxrs.sinks import ParquetSink
from pxrs.sinks.staged import Note
from pxrs.sinks.staging import Staging, ids_in, make_place
from tests.sinks.support import GROUP, LOG, QUEUE, batch_of, output_of, values_in

BATCH = batch_of(Range(3, 0, 9, 6))
CLAIMED = Grant(3, Owner("B", "b" * 32), 7)


def committed(directory: Path) -> str:
    """A batch that a member of this machine has committed, and not shown."""
    return ParquetSink(directory / "out").stage(BATCH, output_of(BATCH))


def go_to_another_machine(directory: Path) -> Path:
    """The same path is another disk from here on. Returns where the first one is now."""
    away = directory.with_name(directory.name + "-of-the-other-machine")
    directory.rename(away)
    directory.mkdir()
    return away


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def id_of(disk: Path) -> str:
    return ids_in(f"{disk}/_out.staging/plans")[0]


def test_a_member_whose_staging_directory_is_another_place_is_refused_at_start_naming_both(disk: Path) -> None:
    note = committed(disk)
    away = go_to_another_machine(disk)
    there = ParquetSink(disk / "out")
    other = batch_of(Range(8, 0, 9, 1), number=2)
    there.publish(there.stage(other, output_of(other)))  # of a partition that had no output before
    with pytest.raises(BadSetting, match="all members of a group need the same staging directory") as caught:
        there.recover(QUEUE, LOG, GROUP, CLAIMED, note)
    assert id_of(disk) in str(caught.value) and id_of(away) in str(caught.value)
    assert str(disk) in str(caught.value) and os.uname().nodename in str(caught.value)


def test_a_member_that_has_read_of_another_place_does_not_make_one_of_its_own(disk: Path) -> None:
    note = committed(disk)
    away = go_to_another_machine(disk)
    there, other = ParquetSink(disk / "out"), batch_of(Range(8, 0, 9, 1), number=2)
    with pytest.raises(Unavailable, match=f"is not here, on .* may wait in it .{id_of(away)}"):
        there.recover(QUEUE, LOG, GROUP, CLAIMED, note)
    with pytest.raises(Unavailable, match="is not here"):
        there.stage(other, output_of(other))
    assert os.listdir(disk) == []
    disk.rmdir()
    away.rename(disk)  # mounted at last
    there.recover(QUEUE, LOG, GROUP, CLAIMED, note)
    there.publish(there.stage(other, output_of(other)))
    assert len(values_in(disk / "out")) == 18


def test_a_directory_that_is_exchanged_while_a_member_runs_is_noticed_by_its_next_batch(disk: Path) -> None:
    sink = ParquetSink(disk / "out")
    sink.publish(sink.stage(BATCH, output_of(BATCH)))
    go_to_another_machine(disk)
    committed(disk)
    with pytest.raises(BadSetting, match="another directory here"):
        sink.stage(batch_of(Range(3, 9, 18, 6), number=2), output_of(BATCH))


def test_a_directory_that_was_deleted_on_purpose_and_made_again_empty_is_the_same_place(disk: Path) -> None:
    note = committed(disk)
    away = go_to_another_machine(disk)
    (disk / "_out.staging").mkdir()
    for partition in (3, 4):  # the notes of all partitions name it
        ParquetSink(disk / "out").recover(QUEUE, LOG, GROUP, CLAIMED._replace(partition=partition), note)
    assert id_of(disk) == id_of(away)


def test_a_place_that_is_gone_for_good_is_named_in_the_one_that_follows_it(disk: Path) -> None:
    note = committed(disk)
    gone = id_of(go_to_another_machine(disk))
    committed(disk)
    path = disk / "_out.staging" / "plans" / "place.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "formerly": [gone]}))
    ParquetSink(disk / "out").recover(QUEUE, LOG, GROUP, CLAIMED, note)


def test_notes_and_directories_of_the_version_before_are_taken_as_they_are(disk: Path) -> None:
    note = Note.parse(committed(disk))
    assert note is not None
    (disk / "_out.staging" / "plans" / "place.json").unlink()
    text = json.dumps({"format": 1, **{name: getattr(note, name) for name in ("sink", "target", "staging", "batch")}})
    sink = ParquetSink(disk / "out")
    sink.recover(QUEUE, LOG, GROUP, CLAIMED, text)
    assert len(values_in(disk / "out")) == 9
    sink.publish(sink.stage(batch_of(Range(3, 9, 18, 7), number=2), output_of(BATCH)))
    assert id_of(disk)


def test_the_id_of_a_place_is_a_plan_that_the_version_before_leaves_alone(disk: Path) -> None:
    committed(disk)
    plan = json.loads((disk / "_out.staging" / "plans" / "place.json").read_text())
    assert plan["format"] == 1 and plan["epochs"] == {}


def test_the_second_creator_takes_the_id_of_the_first(tmp_path: Path) -> None:
    plans = str(tmp_path / "plans")
    assert make_place(plans, "first@here") == make_place(plans, "second@there") == ("first@here",)
    assert os.listdir(plans) == ["place.json"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"id": 3}', '{"id": "a", "formerly": [1]}', "[" * 100_000])
def test_an_id_that_cannot_be_read_is_damage_that_is_named(content: str, tmp_path: Path) -> None:
    Staging(str(tmp_path)).begin(BATCH)
    (tmp_path / "plans" / "place.json").write_text(content)
    with pytest.raises(Damaged, match=r"place\.json"):
        Staging(str(tmp_path)).begin(BATCH)
