"""Disks that are full or read-only: the sink says which directory and why, leaves nothing, and goes on later."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pxrs.errors import Unavailable
from pxrs.model import Grant, Owner, Range
from pxrs.sinks import ParquetSink, output
from tests.sinks.support import GROUP, LOG, QUEUE, Place, batch_of, before_each_step, output_of
from tests.sinks.test_parquet import Frame

BATCH = batch_of(Range(3, 0, 3, 6))
SAID = {
    errno.ENOSPC: "no space is left on .*goes on by itself",
    errno.EDQUOT: "the disk quota is used up for",
    errno.EROFS: "is on a read-only file system",
    errno.EIO: "Input/output error",
}
HARMLESS = ("unlink", "rmdir", "open")
"""What a full disk allows; a file that is made there cannot be written."""


def refuse_from(at: int, number: int, seen: list[str]) -> Callable[[int], None]:
    """A disk that takes nothing more from this step on; what is there can be removed."""

    def hook(step: int) -> None:
        if step >= at and seen[step] not in HARMLESS:
            raise OSError(number, os.strerror(number))

    return hook


def stage_on_full_disk(place: Place, at: int) -> str:
    """What is said of a disk that is full from this step on; "" if there are not so many steps."""
    seen: list[str] = []
    with place.sink() as sink, before_each_step(lambda step: refuse_from(at, errno.ENOSPC, seen)(step)) as steps:
        seen = steps
        try:
            sink.stage(BATCH, output_of(BATCH))
        except Unavailable as error:
            return str(error)
    return ""


@pytest.mark.parametrize("kind", ["parquet", "hive", "memory"])
def test_a_disk_that_is_full_at_any_step_leaves_no_half_files_and_staging_works_later(
    kind: str, tmp_path: Path
) -> None:
    for at in range(200):
        place = Place(tmp_path / str(at), kind)
        place.directory.mkdir()
        said = stage_on_full_disk(place, at)
        if not said:
            break
        assert str(place.staging) in said
        assert place.leftovers() == []
        with place.sink() as sink:
            sink.publish(sink.stage(BATCH, output_of(BATCH)))
        assert len(place.content()) == BATCH.rows and place.leftovers() == []
    assert at > 10


@pytest.mark.parametrize("number", SAID)
def test_what_is_wrong_with_the_disk_is_said_with_its_directory(number: int, tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")

    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with before_each_step(refuse), pytest.raises(Unavailable, match=SAID[number]) as caught:
        sink.stage(BATCH, output_of(BATCH))
    assert str(tmp_path / "_out.staging") in str(caught.value)


def test_a_claim_on_a_read_only_disk_says_so(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")
    sink.stage(BATCH, output_of(BATCH))

    def refuse(_: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path / "_out.staging" / "plans"))

    with (
        before_each_step(refuse),
        pytest.raises(Unavailable, match=r"_out\.staging/plans is on a read-only file system"),
    ):
        sink.recover(QUEUE, LOG, GROUP, Grant(3, Owner("B", "b" * 32), 7), "")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_spark_found_full_is_the_disks_fault_and_not_the_messages(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "SMALL", 0)

    class Full(Frame):
        def parquet(self, path: str) -> Any:
            raise RuntimeError(f"o61.parquet. : java.io.IOException: {os.strerror(number)} at {path}")

    with pytest.raises(Unavailable, match=SAID[number]):
        ParquetSink(tmp_path / "out").stage(BATCH, Full(output_of(BATCH)))
    assert Place(tmp_path, "parquet").leftovers() == []
