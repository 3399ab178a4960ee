"""The bytes of registry rows: read back as written, readable by people, and refused when they are not ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pxrs.errors import BadName, Damaged, NewerFormat
from pxrs.model import Cause, Group, MemberRow, MemberState, Message, Owner, Partition, Tenure, check_name
from pxrs.rules import row_format as rows

PARTITION = Partition(
    3,
    Owner("A", "n1"),
    5,
    42,
    Cause.CLAIM,
    True,
    "batch-7",
    (Tenure("A", 5, 1.5, "claim"), Tenure(None, 4, 1.0, "seek")),
)
MEMBER = MemberRow("A", "n1", 7, MemberState.STALLED, 1000, 50, 1.5, (("host", "h"), ("pid", "1")))
GROUP = Group(8, "xxh64-spark", "pmod", "range", 3, ("A", "B"), "target/x", "B joined", Owner("A", "n1"), 2, "7f3a")

# As written by the first version. What was stored before stays readable: never edit these lines.
GOLDEN = {
    "partition": b'{"v":1,"owner":["A","n1"],"epoch":5,"checkpoint":42,"cause":"claim","paused":true,"note":"batch-7",'
    b'"history":[["A",5,1.5,"claim"],[null,4,1.0,"seek"]]}',
    "member": b'{"v":1,"inc":"n1","beat":7,"state":"stalled","lease_ms":1000,"grace_ms":50,"joined":1.5,'
    b'"info":{"host":"h","pid":"1"}}',
    "group": b'{"v":1,"partitions":8,"hash":"xxh64-spark","reduce":"pmod","assignor":"range","generation":3,'
    b'"members":["A","B"],"target":"target/x","reason":"B joined","leader":["A","n1"],"leader_epoch":2,"log":"7f3a"}',
}
READ: dict[str, Callable[[bytes], object]] = {
    "partition": lambda data: rows.decode_partition(3, data),
    "member": lambda data: rows.decode_member("A", data),
    "group": lambda data: rows.decode_group("g", data),
}
WRITTEN = {"partition": PARTITION, "member": MEMBER, "group": GROUP}


def test_rows_are_written_as_ever_and_read_back_equal() -> None:
    assert rows.encode_partition(PARTITION) == GOLDEN["partition"]
    assert rows.encode_member(MEMBER) == GOLDEN["member"]
    assert rows.encode_group(GROUP) == GOLDEN["group"]
    for kind, data in GOLDEN.items():
        assert READ[kind](data) == WRITTEN[kind]
    assert rows.decode_partition(0, rows.encode_partition(Partition(0))) == Partition(0)
    born = replace(GROUP, born="a1b2")
    assert rows.decode_group("billing", rows.encode_group(born)) == born


def test_the_short_way_of_a_partitions_row_writes_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [
        PARTITION,
        Partition(0),
        PARTITION._replace(checkpoint=None, note='"\\\n\u20ac'),
        PARTITION._replace(paused=True),
    ]
    spliced = list(map(rows.encode_partition, some))
    monkeypatch.setattr(rows, "is_spliced", False)
    assert list(map(rows.encode_partition, some)) == spliced


@pytest.mark.parametrize("kind", GOLDEN)
def test_b68_a_row_of_a_later_version_is_refused_and_an_extra_field_is_not(kind: str) -> None:
    fields = json.loads(GOLDEN[kind])
    assert READ[kind](json.dumps(fields | {"extra": 1}).encode()) == WRITTEN[kind]
    with pytest.raises(NewerFormat, match="format 2"):
        READ[kind](json.dumps(fields | {"v": 2}).encode())


@pytest.mark.parametrize("kind", GOLDEN)
def test_damage_is_named(kind: str) -> None:
    for data in (b"", b"{", b"[]", b"null", b"\xff", b'{"v":1}'):
        with pytest.raises(Damaged, match=kind):
            READ[kind](data)
    fields = json.loads(GOLDEN[kind])
    broken = {"partition": {"cause": "?"}, "member": {"state": 3}, "group": {"members": 3}}[kind]
    with pytest.raises(Damaged, match=kind):
        READ[kind](json.dumps(fields | broken).encode())


@pytest.mark.parametrize("name", ["a", "A-1", "x" * 200, "_", "orders.v2", "0"])
def test_good_names(name: str) -> None:
    assert check_name("queue", name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "x" * 201,
        "x" * 300,
        "a\0b",
        "a.",
        ".a",
        "-a",
        "C:\\x",
        "a b",
        "ü",
        None,
        3,
        b"a",
        "a\n",
    ],
)
def test_b66_names_that_could_escape_are_refused(name: object) -> None:
    with pytest.raises(BadName, match="group name"):
        check_name("group", name)


def test_a_message_shows_its_fields_in_the_users_words() -> None:
    message = Message(1, 2, b"k", b'{"a": 1}', 1_500_000, bytes(16), [{"key": "h", "value": b"v"}], "t")
    assert message.headers == {"h": b"v"}
    assert message.id == "00" * 16
    assert message.timestamp == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert message.text == '{"a": 1}' and message.json() == {"a": 1}
    assert (message.key, message.partition, message.offset, message.tenant) == (b"k", 1, 2, "t")
    plain = Message(1, 2, None, b"", 0)
    assert plain.headers == {} and plain.id == "1-2"


def test_derived_fields_of_rows() -> None:
    assert Partition(0).position == 0 and Partition(0, checkpoint=4).position == 4
    assert MEMBER.owner == Owner("A", "n1")
    assert MemberRow("A", "evicted-1").is_evicted and not MEMBER.is_evicted
    assert MemberRow("A", "1", lease_ms=10, grace_ms=50).patience_ms == 50
    assert MemberRow("A", "1", lease_ms=100, grace_ms=50).patience_ms == 100
