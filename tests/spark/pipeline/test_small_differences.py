"""The writer's ledger and the plans of a stream, where a small difference loses or doubles rows. No Spark runs here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pxrs
from pxrs.errors import Unavailable
from pxrs.model import Grant, Owner
from pxrs.spark.stream.group_reader import GroupReader
from pxrs.spark.write.decisions import Decision, Ledger
from pxrs.spark.write.paths import WritePaths
from pxrs.spark.write.spark_writers import StreamWriter
from pxrs.spark.write.writer import stream_writer
from tests.spark.write.helpers import texts_of
from tests.spark.write.kills import QUERY, SCHEMA, messages, rows_of


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[pxrs.Queue]:
    with pxrs.open(f"file:{tmp_path}/orders", partitions=3) as queue:
        yield queue


@pytest.fixture
def writer(queue: pxrs.Queue) -> StreamWriter:
    return stream_writer({"path": f"file:{queue.log.directory}"}, SCHEMA, False)


def test_a_staged_file_that_is_shorter_than_its_task_has_said_is_not_stored(
    queue: pxrs.Queue, writer: StreamWriter
) -> None:
    """What another machine wrote may not have arrived whole; and the rest of it would be lost in silence."""
    reports = messages(writer, 0, 2, False)
    path = Path(WritePaths(writer.root, QUERY, 0).staged, reports[1].file.name)
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    with pytest.raises(Unavailable, match=f"with {len(whole)} bytes, and here it has {len(whole) - 8}"):
        writer.commit(reports, 0)
    assert texts_of(queue) == [] and Ledger(writer.root, QUERY).pending() == []
    path.write_bytes(whole)
    writer.commit(reports, 0)
    assert texts_of(queue) == sorted(value.decode() for _, value in rows_of(0))


def test_what_is_done_is_held_no_more_although_its_decision_is_still_there(tmp_path: Path) -> None:
    """A decision that came late stands beside the mark that says it is done, until somebody removes it."""
    ledger = Ledger(str(tmp_path), QUERY)
    assert ledger.decide(4, Decision((), 1, 0, {}))
    assert ledger.holds(4)
    Path(ledger.place(4).done).touch()
    assert os.path.lexists(ledger.place(4).decided) and not ledger.holds(4)


def test_a_decision_is_durable_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its name is, before anything is appended by it."""
    steps: list[str] = []
    sync, link = os.fsync, os.link

    def note_sync(fd: int) -> None:
        steps.append(Path(os.readlink(f"/proc/self/fd/{fd}")).suffix or "folder")
        sync(fd)

    def note_link(source: str, target: str) -> None:
        steps.append("named")
        link(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "link", note_link)
    Ledger(str(tmp_path), QUERY).decide(0, Decision((), 1, 0, {}))
    assert steps[-3:] == [".decision", "named", "folder"]


def test_nothing_is_planned_before_the_progress_of_the_last_batch_is_stored() -> None:
    """A plan begins where the row stands: else no restart could tell what is done."""
    left = {Grant(0, Owner("A", "life"), 1): 5}
    member = SimpleNamespace(store=lambda unsaved: unsaved)
    life: Any = SimpleNamespace(unsaved=left, member=member)
    reader: Any = SimpleNamespace()
    with pytest.raises(Unavailable, match=r"does not take the progress of \[0\]"):
        GroupReader._save(reader, life)
    member.store = lambda _: {}
    GroupReader._save(reader, life)
    assert life.unsaved == {}
