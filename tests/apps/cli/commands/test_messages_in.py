"""init, produce, import: how messages get in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pxrs as library
from tests.apps.cli.helpers import QUEUE, Pxrs, documents, make_queue


def stored(pxrs: Pxrs, *options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in pxrs("log", "cat", QUEUE, "-o", "json", *options).out.splitlines()]


# ---- init -----------------------------------------------------------------------------------------------------------


def test_init_creates_once_and_refuses_other_values(pxrs: Pxrs) -> None:
    assert pxrs("init", QUEUE, "--partitions", 8, "--hash", "kafka", "--reduce", "mask").out == (
        "created queue 'orders' with 8 partitions, hash kafka, reduce mask\n"
    )
    assert "was there already" in pxrs("init", QUEUE).out
    refused = pxrs("init", QUEUE, "--partitions", 9)
    assert refused.code == 1 and "8" in refused.err and "9" in refused.err


@pytest.mark.parametrize("options", [("--partitions", "0"), ("--hash", "md4"), ("--reduce", "half")])
def test_init_refuses_nonsense_and_makes_nothing(pxrs: Pxrs, tmp_path: Path, options: tuple[str, str]) -> None:
    assert pxrs("init", QUEUE, *options).code == 2
    assert not (tmp_path / "orders" / "queue.json").exists()


def test_init_with_the_registry_elsewhere(pxrs: Pxrs, tmp_path: Path) -> None:
    assert pxrs("init", QUEUE, "--registry", "sqlite:apart.db").code == 0
    assert (tmp_path / "apart.db").exists(), "the log and the registry know each other from now on"
    assert pxrs("group", "list", QUEUE, "--registry", "sqlite:apart.db").code == 0
    assert pxrs("consume", QUEUE, "-g", "billing", "--until-end").code == 1, "another registry is refused"
    assert pxrs("consume", QUEUE, "-g", "billing", "--until-end", "--registry", "sqlite:apart.db").code == 0
    assert (tmp_path / "apart.db").exists() and not (tmp_path / "orders" / "registry.db").exists()


# ---- produce --------------------------------------------------------------------------------------------------------


def test_lines_become_messages_as_they_are(pxrs: Pxrs) -> None:
    make_queue(pxrs, partitions=1)
    assert pxrs("produce", QUEUE, "--key", "k", stdin="one\n\n two \r\nlast").out == "sent 4 messages to 'orders'\n"
    assert [m["value"] for m in stored(pxrs)] == ["one", "", " two \r", "last"]
    assert {m["key"] for m in stored(pxrs)} == {"k"}


def test_json_is_routed_by_a_nested_field(pxrs: Pxrs) -> None:
    make_queue(pxrs)
    shown = pxrs("produce", QUEUE, "-f", "json", "--key-field", "account.id", "-v", stdin=documents(40) + "\n")
    counts = [line.split() for line in shown.out.splitlines()[2:]]
    assert shown.code == 0 and sum(int(count) for _, count in counts) == 40
    found = stored(pxrs)
    partitioner = library.Partitioner(4)
    assert len(found) == 40
    for message in found:
        assert message["key"] == json.loads(message["value"])["account"]["id"]
        assert message["partition"] == partitioner.partition(message["key"])


def test_numbers_are_keys_and_missing_fields_are_named(pxrs: Pxrs) -> None:
    make_queue(pxrs, partitions=1)
    text = '{"id": 7}\n{"id": true}\n{"other": 1}\n'
    shown = pxrs("produce", QUEUE, "-f", "json", "--key-field", "id", stdin=text)
    assert shown.code == 1 and "stdin, line 3 has no field 'id'" in shown.err and "(stored 2 of 2 sent" in shown.err
    assert [m["key"] for m in stored(pxrs)] == ["7", "true"]


@pytest.mark.parametrize("bad", ['{"id": null}', '{"id": [1]}', "{broken", "17"])
def test_json_without_a_usable_key_is_refused(pxrs: Pxrs, bad: str) -> None:
    make_queue(pxrs)
    shown = pxrs("produce", QUEUE, "-f", "json", "--key-field", "id", stdin=bad)
    assert shown.code == 1 and "line 1" in shown.err and stored(pxrs) == []


def test_key_separator_and_headers(pxrs: Pxrs) -> None:
    make_queue(pxrs, partitions=1)
    assert pxrs("produce", QUEUE, "-K", "=", "-H", "source=web", stdin="a=1=2\nb=3\n").code == 0
    found = [(m["key"], m["value"], m["headers"]) for m in stored(pxrs)]
    assert found == [("a", "1=2", {"source": "web"}), ("b", "3", {"source": "web"})]
    assert "no key separator" in pxrs("produce", QUEUE, "-K", "=", stdin="nothing").err


def test_files_are_read_by_line_or_sent_whole(pxrs: Pxrs, tmp_path: Path) -> None:
    make_queue(pxrs, partitions=1)
    (tmp_path / "a.txt").write_bytes(b"1\n2\n")
    (tmp_path / "b.bin").write_bytes(b"\xff\x00")
    assert pxrs("produce", QUEUE, "a.txt").out.startswith("sent 2 ")
    assert pxrs("produce", QUEUE, "--files", "a.txt", "b.bin").out.startswith("sent 2 ")
    whole = stored(pxrs)[2:]
    assert [m["key"] for m in whole] == ["a.txt", "b.bin"]
    assert whole[0]["value"] == "1\n2\n" and whole[1]["value_base64"] == "/wA="


def test_a_file_that_is_not_there_stops_before_anything_is_sent(pxrs: Pxrs, tmp_path: Path) -> None:
    make_queue(pxrs)
    (tmp_path / "a.txt").write_text("1\n")
    shown = pxrs("produce", QUEUE, "a.txt", "missing.txt")
    assert shown.code == 1 and "missing.txt" in shown.err and stored(pxrs) == []


@pytest.mark.parametrize(
    "options",
    [
        ("--key", "k", "--key-separator", "="),
        ("--key-field", "id"),
        ("--key-separator", ""),
        ("--files",),
        ("--header", "novalue"),
    ],
    ids=" ".join,
)
def test_options_that_contradict_are_wrong_usage(pxrs: Pxrs, options: tuple[str, ...]) -> None:
    make_queue(pxrs)
    assert pxrs("produce", QUEUE, *options, stdin="x\n").code == 2


# ---- import ---------------------------------------------------------------------------------------------------------


def write_source(directory: Path, form: str, count: int) -> str:
    rows = [json.loads(line) for line in documents(count).splitlines()]
    path = directory / f"source.{form}"
    if form in ("json", "lines"):
        lines = documents(count) if form == "json" else "".join(f"{row['account']['id']}|{row['n']}\n" for row in rows)
        path.write_text(lines)
        return str(path)
    table = pa.Table.from_pylist(rows)
    if form == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=17)
    return str(path)


@pytest.mark.parametrize("checkpoint", [0, 1, 57, 99, 100])
@pytest.mark.parametrize("form", ["json", "lines", "arrow", "parquet"])
def test_import_leaves_exactly_the_messages_from_the_old_checkpoint_on(
    pxrs: Pxrs, tmp_path: Path, form: str, checkpoint: int
) -> None:
    source = write_source(tmp_path, form, 100)
    keys = ("-K", "|") if form == "lines" else ("--key-field", "account.id")
    shown = pxrs(
        "import", QUEUE, source, "-f", form, *keys,
        "--from-checkpoint", checkpoint, "--group", "billing", "--partitions", 4,
    )  # fmt: skip
    assert shown.code == 0, shown.err
    assert f"{100 - checkpoint} unprocessed" in shown.out
    with library.open(QUEUE, create=False) as queue:
        lines = queue.group("billing").describe()
        left = [m for line in lines for m in queue.read(line.partition, line.checkpoint, 1000)]
    numbers = [int(m.text) if form == "lines" else m.json()["n"] for m in left]
    assert sorted(numbers) == list(range(checkpoint, 100))


def test_import_keeps_source_order_in_each_partition(pxrs: Pxrs, tmp_path: Path) -> None:
    source = write_source(tmp_path, "json", 100)
    assert pxrs("import", QUEUE, source, "-f", "json", "--key-field", "account.id", "--partitions", 4).code == 0
    for partition in range(4):
        numbers = [json.loads(m["value"])["n"] for m in stored(pxrs, "--partition", str(partition))]
        assert numbers == sorted(numbers)


def test_import_takes_messages_that_have_their_columns(pxrs: Pxrs, tmp_path: Path) -> None:
    table = pa.table({"key": ["a", None], "value": [b"1", b"2"], "tenant": ["t", None], "ignored": [1, 2]})
    pq.write_table(table, tmp_path / "m.parquet")
    assert pxrs("import", QUEUE, "m.parquet", "-f", "parquet", "--partitions", 1).code == 0
    found = [(m["key"], m["value"], m.get("tenant")) for m in stored(pxrs)]
    assert found == [("a", "1", "t"), (None, "2", None)]


def test_import_refuses_before_it_writes(pxrs: Pxrs, tmp_path: Path) -> None:
    source = write_source(tmp_path, "json", 10)
    group = ("--from-checkpoint", 11, "--group", "billing")
    beyond = pxrs("import", QUEUE, source, "-f", "json", *group)
    assert beyond.code == 1 and "beyond the 10 messages" in beyond.err
    (tmp_path / "bad.jsonl").write_text('{"n": 1}\nbroken\n')
    assert "line 2 is not JSON" in pxrs("import", QUEUE, "bad.jsonl", "-f", "json").err
    assert "not readable as parquet" in pxrs("import", QUEUE, source, "-f", "parquet").err
    assert not (tmp_path / "orders").exists()


def test_a_checkpoint_is_taken_over_once(pxrs: Pxrs, tmp_path: Path) -> None:
    source = write_source(tmp_path, "json", 10)
    words = ("import", QUEUE, source, "-f", "json", "--from-checkpoint", 5, "--group")
    assert pxrs(*words, "billing").code == 0
    assert "group 'billing' exists already" in pxrs(*words, "billing").err
    assert "holds messages already" in pxrs(*words, "other").err
    assert len(stored(pxrs)) == 10


def test_from_checkpoint_and_group_belong_together(pxrs: Pxrs, tmp_path: Path) -> None:
    source = write_source(tmp_path, "json", 10)
    assert pxrs("import", QUEUE, source, "--from-checkpoint", 5).code == 2
    assert pxrs("import", QUEUE, source, "--group", "billing").code == 2
    assert pxrs("import", QUEUE, "-", "--from-checkpoint", 5, "--group", "billing").code == 2
