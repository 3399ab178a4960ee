"""group create: checkpoints before anybody consumes; and where a key goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pxrs as library
from pxrs.errors import Refused
from pxrs.runtime.registry.rows import Rows
from pxrs.testing import drain
from tests.apps.cli.helpers import QUEUE, Pxrs, make_queue


@pytest.fixture(autouse=True)
def queue(pxrs: Pxrs) -> None:
    make_queue(pxrs, messages=20)


def checkpoints(group: str) -> list[int]:
    with library.open(QUEUE, create=False) as queue:
        return [line.checkpoint for line in queue.group(group).describe()]


def groups() -> list[str]:
    with library.open(QUEUE, create=False) as queue:
        return queue.groups()


def ends() -> list[int]:
    with library.open(QUEUE, create=False) as queue:
        return list(queue.ends().values())


def test_a_group_begins_at_the_named_place_and_consumes_nothing(pxrs: Pxrs) -> None:
    assert pxrs("group", "create", QUEUE, "first").code == 0
    assert pxrs("group", "create", QUEUE, "last", "--at", "latest").code == 0
    assert pxrs("group", "create", QUEUE, "then", "--at", "2020-01-01T00:00Z").code == 0
    assert checkpoints("first") == checkpoints("then") == [0, 0, 0, 0] and checkpoints("last") == ends()
    with library.open(QUEUE, create=False) as queue:
        assert queue.group("last").members() == [] and drain(queue, "last", print).handled == 0
        assert drain(queue, "first", lambda _: None, start="latest").handled == 20


@pytest.mark.parametrize("form", ["json", "csv"])
def test_the_description_of_a_group_is_a_file_to_begin_from(pxrs: Pxrs, form: str, tmp_path: Path) -> None:
    with library.open(QUEUE, create=False) as queue:
        queue.group("old").create({0: 1, 1: 0, 2: queue.ends()[2], 3: 0})
    (tmp_path / "places").write_text(pxrs("group", "describe", QUEUE, "old", "-o", form).out)
    assert pxrs("group", "create", QUEUE, "new", "--at", "places").code == 0
    assert checkpoints("new") == checkpoints("old")


def test_a_group_that_is_there_is_refused_and_stays_as_it_was(pxrs: Pxrs) -> None:
    assert pxrs("group", "create", QUEUE, "g").code == 0
    again = pxrs("group", "create", QUEUE, "g", "--at", "latest")
    assert again.code == 1 and "exists already; `pxrs group seek`" in again.err and again.err.count("\n") == 1
    assert checkpoints("g") == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"0": 1}', "no offset is given for partitions 1-3: name all 4"),
        ('{"0": 0, "1": 0, "2": 0, "3": 0, "9": 0}', "has no partition 9"),
        ('{"0": 0, "1": 0, "2": 0, "3": 1.5}', "offset 1.5 is no whole number"),
        ('{"0": true}', "offset True is no whole number"),
        ('{"0": 0, "1": 0, "2": 0, "3": 999}', "999 is outside the log"),
        ('{"0": 0, "1": 0, "2": 0, "3": -1}', "-1 is not an offset"),
        ('{"0": 0', "Expecting"),
        ("[1, 2]", "1 is no line with a partition and an offset"),
        ("[" * 100_000, "recursion"),
        ("a,b\n1,2\n", "a line has no partition or no offset, but a, b"),
        ("partition,offset\n0,x\n", "offset 'x' is no whole number"),
        ("partition,offset\n0,1\n0,1\n", "partition 0 is there twice"),
        ("", "it names no partition"),
        ("\x00\udcff", "codec"),
    ],
)
def test_a_wrong_file_is_one_line_and_makes_no_group(pxrs: Pxrs, text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "places").write_bytes(text.encode(errors="surrogateescape"))
    shown = pxrs("group", "create", QUEUE, "g", "--at", "places")
    assert shown.code == 1 and shown.err.count("\n") == 1 and says in shown.err
    assert groups() == []


@pytest.mark.parametrize("place", ["noon", "2020-01-01", "nowhere.json", ".", ""])
def test_a_wrong_place_is_wrong_usage(pxrs: Pxrs, place: str) -> None:
    assert pxrs("group", "create", QUEUE, "g", "--at", place).code == 2
    assert groups() == []


def test_a_creation_that_was_cut_short_leaves_a_group_that_a_seek_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    with library.open(QUEUE, create=False) as queue:
        group = queue.group("g")
        registry = type(group.registry)
        monkeypatch.setattr(registry, "_begin_at", lambda *_: (_ for _ in ()).throw(OSError("killed here")))
        with pytest.raises(OSError, match="killed here"):
            group.create("latest")
        monkeypatch.undo()
        with pytest.raises(Refused, match="exists already; `pxrs group seek` moves its checkpoints"):
            group.create("latest")
        group.seek("latest")
        assert group.describe(patient=False).total_lag == 0
        with pytest.raises(Refused, match="exists already"):
            group.create("earliest")


# ---- keys ------------------------------------------------------------------------------------------------------------


def test_where_a_key_goes_is_where_its_messages_are(pxrs: Pxrs) -> None:
    shown = json.loads(pxrs("log", "where", "acct-3", QUEUE, "-o", "json").out)[0]
    as_hex = json.loads(pxrs("log", "where", b"acct-3".hex(), QUEUE, "--hex", "-o", "json").out)[0]
    stored = [json.loads(line) for line in pxrs("log", "cat", QUEUE, "-o", "json").out.splitlines()]
    assert {m["partition"] for m in stored if m["key"] == "acct-3"} == {shown["partition"]} and shown == as_hex
    assert shown["hash"] == "xxh64-spark" and shown["hash_value"] % shown["partitions"] == shown["partition"]


def test_the_queue_of_where_may_come_from_the_environment(pxrs: Pxrs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PXRS_URL", QUEUE)
    assert "user:42" in pxrs("log", "where", "user:42").out


def test_cat_of_a_key_reads_its_partition_only(pxrs: Pxrs, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[int] = set()
    real = library.Queue.read

    def noted(queue: library.Queue, partition: int, *more: int) -> list[library.Message]:
        read.add(partition)
        return real(queue, partition, *more)

    monkeypatch.setattr(library.Queue, "read", noted)
    shown = pxrs("log", "cat", QUEUE, "--key", "acct-3", "-o", "%k %v").out.splitlines()
    assert [json.loads(line.split(" ", 1)[1])["n"] for line in shown] == [3, 10, 17] and len(read) == 1
    assert len(pxrs("log", "cat", QUEUE, "--key", b"acct-3".hex(), "--hex", "-n", 2).out.splitlines()) == 2
    assert pxrs("log", "cat", QUEUE, "--key", "nobody") == (0, "", "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("where", "zz", QUEUE, "--hex"), "two hex digits for each byte"),
        (("where", QUEUE, "acct-1"), "the key comes before the queue: pxrs log where acct-1 file:./orders"),
        (("where", "acct-1"), "Missing argument 'URL'"),
        (("cat", QUEUE, "--hex"), "give a --key"),
        (("cat", QUEUE, "--key", "a", "-p", "1"), "leave --partition out"),
    ],
)
def test_wrong_usage_of_keys_says_what_to_write(pxrs: Pxrs, words: tuple[str, ...], says: str) -> None:
    shown = pxrs("log", *words)
    assert shown.code == 2 and says in shown.err


def test_a_consumer_that_starts_at_this_very_moment_keeps_its_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    with library.open(QUEUE, create=False) as queue:
        group = queue.group("g")
        make = Rows.create

        def late(*given: Any) -> Any:
            monkeypatch.setattr(Rows, "create", make)
            assert drain(queue, "g", lambda _: None).handled == 20  # it is made by somebody else, who consumes
            queue.group("g").seek({0: 1})
            return make(*given)

        monkeypatch.setattr(Rows, "create", late)
        with pytest.raises(Refused, match="made by somebody else in this moment"):
            group.create("earliest")
    assert checkpoints("g") == [1, *ends()[1:]]
