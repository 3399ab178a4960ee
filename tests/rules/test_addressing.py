"""Messages for one group only: which rows a group passes over, whatever the batch looks like."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pxrs.errors import Refused
from pxrs.rules.addressing import ONLY_FOR, Reader, own_part, own_rows, refuse_marked, refuse_name, without_mark

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
BILLING, AUDIT = Reader("log-1", "billing"), Reader("log-1", "audit")
OTHER: dict[str, object] = {"key": "trace", "value": b"1"}


def mark(value: bytes | None) -> dict[str, object]:
    return {"key": ONLY_FOR, "value": value}


def batch_of(*headers: list[dict[str, object]] | None) -> pa.RecordBatch:
    columns = {"headers": pa.array(headers, HEADERS), "row": pa.array(range(len(headers)))}
    return pa.RecordBatch.from_pydict(columns)


def rows_of(batch: pa.RecordBatch) -> list[int]:
    found: list[int] = batch.column("row").to_pylist()
    return found


def test_a_message_for_one_group_is_passed_over_by_the_others() -> None:
    batch = batch_of(None, [OTHER, mark(BILLING.mark(7))], [OTHER], [])
    assert rows_of(own_rows(batch, BILLING)) == [0, 1, 2, 3]
    assert rows_of(own_rows(batch, AUDIT)) == [0, 2, 3]


def test_the_header_counts_in_its_own_log_only() -> None:
    batch = batch_of([mark(Reader("log-2", "billing").mark(7))])
    assert rows_of(own_rows(batch, AUDIT)) == [0], "a copy from another log is for everybody here"


@pytest.mark.parametrize("value", [None, b"", b"\xff\x00", b"log-1", b"log-1/billing", b"log-1/billing/7/8"])
def test_a_spoilt_header_hides_no_message(value: bytes | None) -> None:
    assert rows_of(own_rows(batch_of([mark(value)]), AUDIT)) == [0]


def test_the_next_part_ends_before_the_next_message_for_others() -> None:
    others = [mark(BILLING.mark(1))]
    passed, part = own_part(batch_of(others, others, None, None, others, None), AUDIT)
    assert passed == 2 and rows_of(part) == [2, 3]
    passed, part = own_part(batch_of(others, others), AUDIT)
    assert passed == 2 and part.num_rows == 0


_ROW = st.sampled_from([None, [], [OTHER], [mark(BILLING.mark(1))], [OTHER, mark(AUDIT.mark(2)), OTHER]])


@given(st.lists(_ROW, max_size=12), st.integers(0, 5), st.integers(0, 12))
def test_slices_are_judged_by_their_own_rows(
    headers: list[list[dict[str, object]] | None], start: int, rows: int
) -> None:
    batch = batch_of(*headers).slice(start, rows)
    wanted = [
        n for n, pairs in list(enumerate(headers))[start : start + rows] if mark(AUDIT.mark(2)) not in (pairs or [])
    ]
    assert rows_of(own_rows(batch, BILLING)) == wanted


def test_users_may_not_write_the_header_and_what_is_passed_on_loses_it() -> None:
    headers = pa.chunked_array([pa.array([None, [OTHER]], HEADERS), pa.array([[OTHER, mark(b"x")]], HEADERS)])
    with pytest.raises(Refused, match=r"row 2.*only `pxrs dlq retry`"):
        refuse_marked(headers)
    with pytest.raises(Refused, match=ONLY_FOR):
        refuse_name(ONLY_FOR)
    assert without_mark(headers).to_pylist() == [None, [OTHER], [OTHER]]
    refuse_marked(without_mark(headers))


def test_what_holds_no_mark_is_passed_on_as_it_is() -> None:
    refuse_name("pxrs.only")
    plain = pa.chunked_array([batch_of([], None).column("headers")])
    assert without_mark(plain) is plain
    text = pa.chunked_array([pa.array(["no list of headers"])])
    assert without_mark(text) is text
