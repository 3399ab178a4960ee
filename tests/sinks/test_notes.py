"""Notes beside checkpoints: of other versions, and of the sink that a group used before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pxrs.errors import BadSetting, Damaged, NewerFormat, Refused
from pxrs.model import Grant, Owner, Range
from pxrs.runtime.ports.sink import Sink
from pxrs.sinks import ParquetSink
from pxrs.sinks.staged import Note
from tests.sinks.sql.support import SqlPlace
from tests.sinks.support import GROUP, LOG, QUEUE, Place, batch_of, output_of, values_in

BATCH = batch_of(Range(3, 0, 9, 6))
CLAIMED = Grant(3, Owner("B", "b" * 32), 7)
OF_SQL = Note("sql", "bills", "3f9a3f9a3f9a3f9a", "b-1").text
GOOD: dict[str, Any] = {"format": 1, "sink": "parquet", "target": "/out", "staging": "/aside", "batch": "b-1"}


# ---- what a note says ------------------------------------------------------------------------------------------------


def test_a_note_of_the_version_before_is_read() -> None:
    assert Note.parse(json.dumps(GOOD)) == Note("parquet", "/out", "/aside", "b-1")


@pytest.mark.parametrize("more", [{}, {"sink": "parquet", "elsewhere": "s3"}])
def test_a_note_of_a_later_format_is_not_guessed_at(more: dict[str, str]) -> None:
    with pytest.raises(NewerFormat, match="has format 2"):
        Note.parse(json.dumps({"format": 2, **more}))


WRONG = [
    *({**GOOD, "format": number} for number in (0, -1, "1", 1.0, True, None)),
    *({**GOOD, name: value} for name in ("sink", "batch", "place", "seal") for value in (1, None, ["x"])),
    {key: value for key, value in GOOD.items() if key != "staging"},
    [GOOD],
    "sink",
    3,
]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_a_note_with_wrong_types_is_damage(wrong: Any) -> None:
    with pytest.raises(Damaged, match=r"is not one of pxrs\.sinks"):
        Note.parse(json.dumps(wrong))


def test_a_note_without_end_is_damage() -> None:
    with pytest.raises(Damaged, match=r"is not one of pxrs\.sinks"):
        Note.parse("[" * 100_000)


# ---- a group that changes its sink -----------------------------------------------------------------------------------


class Earlier:
    """Stands for the sink that the group used before."""

    def __init__(self) -> None:
        self.published: list[str] = []

    def publish(self, note: str) -> None:
        self.published.append(note)

    def not_asked(self, *_: Any) -> Any:
        raise AssertionError("the new sink does this")

    stage = discard = recover = not_asked


@pytest.mark.parametrize("kind", ["parquet", "queue"])
def test_a_note_of_sql_is_known_by_its_kind_and_the_advice_helps(kind: str, tmp_path: Path) -> None:
    said = r"\(SqlSink, bills\) and may not have been shown yet.*instead_of=SqlSink"
    with Place(tmp_path, kind).sink() as sink, pytest.raises(Refused, match=said):
        sink.recover(QUEUE, LOG, GROUP, CLAIMED, OF_SQL)


def test_the_sink_before_shows_what_it_committed_and_the_group_goes_on(tmp_path: Path) -> None:
    earlier = Earlier()
    sink = ParquetSink(tmp_path / "out", instead_of=earlier)
    sink.recover(QUEUE, LOG, GROUP, CLAIMED, OF_SQL)
    note = sink.stage(BATCH, output_of(BATCH))
    sink.publish(note)
    assert earlier.published == [OF_SQL] and len(values_in(tmp_path / "out")) == 9


def test_files_of_the_sink_before_are_shown_by_it(tmp_path: Path) -> None:
    with Place(tmp_path, "queue").sink() as queue, Place(tmp_path, "parquet").sink() as parquet:
        note = queue.stage(BATCH, output_of(BATCH))
        with pytest.raises(Refused, match="was not shown yet"):
            parquet.recover(QUEUE, LOG, GROUP, CLAIMED, note)
        both = ParquetSink(tmp_path / "out", instead_of=queue)
        both.recover(QUEUE, LOG, GROUP, CLAIMED, note)
        assert len(Place(tmp_path, "queue").content()) == 9
        parquet.recover(QUEUE, LOG, GROUP, CLAIMED, note)  # shown: nothing holds the group up


def test_what_is_no_sink_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="must be a sink"):
        ParquetSink(tmp_path / "out", instead_of="./bills")  # type: ignore[arg-type]


def test_a_group_goes_from_sql_to_files_and_back_and_loses_nothing(place: SqlPlace, tmp_path: Path) -> None:
    place.make()
    sql: Sink = place.sink()
    note = sql.stage(BATCH, output_of(BATCH))  # committed, and not shown
    files = ParquetSink(tmp_path / "out", instead_of=sql)
    files.recover(QUEUE, LOG, GROUP, CLAIMED, note)
    assert len(place.values()) == 9
    more = batch_of(Range(3, 9, 18, 7), number=2)
    note = files.stage(more, output_of(more))
    with pytest.raises(Refused, match=r"ParquetSink, .*was not shown yet.*instead_of=ParquetSink"):
        place.sink().publish(note)
    place.sink(instead_of=files).publish(note)
    assert len(values_in(tmp_path / "out")) == 9
    place.sink().publish(note)
