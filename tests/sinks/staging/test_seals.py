"""Sealed output: what is published is what was committed, byte for byte, or it is not published at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from pxrs.errors import Damaged
from pxrs.model import Grant, Owner, Range
from pxrs.sinks.staging import check_seal
from tests.sinks.support import GROUP, LOG, QUEUE, Crash, Place, batch_of, before_each_step, crash_at, output_of

BATCH = batch_of(Range(3, 0, 3, 6))
CLAIMED = Grant(3, Owner("B", "b" * 32), 7)
KINDS = ("parquet", "hive", "queue")


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


SPOILT = {
    "a bit": (spoil, "another checksum"),
    "the end": (lambda path: os.truncate(path, path.stat().st_size - 1), "bytes, and"),
    "everything": (lambda path: os.truncate(path, 0), "has 0 bytes, and"),
    "the file": (os.unlink, "is gone"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_staged_file_is_named_and_not_published(what: str, kind: str, tmp_path: Path) -> None:
    place, (change, said) = Place(tmp_path, kind), SPOILT[what]
    with place.sink() as sink:
        note = sink.stage(BATCH, output_of(BATCH))
        path = sorted(place.staging.rglob(f"part-{BATCH.name}-*"))[0]
        kept = path.read_bytes()
        change(path)
        with pytest.raises(Damaged, match=rf"{path.name}.*{said}.* it is not published"):
            sink.recover(QUEUE, LOG, GROUP, CLAIMED, note)
        assert place.content() == []
        path.write_bytes(kept)
        sink.recover(QUEUE, LOG, GROUP, CLAIMED, note)
    assert len(place.content()) == BATCH.rows and place.leftovers() == []


@pytest.mark.parametrize("change", [spoil, os.unlink], ids=["spoilt", "gone"])
def test_a_seal_that_is_not_the_one_of_the_note_is_named(change: object, tmp_path: Path) -> None:
    place = Place(tmp_path, "parquet")
    with place.sink() as sink:
        note = sink.stage(BATCH, output_of(BATCH))
        change(place.staging / BATCH.name / "_seal.json")  # type: ignore[operator]
        with pytest.raises(Damaged, match=r"_seal\.json"):
            sink.publish(note)
    assert place.content() == []


def test_a_batch_that_nobody_can_bring_back_is_given_up_by_deleting_it(tmp_path: Path) -> None:
    place = Place(tmp_path, "parquet")
    with place.sink() as sink:
        note = sink.stage(BATCH, output_of(BATCH))
        data = place.staging / BATCH.name
        for path in data.iterdir():
            path.unlink()
        with pytest.raises(Damaged, match=f"delete the directory {data}"):
            sink.publish(note)
        data.rmdir()
        sink.recover(QUEUE, LOG, GROUP, CLAIMED, note)
    assert place.leftovers() == []


def test_files_that_were_moved_before_a_crash_do_not_count_as_gone(tmp_path: Path) -> None:
    for at in range(100):
        place = Place(tmp_path / str(at), "hive")
        place.directory.mkdir()
        with place.sink() as sink:
            note = sink.stage(BATCH, output_of(BATCH))
            with crash_at(at) as seen, suppress(Crash):
                sink.publish(note)
            sink.recover(QUEUE, LOG, GROUP, CLAIMED, note)
        assert len(place.content()) == BATCH.rows and place.leftovers() == []
        if len(seen) <= at:
            break
    assert at > 10


def test_a_look_while_another_process_finishes_the_batch_is_not_misled(tmp_path: Path) -> None:
    place = Place(tmp_path, "queue")
    with place.sink() as sink:
        note = sink.stage(BATCH, output_of(BATCH))
        done = False

        def finish(_: int) -> None:
            nonlocal done
            if not done:
                done = True
                sink.publish(note)

        with before_each_step(finish), place.sink() as other:
            other.publish(note)
    data = str(place.staging / BATCH.name)
    check_seal(data, "of a batch that is gone", lambda _: False)
    assert len(place.content()) == BATCH.rows
