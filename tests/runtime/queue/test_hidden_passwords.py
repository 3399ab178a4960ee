"""No error, log line or repr shows the password of a URL, however the URL is mistyped."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pxrs
from pxrs.apps.cli import main
from pxrs.apps.cli.app import VERBS
from pxrs.apps.cli.commands.work.member import Order
from pxrs.drivers import find_driver
from pxrs.errors import PxrsError, masked, masked_url
from pxrs.io.address import parse
from pxrs.runtime.queue.urls import QueueUrls, open_store
from pxrs.settings import Settings

SECRET = "geheim"

URLS = {
    "one slash": "SCHEME:/u:geheim@127.0.0.1:1/db",
    "no colon": "SCHEME//u:geheim@127.0.0.1:1/db",
    "no slashes": "SCHEME:u:geheim@127.0.0.1:1/db",
    "no user": "SCHEME:/:geheim@127.0.0.1:1/db",
    "no scheme": "u:geheim@127.0.0.1:1/db",
    "nothing but a password": ":geheim@127.0.0.1:1",
    "two at signs": "SCHEME:/u:ge@geheim@127.0.0.1:1/db",
    "an at sign behind the place": "SCHEME://u:ge/geheim@127.0.0.1:1/db",
    "a question mark in the password": "SCHEME://u:ge?geheim@127.0.0.1:99999/db",
    "a hash in the password": "SCHEME://u:ge#geheim@127.0.0.1:99999/db",
    "a wrong port": "SCHEME://u:geheim@127.0.0.1:99999/db",
    "a port of letters": "SCHEME://u:geheim@127.0.0.1:port/db",
    "no at sign": "SCHEME://u:geheim",
    "no at sign, and a place": "SCHEME://u:geheim/db",
    "a long label": f"SCHEME://u:geheim@{'x' * 64}:1/db",
    "a password as an option": "SCHEME://127.0.0.1:99999/db?password=geheim",
    "a token as an option": "SCHEME://127.0.0.1:99999/db?user=u&access_token=geheim",
    "a scheme in capitals": "SCHEME:/U:geheim@127.0.0.1:1/db?Password=geheim",
    "a NUL": "SCHEME://u:geheim\0@127.0.0.1:1/db",
    "a lone surrogate": "SCHEME://u:geheim\ud800@127.0.0.1:1/db",
}
SERVERS = ("postgresql", "etcd", "redis", "nats", "kafka")


def _sql_sink(url: str) -> object:
    from pxrs.sinks import SqlSink

    return SqlSink(url, "bills")


def _spark_read(url: str) -> None:
    from pxrs.spark.read.options import parse as parse_read
    from pxrs.spark.read.ranges import open_log

    with pytest.raises(PxrsError) as both:
        parse_read({"path": url, "pxrs.log": f"{url}x"})
    assert SECRET not in str(both.value)
    request = parse_read({"path": url})
    assert SECRET not in repr(request)
    open_log(request.log)


def _spark_stream(url: str) -> None:
    from pxrs.spark.read.options import parse_stream
    from pxrs.spark.stream.member import open_for

    given = {"path": "file:./orders", "pxrs.group.id": "billing", "pxrs.registry": url}
    request = parse_stream(given)
    assert SECRET not in repr(request)
    open_for(request)


def _spark_write(url: str) -> None:
    from pxrs.logs.base import OpenOptions
    from pxrs.spark.write.commit import open_log
    from pxrs.spark.write.writer import parse_sink

    with pytest.raises(PxrsError) as both:
        parse_sink({"path": url, "pxrs.log": f"{url}x"}, False)
    assert SECRET not in str(both.value)
    request = parse_sink({"path": url, "partitions": "2"}, False)
    assert SECRET not in repr(request)
    open_log(request.log, OpenOptions(), Settings(), create=False)


DOORS: dict[str, Callable[[str], object]] = {
    "open": lambda url: pxrs.open(url),
    "open a log": lambda url: pxrs.open(log=url, registry="memory:"),
    "open a registry": lambda url: pxrs.open(log="memory:", registry=url, partitions=1),
    "require": lambda url: pxrs.open(log="memory:", registry=url, require="durable"),
    "a store": lambda url: open_store(url, Settings()),
    "whether a store is there": lambda url: find_driver("pxrs.stores", url).exists(url),
    "a SQL sink": _sql_sink,
    "a source of Spark": _spark_read,
    "a stream of Spark": _spark_stream,
    "a writer of Spark": _spark_write,
}


@pytest.mark.parametrize("door", DOORS)
def test_a_mistyped_url_does_not_show_its_password(
    door: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for form, url in URLS.items():
        for scheme in SERVERS:
            with caplog.at_level(logging.DEBUG):
                seen = _outcome(DOORS[door], url.replace("SCHEME", scheme))
            assert SECRET not in seen + caplog.text, (form, scheme)


def _outcome(call: Callable[[str], object], url: str) -> str:
    """What somebody sees who calls this: the result's repr, or the whole chain of errors, without lines of code."""
    try:
        return repr(call(url))
    except PxrsError as error:
        return "".join(_chain(error)) + repr(error)


def _chain(error: BaseException | None) -> list[str]:
    if error is None:
        return []
    texts = traceback.format_exception_only(error)
    return texts + _chain(error.__cause__) + _chain(None if error.__suppress_context__ else error.__context__)


def _command(words: str, url: str) -> list[str]:
    """The command with this URL as its queue, and whatever else it must have."""
    more = {
        "consume": ["-g", "billing"], "group describe": ["billing"], "group members": ["billing"],
        "group seek": ["billing", "--to-latest"], "group create": ["billing"], "group pause": ["billing"],
        "group resume": ["billing"], "group delete": ["billing"], "member evict": ["billing", "A"],
        "member drain": ["billing", "A"], "log export": ["out"], "dlq ls": ["billing"], "dlq show": ["billing", "0"],
        "dlq retry": ["billing", "--all"], "import": ["in"], "registry copy": [url], "registry load": ["rows"],
    }  # fmt: skip
    if words == "log where":
        return ["log", "where", "k", url]
    if words == "work":
        return ["work", "app:handle", url, "-g", "billing"]
    return [*words.split(), url, *more.get(words, [])]


@pytest.mark.parametrize("words", [verb.words for verb in VERBS if verb.words not in ("run", "demo", "spark pyfiles")])
def test_no_command_shows_a_password(
    words: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text("def handle(message):\n    pass\n")
    for more in ([], ["--debug"]) if words == "work" else ([], ["u:geheim@h/0"], ["--registry", "redis//u:geheim@h/0"]):
        assert main([*_command(words, "redis:/u:geheim@h/0"), *more]) != 0
    captured = capfd.readouterr()
    assert SECRET not in captured.out + captured.err and "pxrs" in captured.err


@pytest.mark.parametrize("words", [["--redis://u:geheim@h"], ["--partitions", "u:geheim@h/0"], ["--debug"]])
def test_what_the_command_line_says_of_wrong_words_holds_no_password(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "redis:/u:geheim@h/0", *words]) == 2
    said = capsys.readouterr().err
    assert SECRET not in said and "rror: " in said


def test_reprs_hold_no_password() -> None:
    url = "redis://u:geheim@h:1/0?password=geheim"
    order: Any = dict.fromkeys(Order.__dataclass_fields__)
    holders = [QueueUrls(url, url, masked_url(url), False), parse("mysql://u:geheim@h/db?password=geheim", 1, (), True)]
    assert SECRET not in repr([*holders, Order(**order | {"url": url, "registry": url})])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://u:geheim@h:1/0 does not answer", "redis://u:***@h:1/0 does not answer"),
        ("redis://u:ge@heim@h:1/0", "redis://u:***@h:1/0"),
        ("redis://h:1/0?token=geheim&x=1", "redis://h:1/0?token=***&x=1"),
        ("redis://h:1/0?password_file=/run/secrets/p", "redis://h:1/0?password_file=/run/secrets/p"),
        ("file:./a@b/orders", "file:./a@b/orders"),
        ("write to me@example.org", "write to me@example.org"),
        ("offset 5 at 12:30", "offset 5 at 12:30"),
    ],
)
def test_the_rest_of_a_text_stays(text: str, shown: str) -> None:
    assert masked(text) == shown
