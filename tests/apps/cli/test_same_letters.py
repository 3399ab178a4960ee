"""Commands use the same letters for the same thing, and their tables fit 80 columns."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import pxrs as library
from pxrs.apps.cli.app import build
from pxrs.apps.cli.output import WIDTH, fitted, rendered
from pxrs.runtime.views.tables import Table
from tests.apps.cli.helpers import QUEUE, Pxrs, make_group, make_queue

MEMBER = "worker-12-1234567-cd23b4"
OFFSET = 9_876_543_210
PATH = "/var/lib/pxrs/queues/orders/partition-63/00000000009876543210.arrow"
TIME = "2026-01-31T12:00:00.000+00:00"
CAUSE = "ValueError: invalid literal for int() with base 10: b'twelve' and more words than there is room"


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command of the tree, with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


def options(hidden: bool = False) -> Iterator[tuple[str, list[str], list[str]]]:
    """(command, long names, letters) of every option that help shows, or of those that it does not show."""
    for words, command in commands(typer.main.get_command(build())):
        for one in command.params:
            names = [*one.opts, *one.secondary_opts]
            if getattr(one, "hidden", False) == hidden and any(name.startswith("--") for name in names):
                long = [name for name in names if name.startswith("--")]
                yield words, long, [name for name in names if not name.startswith("--")]


def test_an_option_has_the_same_letter_in_each_command() -> None:
    letters: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
    for words, long, short in options():
        letters[long[0]][words] = short
    assert len(letters) > 40, "the whole tree was walked"
    for name, by_command in letters.items():
        # --key is both the key of what is sent and the key that is looked for: only the first has a letter
        different = {tuple(short) for words, short in by_command.items() if (words, name) != ("log cat", "--key")}
        assert len(different) == 1, f"{name}: {by_command}"


def test_a_letter_means_one_thing() -> None:
    names: defaultdict[str, set[str]] = defaultdict(set)
    for _, long, short in options():
        for letter in short:
            names[letter].add(long[0])
    assert names.pop("-f") == {"--format", "--follow"}, "the format of input; and tail -f, as everywhere"
    assert all(len(found) == 1 for found in names.values()), names
    assert names["-o"] == {"--output"} and names["-n"] == {"--max"}


def test_what_prints_a_view_has_an_output_and_no_other_word_for_it() -> None:
    shown = {name for _, long, _ in options() for name in long}
    assert not shown & {"--json", "--limit", "--count"}
    views = {words for words, long, _ in options() if "--output" in long}
    assert views >= {
        "consume", "dlq ls", "dlq show", "group create", "group describe", "group list", "group members", "group seek",
        "log cat", "log export", "log ls", "log repair", "log seal", "log tail", "log verify", "log where",
    }  # fmt: skip


def test_old_spellings_go_on_working(pxrs: Pxrs) -> None:
    old = {(words, *long, *short) for words, long, short in options(hidden=True)}
    assert old >= {
        ("consume", "--format", "-f"),
        ("dlq show", "--json"),
        ("log cat", "--limit", "--count"),
        ("log tail", "--limit", "--count"),
    }
    make_queue(pxrs, messages=5, partitions=1)
    assert pxrs("log", "cat", QUEUE, "--limit", 2).out == pxrs("log", "cat", QUEUE, "--max", 2).out != ""
    newest = pxrs("log", "tail", QUEUE, "--max", 2, "--no-follow").out
    assert pxrs("log", "tail", QUEUE, "--count", 2, "--no-follow").out == newest != ""
    one = [pxrs("consume", QUEUE, "-g", group, *words, "-n", 1).out for group, words in GROUPS.items()]
    assert json.loads(one[0])["offset"] == 0 and json.loads(one[1])["offset"] == 0


GROUPS = {"a": ("-o", "json"), "b": ("--format", "json")}


# ---- tables ---------------------------------------------------------------------------------------------------------

TABLES = {
    "group list": Table(["GROUP", "STATE", "MEMBERS", "TOTAL-LAG"], [["billing-of-orders", "Rebalancing", 16, OFFSET]]),
    "group describe": Table(
        ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "EPOCH"],
        [["billing", "orders", p, OFFSET, OFFSET, OFFSET, MEMBER, "worker-12", 123] for p in range(64)],
        once=("GROUP", "TOPIC"),
    ),
    "group describe, Spark": Table(
        ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "EPOCH",
         "ENGINE", "APP", "UI", "JVM"],
        [["billing", "orders", p, OFFSET, OFFSET, OFFSET, MEMBER, "worker-12", 123, "spark", "app-20260131120000-0001",
          "http://worker-12:4040", "12345"] for p in range(64)],
        once=("GROUP", "TOPIC"),
    ),
    "group members": Table(
        ["GROUP", "CONSUMER-ID", "HOST", "PID", "ENGINE", "STATE", "#PARTITIONS", "ASSIGNMENT", "LEADER"],
        [["billing", MEMBER, "worker-12", "1234567", "python", "draining", 32, str([*range(0, 64, 2)]), True]],
        once=("GROUP",),
    ),
    "group seek": Table(["PARTITION", "CURRENT", "NEW", "CHANGE"], [[63, OFFSET, OFFSET, -OFFSET]]),
    "group create": Table(["PARTITION", "CHECKPOINT", "LOG-END-OFFSET", "LAG"], [[63, OFFSET, OFFSET, OFFSET]]),
    "log ls": Table(
        ["PARTITION", "START", "END", "MESSAGES", "SEALED", "SEGMENTS", "BYTES", "OLDEST", "NEWEST"],
        [[63, OFFSET, OFFSET, OFFSET, 99, 99, OFFSET * 100, TIME, TIME]],
    ),
    "log cat": Table(["PARTITION", "OFFSET", "TIME", "KEY", "VALUE"], [[63, OFFSET, TIME, "acct-1234567", "x" * 500]]),
    "log where": Table(
        ["KEY", "HASH", "HASH-VALUE", "REDUCE", "PARTITIONS", "PARTITION"],
        [["acct-1234567" * 3, "xxh64-spark", -(2**63), "pmod", 64, 63]],
    ),
    "log repair": Table(["PARTITION", "ACTION", "FILE", "DETAIL"], [[63, "removed", PATH, "a leftover " * 9]]),
    "log seal": Table(
        ["PARTITION", "FILE", "START", "END", "MESSAGES", "BYTES"],
        [[63, "00000000009876543210.parquet", OFFSET, OFFSET, OFFSET, OFFSET]],
    ),
    "log export": Table(["PARTITION", "MESSAGES", "FILE"], [[63, OFFSET, PATH]]),
    "dlq ls": Table(
        ["NUMBER", "PARTITION", "OFFSET", "TIME", "KEY", "TRIES", "MEMBER", "RETRIED", "CAUSE"],
        [[123456, 63, OFFSET, TIME, "acct-1234567" * 2, 3, MEMBER, False, CAUSE]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_ordinary_names_fits_80_columns(name: str) -> None:
    text = rendered(TABLES[name], "table")
    assert max(map(len, text.splitlines())) <= WIDTH, text
    assert len(rendered(TABLES[name], "csv").splitlines()[0].split(",")) == len(TABLES[name].columns)


def test_columns_that_are_the_same_for_all_rows_are_printed_above_once() -> None:
    text = rendered(TABLES["group describe"], "table", {"GROUP": "billing", "STATE": "Stable"})
    head, _, body = text.partition("\n\n")
    assert head.splitlines() == ["GROUP  billing", "TOPIC  orders", "STATE  Stable"]
    assert body.split()[:6] == ["PARTITION", "CURRENT", "LOG-END", "LAG", "CONSUMER-ID", "EPOCH"]
    assert "billing" not in body and f"{OFFSET}  {OFFSET}  {MEMBER}" in body
    objects = json.loads(rendered(TABLES["group describe"], "json"))
    assert objects[0]["group"] == "billing" and objects[0]["host"] == "worker-12"


def test_a_table_that_fits_stays_as_it_is() -> None:
    table = Table(["PARTITION", "CURRENT-OFFSET", "HOST", "CAUSE"], [[1, 2, "h", TIME]])
    assert fitted(table) is table and fitted(Table(["A"])).as_text() == "A"


def test_long_texts_are_cut_where_they_say_least() -> None:
    shown = fitted(TABLES["log repair"]).rows[0]
    assert shown[2].startswith("…") and shown[2].endswith("9876543210.arrow") and shown[3].endswith("…")


def test_the_views_of_a_real_queue_fit(pxrs: Pxrs) -> None:
    make_queue(pxrs, messages=40, partitions=64)
    make_group(pxrs, "billing")
    with library.open(QUEUE, create=False) as queue, queue.consumer("billing", lambda _: None) as consumer:
        consumer.wait(0)
        views = (["group", "list"], ["group", "describe"], ["group", "members"], ["log", "ls"], ["log", "verify"])
        for words in views:
            named = ["billing"] if words[1] in ("describe", "members") else []
            shown = pxrs(*words, QUEUE, *named)
            assert shown.code == 0 and max(map(len, shown.out.splitlines())) <= WIDTH, shown.out
