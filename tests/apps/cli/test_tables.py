"""Tables, and the small words of the command line."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from pxrs.apps.cli import values as words
from pxrs.apps.cli.options import WrongUsage
from pxrs.runtime.views.tables import UNKNOWN, Table, as_header, ranges

TABLE = Table(["NAME", "LOG-END", "#X"], [["a", 5, None], ["longer\nname", 12345, True]])


def test_text_is_aligned_and_a_row_is_a_line() -> None:
    assert TABLE.as_text().split("\n") == [
        "NAME          LOG-END  #X",
        "a                   5  -",
        "longer\\nname    12345  yes",
    ]


def test_an_unknown_number_is_aligned_with_the_numbers() -> None:
    assert Table(["LAG"], [[5], [UNKNOWN]]).as_text().split("\n") == ["LAG", "  5", "  ?"]


def test_json_has_names_for_programs_and_values_as_they_are() -> None:
    assert json.loads(TABLE.as_json()) == [
        {"name": "a", "log_end": 5, "x": None},
        {"name": "longer\nname", "log_end": 12345, "x": True},
    ]


def test_csv_quotes_what_needs_it() -> None:
    assert Table(["A", "B"], [['say "x", y', None]]).as_csv() == 'A,B\n"say ""x"", y",-'


def test_an_empty_table_still_has_its_header() -> None:
    assert Table(["A", "B"]).as_text() == "A  B"
    assert Table(["A", "B"]).as_json() == "[]"


def test_header_block() -> None:
    assert as_header({"GROUP": "g", "IDLE": [], "TOTAL-LAG": 0}) == "GROUP      g\nIDLE       -\nTOTAL-LAG  0"


@pytest.mark.parametrize(("numbers", "text"), [([], "-"), ([3], "3"), ([0, 1, 2], "0-2"), ([0, 2, 3, 7], "0,2-3,7")])
def test_ranges_are_short(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1h30m", 5400), ("7d", 604_800), ("250ms", 0.25), ("1.5h", 5400)]
)
def test_durations(text: str, seconds: float) -> None:
    assert words.duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "5", "h", "1y", "1h!", " 1h", "-1h"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(WrongUsage, match="is no duration"):
        words.duration(text)


def test_moments_need_their_zone() -> None:
    assert words.moment("2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    with pytest.raises(WrongUsage, match="2026-01-31T00:00:00Z for UTC"):
        words.moment("2026-01-31")
