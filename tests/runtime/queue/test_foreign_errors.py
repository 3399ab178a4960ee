"""Settings and URLs that no parser likes are refused by our own errors, which name the thing and say what to do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pxrs
from pxrs.apps.cli import main
from pxrs.drivers import find_driver
from pxrs.errors import BadSetting, BadUrl, PxrsError, Refused
from pxrs.io.address import parse
from pxrs.logs.file.queue_file import directory_of
from pxrs.logs.jetstream.names import target_of
from pxrs.settings import Settings
from pxrs.stores.lockfiles.store import address_of

FILES: dict[str, tuple[bytes, str]] = {
    "a word as a number": (b"lease_ms: !!int x\n", "invalid literal"),
    "no number at all": (b"lease_ms: !!int ''\n", "not readable as YAML"),
    "a word as a date": (b"lease_ms: !!timestamp x\n", "not readable as YAML"),
    "a word as a truth": (b"lease_ms: !!bool x\n", "not readable as YAML"),
    "a list as a name": (b"? [a]\n: 1\n", "line 1: a list cannot be a name: write NAME: VALUE"),
    "a mapping as a name": (b"? {a: 1}\n: 1\n", "line 1: a dict cannot be a name"),
    "a deep nest": (b"lease_ms: " + b"[" * 20_000, "nested too deeply"),
    "a mapping that holds itself": (b"&a\n? *a\n: 1\n", "not readable"),
    "a large nest of few lines": (
        b"a: &a [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(b"%c: &%c [%s]\n" % (n + 1, n + 1, b",".join([b"*%c" % n] * 9)) for n in range(97, 109))
        + b"lease_ms: *m\n",
        "unknown setting 'a'",
    ),
    "a list": (b"- lease_ms\n", "expected names with values, found list"),
    "a word": (b"lease_ms\n", "expected names with values, found str"),
    "a tab": (b"a:\n\tb: 1\n", "not readable as YAML"),
    "a NUL": (b"lease_ms: 1\0\n", "not readable as YAML"),
    "no UTF-8": (b"prefix: /\xff/\n", "not readable as YAML"),
    "a number of many digits": (b"lease_ms: 0x" + b"f" * 9_000 + b"\n", "an? int of many digits: must be at most"),
    "a name of many digits": (b"? 0x" + b"f" * 9_000 + b"\n: 1\n", "unknown setting an? int of many digits"),
    "half a character": (b'prefix: "/\\ud800/"\n', "printable"),
    "a NUL in the prefix": (b'prefix: "/\\0/"\n', "printable"),
    "a date": (b"lease_ms: 2026-01-31\n", "must be int, not date"),
    "a list as a choice": (b"durability: [fsync]\n", "one of 'fsync', 'flush'"),
    "longer than any clock": (b"lease_ms: 99999999999999999999\n", "must be at most 9223372036854"),
}


@pytest.mark.parametrize("what", FILES)
def test_a_settings_file_that_is_wrong_is_refused_by_its_name(what: str, tmp_path: Path) -> None:
    content, said = FILES[what]
    (tmp_path / "pxrs.yaml").write_bytes(content)
    with pytest.raises(BadSetting, match=said) as caught:
        pxrs.load_settings(str(tmp_path / "pxrs.yaml"))
    assert "pxrs.yaml" in str(caught.value) and len(str(caught.value)) < 2_000


@pytest.mark.parametrize(
    "what", ["a word as a number", "a list as a name", "a deep nest", "no UTF-8", "half a character"]
)
def test_commands_say_it_in_short_and_end_with_2(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pxrs.yaml").write_bytes(FILES[what][0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PXRS_SETTINGS", "pxrs.yaml")
    assert main(["health", "file:./orders"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("pxrs: error: ") and "pxrs.yaml" in said and "Traceback" not in said


def test_a_path_that_is_none_is_refused() -> None:
    for path in ("a\0b", "\ud800"):
        with pytest.raises(BadSetting, match="readable"):
            pxrs.load_settings(path)


LONG = "x" * 64
URLS = {
    f"redis://{LONG}:1/0": "is no host name: its parts have 1 to 63 characters",
    f"redis://{LONG}.example:1/0": "1 to 63 characters",
    "redis://a..b:1/0": "1 to 63 characters",
    "redis://h\ud800:1/0": "lone surrogate",
    "redis://u:\udcff@h:1/0": "lone surrogate",
    "redis://h\0:1/0": "NUL",
    "redis://u%00:x@h:1/0": "NUL",
    "redis://[::1:1/0": "no IPv6 address in brackets",
    "redis://::1]:1/0": "no IPv6 address in brackets",
    "redis://[1.2]:1/0": "no IPv6 address in brackets",
    "redis://::1:6379/0": "write IPv6 in brackets",
    "redis://h:99999/0": "ports go from 1 to 65535",
    f"redis://h:{'9' * 5_000}/0": "ports go from 1 to 65535",
    "redis://h i:1/0": "is no host name",
    f"redis://127.0.0.1:1/0?timeout_ms={'9' * 5_000}": "a whole number from 1 to",
}


@pytest.mark.parametrize("url", URLS, ids=lambda url: repr(url[:30]))
def test_a_url_that_no_resolver_takes_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for scheme in ("redis", "postgresql", "mysql", "etcd", "nats"):
        with pytest.raises(BadUrl, match=URLS[url]):
            pxrs.open(log="memory:", registry=url.replace("redis", scheme), partitions=1)
    assert main(["health", "memory:", "--registry", url]) == 2
    said = capsys.readouterr().err
    assert said.startswith("pxrs: error: ") and "Traceback" not in said


@pytest.mark.parametrize("host", [LONG, "a..b", "h\ud800", "h\0", "[::1", "::1]", "h:99999", f"h:{'9' * 5_000}"])
def test_a_log_on_such_a_host_is_refused(host: str) -> None:
    with pytest.raises(BadUrl):
        pxrs.open(log=f"nats://{host}/orders", registry="memory:")


@pytest.mark.parametrize("url", ["file:./a\0b", "file:./\ud800/b", "sqlite:a\0b", "sqlite:\ud800", "memory:\0"])
def test_a_path_that_cannot_be_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused):
        pxrs.open(url)
    with pytest.raises(Refused):
        pxrs.open(log="memory:", registry=url)


TEXT = st.text(st.characters(codec=None), max_size=40)
PIECES = st.sampled_from(
    [*":/@?#[].,%=&", "%00", "%", "::1", "127.0.0.1", "99999", "x" * 64, "\0", "\ud800", "é", "timeout_ms="]
)
TAILS = st.lists(PIECES | TEXT, max_size=8).map("".join)
PARSERS: dict[str, Callable[[str], object]] = {
    "server": lambda tail: parse(f"redis://{tail}", 1, ("prefix",)).timeout(Settings()),
    "jetstream": lambda tail: target_of(f"nats:{tail}"),
    "file": lambda tail: directory_of(f"file:{tail}"),
    "lock files": lambda tail: address_of(f"lockfiles:{tail}"),
    "any": lambda tail: find_driver("pxrs.stores", tail),
}


@pytest.mark.parametrize("parser", PARSERS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(tail=TAILS)
def test_any_text_as_a_url_is_taken_or_refused(parser: str, tail: str) -> None:
    with suppress(PxrsError):
        PARSERS[parser](tail)


WORDS = [
    "lease_ms", "prefix", "durability", ": ", ": ", "1", "-1", "x", "!!int ", "!!float ", "!!binary ", "!!set ",
    "!!omap ", "!!timestamp ", "!!python/none ", "? ", "- ", "[", "]", "{", "}", "&a ", "*a", "<<", "'", '"', "#", ">",
    "1e999", ".nan", "0x", "1:2:3", "2026-13-45", "---", "...", "\\ud800", "\n", "\n", "\t", "%YAML 9\n",
]  # fmt: skip
YAML = st.lists(st.sampled_from(WORDS) | TEXT, max_size=12).map("".join)


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=YAML)
def test_any_text_as_settings_is_taken_or_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pxrs.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with suppress(BadSetting):
        assert isinstance(pxrs.load_settings(str(path), {}), Settings)
