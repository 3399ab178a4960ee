"""The proof of the Spark stories is itself put to the test: with output that is right, and output that is not."""

from __future__ import annotations

import pytest

from pxrs.model import Owner, Tenure
from pxrs.testing.faults.checker import check
from tests.acceptance.spark_output import Evidence, Message, Place, Row, check_output

SENT: dict[Place, Message] = {(0, offset): Message(b"k", str(offset).encode()) for offset in range(4)}
TENURES = {0: {1: Tenure("A", 1, 0.0, "claim"), 2: Tenure(None, 2, 0.0, "forced"), 3: Tenure("B", 3, 0.0, "claim")}}
LINES = [
    {"what": "claimed", "partition": 0, "epoch": 1, "pid": 1},
    {"what": "committed", "partition": 0, "epoch": 1, "checkpoint": 2},
    {"what": "claimed", "partition": 0, "epoch": 3, "pid": 2},
    {"what": "committed", "partition": 0, "epoch": 3, "checkpoint": 4},
]


def _row(offset: int, epoch: int, member: str, pid: int, value: int | None = None) -> Row:
    text = str(offset if value is None else value).encode()
    return Row(0, epoch, 1, "f", offset, offset, b"k", text, f"{offset}".encode(), member, pid)


GOOD = [_row(0, 1, "A", 1), _row(1, 1, "A", 1), _row(2, 3, "B", 2), _row(3, 3, "B", 2)]


def _promises_broken(rows: list[Row]) -> set[str]:
    return {found.promise for found in check(Evidence(SENT, rows, TENURES, LINES).events([Owner("B", "2")]))}


def test_the_proof_accepts_what_is_right() -> None:
    check_output(GOOD, SENT)
    assert _promises_broken(GOOD) == set()


@pytest.mark.parametrize(
    ("rows", "promise"),
    [
        (GOOD[:3], "no loss"),
        ([*GOOD[:2], _row(1, 3, "B", 2), *GOOD[2:]], "bounded repeats"),
        ([*GOOD[:3], _row(3, 1, "A", 1)], "order"),
        ([*GOOD[:3], _row(3, 3, "A", 1)], "single owner"),
    ],
    ids=["a message is missing", "one is there twice", "written under an old epoch", "written by another"],
)
def test_the_proof_names_what_is_wrong(rows: list[Row], promise: str) -> None:
    assert promise in _promises_broken(rows)


@pytest.mark.parametrize(
    "rows",
    [GOOD[:3], [*GOOD, GOOD[0]], [*GOOD[:3], _row(3, 1, "A", 1)], [*GOOD[:3], _row(3, 3, "B", 2, value=7)]],
    ids=["missing", "twice", "late write of an old owner", "another value"],
)
def test_the_proof_by_rows_refuses_what_is_wrong(rows: list[Row]) -> None:
    with pytest.raises(AssertionError):
        check_output(rows, SENT)
