"""Wrong input is refused with what to write instead, and nothing else happens."""

from __future__ import annotations

import sys

import pytest

import pxrs as library
from pxrs.apps.cli.commands.consume import refuse_unknown
from pxrs.drivers import find_driver
from pxrs.errors import BadUrl
from tests.apps.cli.helpers import QUEUE, Pxrs, make_queue

HUGE = "9" * 23


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["consume", QUEUE, "-g", "g", "--exec", " "], "name a command"),
        (["work", "app:handle", QUEUE, "-g", "g", "--processes", HUGE], "--processes"),
        (["produce", QUEUE, "--skip", HUGE], "--skip"),
        (["group", "seek", QUEUE, "g", "--by-duration", f"{HUGE}w"], "too long a duration"),
        (["group", "describe", QUEUE, "g", "-w", "--every", "0s"], "at least 0.1 s"),
        (["dlq", "retry", QUEUE, "g", "0", "--all"], "not both"),
        (
            ["consume", QUEUE, "-g", "g", "--until-end", "--exec", "nosuchcommand {} | cat"],
            "there is no command 'nosuchcommand'",
        ),
        (
            ["consume", QUEUE, "-g", "g", "--until-end", "--exec", "./orders/queue.json"],
            "there is no command './orders/queue.json'",
        ),
        (["consume", QUEUE, "-g", "g", "--until-end", "--tries", "3"], "--tries says how often to try --exec"),
        (["produce", QUEUE, "-H", "=x"], "it has no name; write NAME=VALUE"),
        (["log", "cat", QUEUE, "--offset", HUGE], "an offset is less than"),
        (["log", "tail", QUEUE, "--no-follow", "--from", HUGE], "an offset is less than"),
        (["group", "seek", QUEUE, "g", "--to-offset", HUGE], "--to-offset"),
        (["log", "export", QUEUE, ""], "name a directory"),
        (["init", "memory:"], "lives only in this process"),
        (["import", "memory:", "orders/queue.json"], "lives only in this process"),
        (["init", "file:orders/queue.json"], "queue.json is a file, and a queue is a directory"),
        (["produce", "file:orders/queue.json/more"], "queue.json is a file, and a queue is a directory"),
        (["group", "create", QUEUE, "a b"], "group name 'a b' is not usable"),
        (["consume", QUEUE, "-g", "g", "--member", "a b"], "member name 'a b' is not usable"),
        (["member", "evict", QUEUE, "g", "a b"], "member name 'a b' is not usable"),
        (["member", "drain", QUEUE, "g", "a b"], "member name 'a b' is not usable"),
        (["init", "file:./a b"], "queue name 'a b' is not usable"),
    ],
)
def test_it_is_refused_as_wrong_usage(pxrs: Pxrs, words: list[str], said: str) -> None:
    make_queue(pxrs, messages=2)
    shown = pxrs(*words)
    assert shown.code == 2 and said in shown.err and "unexpected" not in shown.err


def test_a_file_is_no_directory_to_export_to(pxrs: Pxrs) -> None:
    make_queue(pxrs, messages=2)
    shown = pxrs("log", "export", QUEUE, "orders/queue.json")
    assert shown.code == 1 and "queue.json is a file: name a directory" in shown.err


@pytest.mark.parametrize(
    "command", ["cat", "cat | cat", "if true; then cat; fi", "A=1 nosuch", "f () { cat; }; f", ": x"]
)
def test_what_the_shell_knows_or_alone_can_judge_is_left_to_it(command: str) -> None:
    refuse_unknown(command)


def test_a_seek_to_before_all_times_is_one_to_the_beginning(pxrs: Pxrs) -> None:
    make_queue(pxrs, messages=2)
    assert pxrs("group", "create", QUEUE, "g", "--at", "latest").code == 0
    assert pxrs("group", "seek", QUEUE, "g", "--by-duration", "9999999d", "--execute").code == 0
    assert pxrs("group", "describe", QUEUE, "g", "--fail-if-lag", "1").code == 3


def test_a_directory_is_no_zip_to_write(pxrs: Pxrs) -> None:
    shown = pxrs("spark", "pyfiles", ".")
    assert shown.code == 1 and "is a directory: name the zip to write" in shown.err


@pytest.mark.parametrize(("scheme", "extra"), [("postgresql", "postgres"), ("mysql", "mysql")])
def test_a_package_that_is_missing_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, scheme: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name.startswith("pxrs.stores.sql.store")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(BadUrl, match=rf"needs the package sqlalchemy: pip install 'pxrs\[{extra}\]'"):
        find_driver("pxrs.stores", f"{scheme}://host/db")


def test_a_skip_behind_the_end_of_the_input_says_so(pxrs: Pxrs) -> None:
    make_queue(pxrs)
    shown = pxrs("produce", QUEUE, "--skip", "3", stdin="a\nb\n")
    assert shown.code == 0 and "no message behind the first 3" in shown.err


def test_a_header_of_any_bytes_is_sent_as_it_was_typed(pxrs: Pxrs) -> None:
    make_queue(pxrs)
    assert pxrs("produce", QUEUE, "--header", "trace=\udcff", stdin="a\n").code == 0
    with library.open(QUEUE, create=False) as queue:
        found = [message for partition in range(4) for message in queue.read(partition, 0)]
    assert [message.headers["trace"] for message in found] == [b"\xff"]
