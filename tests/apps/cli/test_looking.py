"""log, dlq, registry and health: looking at what is stored, and putting it right."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

import pxrs as library
from tests.apps.cli.helpers import QUEUE, Pxrs, make_group, make_queue

TARGET_ROW = '{"key": "/pxrs/orders/g/target/1", "text": "{}"}'


def settings() -> library.Settings:
    return library.Settings(tries=1, lease_ms=1_000, poll_ms=100)


# ---- log ------------------------------------------------------------------------------------------------------------


def test_ls_shows_offsets_segments_and_bytes(pxrs: Pxrs, tmp_path: Path) -> None:
    make_queue(pxrs, messages=40)
    rows = json.loads(pxrs("log", "ls", QUEUE, "-o", "json").out)
    assert [row["partition"] for row in rows] == [0, 1, 2, 3] and sum(row["messages"] for row in rows) == 40
    for row in rows:
        files = list((tmp_path / "orders" / f"partition-{row['partition']}").glob("*.arrow")) if row["end"] else []
        assert (row["segments"], row["bytes"]) == (len(files), sum(file.stat().st_size for file in files))


def test_cat_prints_what_is_asked_for(pxrs: Pxrs) -> None:
    make_queue(pxrs, partitions=1)
    pxrs("produce", QUEUE, "-K", "=", "-H", "h=1", stdin="".join(f"k{n}={n}\n" for n in range(10)))
    assert pxrs("log", "cat", QUEUE, "--limit", 2).out == "0\n1\n"
    assert pxrs("log", "cat", QUEUE, "--offset", 8, "-o", r"%p\t%o %k=%v %h 100%%").out == (
        "0\t8 k8=8 h=1 100%\n0\t9 k9=9 h=1 100%\n"
    )
    assert pxrs("log", "cat", QUEUE, "--offset", -1, "-o", "%s").out == "9\n"
    assert pxrs("log", "cat", QUEUE, "--offset", "latest").out == ""
    assert pxrs("log", "cat", QUEUE, "-o", "table").out.splitlines()[0].split() == [
        "PARTITION", "OFFSET", "TIME", "KEY", "VALUE",
    ]  # fmt: skip
    assert pxrs("log", "cat", QUEUE, "-o", "csv").out.splitlines()[1].endswith(",k0,0")


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("-o", "jsn"), 2, "format 'jsn' is not known: table, csv, value, json, or a template"),
        (("-o", "%z"), 2, "%z is not known"),
        (("--offset", "soon"), 2, "--offset 'soon'"),
        (("--offset", "99"), 1, "offset 99 is ahead of the log, which ends at"),
        (("-p", "4"), 1, "has no partition 4"),
    ],
)
def test_cat_refuses_nonsense(pxrs: Pxrs, options: tuple[str, str], code: int, words: str) -> None:
    make_queue(pxrs, messages=4)
    shown = pxrs("log", "cat", QUEUE, *options)
    assert shown.code == code and words in shown.err


def test_an_offset_without_a_group_is_not_taken_for_a_checkpoint(pxrs: Pxrs) -> None:
    make_queue(pxrs, messages=4)
    assert "If it is a checkpoint, the log was cut" in pxrs("log", "cat", QUEUE, "--offset", 99_999_999).err


@pytest.mark.parametrize("tenant", [None, "acme"])
def test_json_tells_the_tenant(pxrs: Pxrs, tenant: str | None) -> None:
    make_queue(pxrs)
    with library.open(QUEUE, create=False) as queue, queue.producer() as producer:
        producer.send("k", "v", tenant=tenant)
    assert json.loads(pxrs("log", "cat", QUEUE, "-o", "json").out)["tenant"] == tenant


def test_verify_finds_a_damaged_byte(pxrs: Pxrs, tmp_path: Path) -> None:
    make_queue(pxrs, messages=40)
    assert pxrs("log", "verify", QUEUE).code == 0
    segment = next((tmp_path / "orders" / "partition-2").glob("*.arrow"))
    content = bytearray(segment.read_bytes())
    content[-20] ^= 1
    segment.write_bytes(content)
    shown = pxrs("log", "verify", QUEUE)
    status = [line.split() for line in shown.out.splitlines()[1:]]
    assert shown.code == 1 and [row[2] for row in status] == ["ok", "ok", "damaged", "ok"]
    assert str(segment.name) in shown.err


# ---- health ---------------------------------------------------------------------------------------------------------


def test_health_says_ok(pxrs: Pxrs) -> None:
    make_queue(pxrs, messages=4)
    make_group(pxrs, "billing", "--to-latest")
    assert pxrs("health", QUEUE) == (0, "log: 4 partitions, 4 messages\nregistry: 1 group\nOK\n", "")


def test_health_has_forms_for_programs(pxrs: Pxrs) -> None:
    make_queue(pxrs, messages=4)
    make_group(pxrs, "billing")
    shown = pxrs("health", QUEUE, "-o", "json")
    found = json.loads(shown.out)
    assert shown.code == 3 and shown.err == "" and found["state"] == "waiting"
    assert (found["partitions"], found["messages"], found["groups"]) == (4, 4, 1)
    [finding] = found["findings"]
    assert finding["kind"] == "waiting" and "4 messages wait, and no member works" in finding["finding"]
    assert pxrs("health", QUEUE, "-o", "csv").out.splitlines()[0] == "KIND,FINDING"


def test_health_finds_a_checkpoint_beyond_the_log(pxrs: Pxrs, tmp_path: Path) -> None:
    make_queue(pxrs, messages=40)
    make_group(pxrs, "billing", "--to-latest")
    for segment in (tmp_path / "orders" / "partition-2").glob("*.arrow"):
        segment.unlink()
    shown = pxrs("health", QUEUE)
    assert (
        shown.code == 1 and "partition 2 is outside the log, which holds 0 to 0" in shown.err and "OK" not in shown.out
    )


def test_health_finds_a_damaged_registry(pxrs: Pxrs, tmp_path: Path) -> None:
    make_queue(pxrs, messages=4)
    (tmp_path / "broken.db").write_bytes(b"this is no database, and it is long enough to be looked at" * 20)
    shown = pxrs("health", QUEUE, "--registry", "sqlite:broken.db")
    assert shown.code == 1 and "broken.db" in shown.err


@pytest.mark.parametrize("messages", [0, 4])
def test_looking_at_groups_creates_nothing(pxrs: Pxrs, tmp_path: Path, messages: int) -> None:
    make_queue(pxrs, messages=messages)
    before = sorted(tmp_path.rglob("*"))
    for verb in (["group", "list"], ["health"], ["metrics"]):
        assert pxrs(*verb, QUEUE).code == 0
    assert pxrs("group", "describe", QUEUE, "billing").code == 1
    assert sorted(tmp_path.rglob("*")) == before


# ---- dead letters ---------------------------------------------------------------------------------------------------


@pytest.fixture
def failed(pxrs: Pxrs) -> Pxrs:
    """A group that could not process the messages 3 and 5 of six."""
    make_queue(pxrs, messages=6, partitions=1)

    def handle(message: library.Message) -> None:
        if message.json()["n"] in (3, 5):
            raise ValueError(f"cannot bill {message.json()['n']}")

    with (
        library.open(QUEUE, create=False, settings=settings()) as queue,
        queue.consumer("billing", handle, "A") as consumer,
    ):
        while consumer.tally.handled < 6:
            assert not consumer.wait(0.02)
    return pxrs


def test_dlq_ls_and_show(failed: Pxrs) -> None:
    rows = json.loads(failed("dlq", "ls", QUEUE, "billing", "-o", "json").out)
    assert [(r["number"], r["offset"], r["key"], r["cause"], r["retried"]) for r in rows] == [
        (0, 3, "acct-3", "ValueError: cannot bill 3", False),
        (1, 5, "acct-5", "ValueError: cannot bill 5", False),
    ]
    shown = failed("dlq", "show", QUEUE, "billing", 1).out
    assert "ValueError: cannot bill 5" in shown and '"n": 5' in shown and "Traceback" in shown
    as_json = json.loads(failed("dlq", "show", QUEUE, "billing", 1, "--json").out)
    assert as_json["offset"] == 5 and as_json["member"] == "A" and json.loads(as_json["value"])["n"] == 5


def test_dead_letters_are_shown_wherever_a_group_is_shown(failed: Pxrs) -> None:
    [listed] = json.loads(failed("group", "list", QUEUE, "-o", "json").out)
    described = json.loads(failed("group", "describe", QUEUE, "billing", "-o", "json").out)
    for facts in (listed, described):
        assert facts["dead_letters"] == 2 and 0 <= facts["oldest_letter"] < 600
    assert failed("group", "list", QUEUE).out.splitlines()[1].split()[-2] == "2"
    assert "DEAD-LETTERS   2\n" in failed("group", "describe", QUEUE, "billing").out
    told = failed("health", QUEUE)
    assert told.code == 0 and told.out.endswith("OK\n")
    assert "pxrs: warning: group 'billing': 2 dead letters, the oldest from" in told.err
    assert failed("health", QUEUE, "--fail-if-dead-letters").code == 3
    assert failed("dlq", "retry", QUEUE, "billing", 0).code == 0
    assert json.loads(failed("group", "list", QUEUE, "-o", "json").out)[0]["dead_letters"] == 1
    assert failed("group", "seek", QUEUE, "billing", "--to-latest", "--execute").code == 0
    assert "1 dead letter, the oldest" in failed("health", QUEUE).err


def test_dead_letters_have_forms_for_programs_and_a_limit(failed: Pxrs) -> None:
    assert [row["number"] for row in json.loads(failed("dlq", "ls", QUEUE, "billing", "-n", 1, "-o", "json").out)] == [
        0
    ]
    as_json = json.loads(failed("dlq", "show", QUEUE, "billing", 1, "-o", "json").out)
    [row] = csv.DictReader(io.StringIO(failed("dlq", "show", QUEUE, "billing", 1, "-o", "csv").out))
    assert [name.lower() for name in row] == list(as_json) and row["NUMBER"] == "1" and row["VALUE"] == as_json["value"]


def test_dlq_retry_sends_the_original_once(failed: Pxrs) -> None:
    assert failed("dlq", "retry", QUEUE, "billing", 1).out == "sent 1 message again\n"
    again = failed("dlq", "retry", QUEUE, "billing", 1)
    assert again.out == "sent 0 messages again\n" and "--again" in again.err
    assert failed("dlq", "retry", QUEUE, "billing", "--all").out == "sent 1 message again\n"
    assert failed("dlq", "retry", QUEUE, "billing", "--all", "--again").out == "sent 2 messages again\n"
    sent = [json.loads(line) for line in failed("log", "cat", QUEUE, "--offset", 6, "-o", "json").out.splitlines()]
    assert [(m["key"], json.loads(m["value"])["n"]) for m in sent] == [
        ("acct-5", 5), ("acct-3", 3), ("acct-3", 3), ("acct-5", 5),
    ]  # fmt: skip
    assert [m["headers"]["pxrs.only-for"].split("/")[1:] for m in sent] == [
        ["billing", "1"], ["billing", "0"], ["billing", "0"], ["billing", "1"],
    ]  # fmt: skip


def test_dlq_retry_is_for_one_group_unless_all_are_meant(failed: Pxrs) -> None:
    failed("dlq", "retry", QUEUE, "billing", 0)
    assert failed("dlq", "retry", QUEUE, "billing", 1, "--all-groups").out == "sent 1 message again\n"
    sent = [json.loads(line) for line in failed("log", "cat", QUEUE, "--offset", 6, "-o", "json").out.splitlines()]
    assert [list(m["headers"]) for m in sent] == [["pxrs.only-for"], ["pxrs.retried-from"]]
    assert json.loads(failed("group", "describe", QUEUE, "billing", "-o", "json").out)["passed_over"] == 0


def test_dlq_names_what_is_not_there(failed: Pxrs) -> None:
    assert failed("dlq", "ls", QUEUE, "nobody").code == 1
    assert "there is no dead letter 7" in failed("dlq", "show", QUEUE, "billing", 7).err
    shown = failed("dlq", "retry", QUEUE, "billing", 0, 7)
    assert shown.code == 1 and "nothing was sent" in shown.err
    assert failed("log", "cat", QUEUE, "--offset", 6).out == ""
    assert failed("dlq", "retry", QUEUE, "billing").code == 2
    assert failed("dlq", "retry", QUEUE, "billing", 0, "--all").code == 2


# ---- registry -------------------------------------------------------------------------------------------------------


def test_a_dump_can_be_loaded_elsewhere(failed: Pxrs, tmp_path: Path) -> None:
    dump = failed("registry", "dump", QUEUE).out
    keys = [json.loads(line)["key"] for line in dump.splitlines()]
    assert "/pxrs/orders/billing/group" in keys and "/pxrs/orders/billing/partition/00000" in keys
    loaded = failed("registry", "load", QUEUE, "--registry", "sqlite:other.db", stdin=dump)
    assert loaded.out == f"wrote {len(keys)} rows\n"
    again = failed("registry", "dump", QUEUE, "--registry", "sqlite:other.db").out
    before, after = ({row.pop("key"): row for row in map(json.loads, text.splitlines())} for text in (dump, again))
    known, copied = (json.loads(rows.pop("/pxrs/orders/_registry/id")["text"]) for rows in (before, after))
    assert copied == known | {"copied": True}, "the first member that starts decides between the two (ADR 0027)"
    assert after == before
    [listed] = json.loads(failed("group", "list", QUEUE, "--registry", "sqlite:other.db", "-o", "json").out)
    assert listed.pop("oldest_letter") >= 0
    assert listed == {
        "group": "billing", "state": "Empty", "members": 0, "last_seen": None, "total_lag": 0, "dead_letters": 2
    }  # fmt: skip


def test_load_overwrites_only_with_force(failed: Pxrs, tmp_path: Path) -> None:
    dump = failed("registry", "dump", QUEUE).out
    (tmp_path / "rows.jsonl").write_text(dump)
    assert failed("registry", "load", QUEUE, "rows.jsonl").out == "wrote 0 rows\n"
    failed("group", "seek", QUEUE, "billing", "--to-earliest", "--execute")
    refused = failed("registry", "load", QUEUE, "rows.jsonl")
    assert refused.code == 1 and "partition/00000" in refused.err and "--force" in refused.err
    assert failed("registry", "dump", QUEUE).out != dump
    assert failed("registry", "load", QUEUE, "rows.jsonl", "--force").out == "wrote 1 row\n"
    assert failed("registry", "dump", QUEUE).out == dump


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("broken", "line 1 is no row"),
        ('{"key": "/pxrs/orders/g/group"}', "line 1 is no row"),
        ('{"key": "/pxrs/orders/g/group", "base64": "?"}', "line 1 is no row"),
        ('{"key": "/pxrs/other/g/group", "text": "{}"}', "is no row of this queue"),
        (f"{TARGET_ROW}\n{TARGET_ROW}", "is there twice"),
        ('{"key": 5, "text": "{}"}', "line 1 is no row of a dump: key is 5, which is no text; a line looks like {"),
        ('{"key": "/pxrs/orders/g/group", "text": "{}", "base64": ""}', "line 1 is no row"),
        ('["/pxrs/orders/g/group"]', "line 1 is no row"),
        (f'{TARGET_ROW}\n{{"key": "/pxrs/orders/foo", "text": "x"}}', "line 2 is no row"),
        ('{"key": "/pxrs/orders/g/invented/1", "text": "x"}', "no row of a queue has the key"),
        ('{"key": "/pxrs/orders/g/partition/00000", "text": "x"}', "row partition 0 is not readable"),
    ],
)
def test_load_refuses_what_is_no_dump(pxrs: Pxrs, line: str, words: str) -> None:
    make_queue(pxrs)
    shown = pxrs("registry", "load", QUEUE, stdin=line)
    assert shown.code == 1 and words in shown.err
    assert pxrs("registry", "dump", QUEUE).out == ""
    assert pxrs("registry", "load", QUEUE, "missing.jsonl").code == 1
