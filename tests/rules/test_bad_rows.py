"""Every field of a stored row is checked when it is read: a bad one is Damaged, and nothing else comes out."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pxrs.errors import Damaged, NewerFormat
from pxrs.model import Cause, Group, MemberRow, MemberState, Owner, Partition, Tenure
from pxrs.rules import json_fields as fields
from pxrs.rules import ownership, rebalance
from pxrs.rules import row_format as rows

PARTITION = Partition(3, Owner("A", "1"), 5, 42, Cause.CLAIM, True, "n", (Tenure("A", 5, 1.5, "claim"),))
MEMBER = MemberRow("A", "1", 7, info=(("host", "h"),), seen=12.5, parked=((3, "the disk is full"),))
GROUP = Group(8, "h", "r", "range", 3, ("A",), "t", "why", Owner("A", "1"), 2, "log", "born", ("life",))

KINDS: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "partition": (rows.encode_partition(PARTITION), lambda data: rows.decode_partition.__wrapped__(3, data)),
    "member": (rows.encode_member(MEMBER), lambda data: rows.decode_member.__wrapped__("A", data)),
    "group": (rows.encode_group(GROUP), lambda data: rows.decode_group.__wrapped__("g", data)),
}
ENCODE: dict[type, Callable[[Any], bytes]] = {
    Partition: rows.encode_partition,
    MemberRow: rows.encode_member,
    Group: rows.encode_group,
}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def test_rows_with_all_their_fields_are_read_back_equal() -> None:
    assert [decode(data) for data, decode in KINDS.values()] == [PARTITION, MEMBER, GROUP]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epoch", "x"), ("epoch", None), ("epoch", 1.5), ("epoch", True), ("epoch", -1), ("epoch", 1 << 63),
        ("checkpoint", "x"), ("checkpoint", 1.5), ("checkpoint", -5), ("checkpoint", True), ("checkpoint", []),
        ("owner", ["a"]), ("owner", "xy"), ("owner", ["a", 1]), ("owner", {"a": 1}), ("owner", ["a", "b", "c"]),
        ("paused", "x"), ("paused", 1), ("paused", None), ("note", 5), ("note", None), ("cause", ["claim"]),
        ("history", [["a"]]), ("history", [[1, 2, 3, 4]]), ("history", [["a", 1, "then", "claim"]]), ("history", 3),
        ("history", [["a", 1, float("nan"), "claim"]]), ("history", [["a", -1, 1.0, "claim"]]), ("v", True),
    ],
)  # fmt: skip
def test_a_partition_row_with_a_bad_field_is_damaged_and_says_which(field: str, value: Any) -> None:
    data, decode = KINDS["partition"]
    with pytest.raises(Damaged, match=rf"partition 3 .*{field}"):
        decode(json.dumps(json.loads(data) | {field: value}).encode())


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(content=st.data())
def test_arbitrary_json_in_any_field_gives_a_row_that_can_be_written_or_damaged(kind: str, content: Any) -> None:
    data, decode = KINDS[kind]
    fields = json.loads(data)
    changed = json.dumps(fields | {content.draw(st.sampled_from(sorted(fields))): content.draw(ANYTHING)}).encode()
    with suppress(Damaged):  # NewerFormat is one of them
        row = decode(changed)
        assert decode(ENCODE[type(row)](row)) == row


@pytest.mark.parametrize("kind", KINDS)
def test_deep_nesting_is_damage_and_no_recursion_error(kind: str) -> None:
    data, decode = KINDS[kind]
    deep = "[" * 100_000 + "]" * 100_000
    for text in (deep, data.decode()[:-1] + f',"more":{deep}}}', '{"v":' + "9" * 5_000 + "}"):
        with pytest.raises(Damaged, match=kind):
            decode(text.encode())


def test_a_row_of_a_later_format_is_not_taken_for_a_damaged_one() -> None:
    data, decode = KINDS["member"]
    with pytest.raises(NewerFormat):
        decode(json.dumps(json.loads(data) | {"v": 2, "beat": "x"}).encode())


# ---- states of later versions ---------------------------------------------------------------------------------------


def test_an_unknown_member_state_is_alive_not_eligible_and_never_written_back_as_another() -> None:
    data, decode = KINDS["member"]
    written = json.dumps(json.loads(data) | {"state": "hibernating"}, separators=(",", ":")).encode()
    row = decode(written)
    assert row.state == "hibernating" and not row.state.is_known and MemberState.ACTIVE.is_known
    assert rebalance.eligible([row], frozenset()) == () and rebalance.eligible(
        [row, replace(MEMBER, id="B")], frozenset()
    ) == ("B",)
    beaten = ownership.beat(row, MEMBER)
    assert json.loads(rows.encode_member(beaten))["state"] == "hibernating" and rows.encode_member(row) == written
    assert ownership.evict(row, "evicted-1").state is MemberState.LEAVING
    assert not rebalance.is_orphan(PARTITION, {"A": row}, frozenset(), None), "it is alive: what it has stays with it"
    assert pickle.loads(pickle.dumps(row)) == row


@pytest.mark.parametrize("value", [10**5000, [10**5000]], ids=["a number", "a list of it"])
def test_a_number_that_cannot_be_printed_is_named_by_its_kind(value: Any) -> None:
    assert fields.shown(value) == f"a {type(value).__name__}"
