"""Texts that are not UTF-8: refused where they come in, readable where they are stored already."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pxrs.errors import Refused
from pxrs.rules.addressing import ONLY_FOR, Reader, rows_for_others, without_mark
from pxrs.rules.texts import refuse_bad_text, values_of
from tests.tools.bad_text import bad_headers, bad_text


def test_a_text_that_is_not_utf8_is_refused_by_the_name_of_its_column() -> None:
    for name, column in {"tenant": bad_text(b"Z\xfcrich"), "headers": bad_headers(b"\xff")}.items():
        with pytest.raises(Refused, match=f"column '{name}' holds a text that is not UTF-8"):
            refuse_bad_text(name, column)
    for good in (pa.array(["Zürich", None]), pa.nulls(2, pa.string()), pa.chunked_array([pa.array([""])])):
        refuse_bad_text("tenant", good)


def test_what_is_stored_already_is_readable() -> None:
    assert values_of(bad_text(b"Z\xfcrich")) == ["Z\\xfcrich"]
    assert values_of(pa.concat_arrays([bad_text(b"\xff"), pa.array([None, "ü"])])) == ["\\xff", None, "ü"]
    assert values_of(bad_headers(b"\xff")) == [[{"key": "\\xff", "value": b"x"}]]
    assert values_of(pa.array(["ü"])) == ["ü"]


def test_a_header_for_one_group_counts_beside_a_spoilt_one() -> None:
    mark = pa.array([[{"key": ONLY_FOR, "value": b"log/other/1"}]], bad_headers(b"").type)
    both = pa.ListArray.from_arrays(pa.array([0, 2]), pa.concat_arrays([bad_headers(b"\xff").values, mark.values]))
    both = both.cast(mark.type)
    assert rows_for_others(both, Reader("log", "mine")) == [0]
    assert values_of(without_mark(pa.chunked_array([both]))) == [[{"key": "\\xff", "value": b"x"}]]
