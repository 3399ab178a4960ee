"""Spark's checkpoint is a file that anybody can spoil: whatever stands in it is our offset, or our own error."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pxrs.errors import Damaged, PxrsError
from pxrs.logs.base import LogIdentity
from pxrs.model import Range
from pxrs.spark.stream.offsets import Planned, check_origin, decode, decode_positions, encode_positions, is_of_group
from pxrs.spark.stream.side_files import Sheet, SideFiles, SinkReport, SourceConfig
from pxrs.spark.write.commit import planned_in

LOG = LogIdentity("orders", 2, "xxh64-spark", "pmod", "log-id")
PLANNED = Planned("orders", "log-id", "billing", "A", "life", 7, True, (Range(0, 5, 9, 3), Range(1, 0, 0, 1)))

DEEP = "[" * 100_000

numbers = st.integers(0, 2**63 - 1)
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
names = st.text(min_size=1).filter(lambda name: not name.startswith("@"))


@st.composite
def plans(draw: st.DrawFn) -> Planned:
    partitions = draw(st.lists(st.integers(0, 65_535), unique=True, max_size=3))
    edges = [sorted((draw(numbers), draw(numbers))) for _ in partitions]
    ranges = tuple(Range(p, low, high, draw(numbers)) for p, (low, high) in zip(partitions, edges, strict=True))
    log, group, member, life = (draw(st.text()) for _ in range(4))
    return Planned(draw(names), log, group, member, life, draw(numbers), draw(st.booleans()), ranges)


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every value inside, from the outermost on."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(found for key, part in inner for found in places(part, (*here, key)))]


def spoilt(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = spoilt(copy[path[0]], path[1:], new)
    return copy


def ours(call: Callable[[], Any]) -> Any:
    """What the call returns, or None where it refuses with an error of our own; any other error fails the test."""
    try:
        return call()
    except PxrsError:
        return None


@given(plans())
def test_every_plan_comes_back_as_it_was_written(planned: Planned) -> None:
    assert decode(json.loads(json.dumps(planned.encode()))) == planned


@settings(max_examples=300)
@given(plans(), st.data())
def test_a_spoilt_plan_is_damaged_or_another_plan_of_sound_fields(planned: Planned, data: st.DataObject) -> None:
    offset = planned.encode()
    bad = spoilt(offset, data.draw(st.sampled_from(places(offset))), data.draw(any_json))
    found = ours(lambda: decode(bad))
    ours(lambda: check_origin(bad, LOG, "billing"))
    if found is not None:
        assert found.encode() == bad
        for part in found.ranges:
            assert all(type(number) is int and number >= 0 for number in part) and part.start <= part.end


@settings(max_examples=300)
@given(st.tuples(numbers, numbers), st.data())
def test_spoilt_positions_are_refused_or_sound(positions: tuple[int, int], data: st.DataObject) -> None:
    offset = encode_positions(LOG, dict(enumerate(positions)))
    assert decode_positions(offset, LOG, (0, 1)) == dict(enumerate(positions))
    bad = spoilt(offset, data.draw(st.sampled_from(places(offset))), data.draw(any_json))
    found = ours(lambda: decode_positions(bad, LOG, (0, 1)))
    assert found is None or encode_positions(LOG, found) == bad


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"@plan": "7"}, "@plan is '7', which is no whole number"),
        ({"@plan": True}, "@plan is True"),
        ({"@fenced": 1}, "@fenced is 1, which is neither true nor false"),
        ({"@life": None}, "@life is None, which is no text"),
        ({"@more": 1}, r"\['@more'\] is unknown"),
        ({"parcels": {}}, "it names 2 queues"),
        ({"orders": [1]}, "orders is \\[1\\], which is no table"),
        ({"orders": {"0": [9, 5, 1]}}, "ends before it starts"),
        ({"orders": {"0": [1, 5]}}, "no list of 3"),
        ({"orders": {"0": [1, 5.0, 1]}}, "partition 0 is 5.0"),
        ({"orders": {"0": [-1, 5, 1]}}, "partition 0 is -1"),
        ({"orders": {"00": [1, 5, 1]}}, "'00' is no number of a partition"),
        ({"orders": {"65536": [1, 5, 1]}}, "no partition 65536"),
        ({"orders": {"٣": [1, 5, 1]}}, "is no number of a partition"),
    ],
)
def test_what_is_wrong_with_a_plan_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(Damaged, match=words) as refused:
        decode(PLANNED.encode() | change)
    assert "checkpointLocation" in str(refused.value)


@pytest.mark.parametrize("missing", ["@log", "@group", "@member", "@life", "@plan", "@fenced"])
def test_a_missing_field_is_named_and_the_offset_is_not_taken_for_another_sources(missing: str) -> None:
    offset = {key: value for key, value in PLANNED.encode().items() if key != missing}
    assert is_of_group(offset)
    with pytest.raises(Damaged, match=f"{missing} is missing"):
        decode(offset)


@pytest.mark.parametrize(
    "other", [None, 5, "x", [1], {"logOffset": 3}, {"orders": {"0": 5}}, {"orders": {}, "@log": "x"}]
)
def test_offsets_of_other_sources_are_left_alone(other: Any) -> None:
    assert not is_of_group(other)


def test_a_batch_whose_plan_is_spoilt_is_not_written_without_its_group(tmp_path: Path) -> None:
    offset = {key: value for key, value in PLANNED.encode().items() if key != "@plan"}
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("\n".join(["v1", "{}", json.dumps(offset)]))
    with pytest.raises(Damaged, match="@plan is missing"):
        planned_in(str(tmp_path), 0)
    (tmp_path / "offsets" / "0").write_text("\n".join(["v1", "{}", DEEP]))
    assert planned_in(str(tmp_path), 0) is None


# ---- the files beside the JVM ----------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SideFiles:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return SideFiles(1, PLANNED)


def test_side_files_come_back_as_they_were_written(files: SideFiles) -> None:
    assert (files.sheet(), files.sink_report(), files.places()) == (None, None, None)
    sheet = Sheet(PLANNED.identity, "life-2", PLANNED.ranges, (4,))
    mark, where = SinkReport(True, PLANNED.identity), SourceConfig("file:/x", None, {"tries": 1})
    files.write_sheet(sheet)
    files.write_sink_report(mark)
    files.write_places(where)
    assert (files.sheet(), files.sink_report(), files.places()) == (sheet, mark, where)


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "{}", '{"ranges": [[0, 5, 9, "x"]]}', '{"ranges": 1, "plan": [1], "life": 2}', DEEP],
    ids=["empty", "list", "nothing", "range", "kinds", "deep"],
)
def test_a_spoilt_side_file_is_named_with_the_way_out(files: SideFiles, tmp_path: Path, text: str) -> None:
    files.write_sheet(Sheet(PLANNED.identity, "life-2", PLANNED.ranges))
    files.write_sink_report(SinkReport(True))
    files.write_places(SourceConfig("file:/x", None, {}))
    for path in tmp_path.rglob("jvm-*/*"):
        path.write_text(text)
    for look in (files.sheet, files.sink_report, files.places):
        with pytest.raises(Damaged, match=r"jvm-.* is damaged: .*remove the file"):
            look()
