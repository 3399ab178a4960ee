"""URLs of servers: taken apart, with credentials from three places, and never showing them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

import pxrs
from pxrs.errors import BadSetting, BadUrl, Refused, masked
from pxrs.io.address import Address, parse
from pxrs.settings import Settings


def test_all_parts_are_found() -> None:
    found = parse("redis://me:se%2Fcret@h1:1,h2,[::1]:3/a%20place?prefix=x&timeout_ms=50", 99, ["prefix"])
    assert found.hosts == (("h1", 1), ("h2", 99), ("::1", 3)) and found.servers == ["h1:1", "h2:99", "[::1]:3"]
    assert (found.place, found.user, found.password) == ("a place", "me", "se/cret")
    assert found.options == {"prefix": "x", "timeout_ms": "50"} and found.timeout(Settings()) == 0.05


def test_without_a_host_it_is_this_machine() -> None:
    assert parse("etcd:///place", 2379).hosts == (("127.0.0.1", 2379),)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis:6379", "has no host: write redis://host:6379/place"),
        ("redis://h:port/0", r"'h:\*\*\*' is no host and port"),
        ("redis://h:70000", "no host and port"),
        ("redis://h?prefx=a", "no option 'prefx'; there are ca, cert"),
        ("redis://me:12/ab@h", r"me:\*\*\*@h.*'@' behind the hosts.*%2F"),
        ("redis://me:pa?ss@h", r"me:\*\*\*@h.*'@' behind the hosts"),
    ],
)
def test_what_is_wrong_is_named(url: str, said: str) -> None:
    with pytest.raises(BadUrl, match=said):
        parse(url, 6379, ["prefix"])


@pytest.mark.parametrize(("name", "value"), [("tls", "maybe"), ("timeout_ms", "0"), ("timeout_ms", "soon")])
def test_a_value_that_makes_no_sense_is_refused(name: str, value: str) -> None:
    found = parse(f"redis://h?{name}={value}", 1)
    with pytest.raises(BadUrl, match=f"{name} = '{value}'"):
        found.timeout(Settings()) if name == "timeout_ms" else found.tls


def test_credentials_come_from_the_url_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PXRS_REGISTRY_USER", "env-user")
    monkeypatch.setenv("PXRS_REGISTRY_PASSWORD", "env-password")
    (tmp_path / "secret").write_text("file-password\n")
    assert (parse("redis://h", 1).user, parse("redis://h", 1).password) == ("env-user", "env-password")
    from_file = parse(f"redis://h?password_file={tmp_path}/secret", 1)
    assert (from_file.user, from_file.password) == ("env-user", "file-password")
    (tmp_path / "secret").write_text("rotated")
    assert from_file.password == "rotated"
    assert parse("redis://me:own@h", 1).password == "own"
    with pytest.raises(BadUrl, match=r"password_file of redis://h:1/: .*missing cannot be read"):
        _ = parse(f"redis://h?password_file={tmp_path}/missing", 1).password


def test_a_password_is_never_shown() -> None:
    found = parse("redis://me:hush@h/0", 1)
    assert "hush" not in repr(found) + str(found)
    for text in ("redis://me:hush@h/0", "cannot reach postgresql://me:hu@sh@h:1/db?x=1 today", "nats://:hush@h",
                 "mysql://h/db?user=a&password=hush&x=1", "redis://me:hu#sh@h/0", "redis://me:hu?sh@h",
                 "nats://me:hu/sh@h/q"):  # fmt: skip
        shown = masked(text)
        assert "hu" not in shown and "***" in shown
    assert masked("file:./orders?x=1 etcd://h1:1,h2:2/p") == "file:./orders?x=1 etcd://h1:1,h2:2/p"


def test_tls_is_asked_for_by_a_flag_or_by_its_files(tmp_path: Path) -> None:
    assert Address("redis", (("h", 1),)).tls_context() is None
    asked = parse("redis://h?tls=true&tls_verify=false", 1).tls_context()
    assert asked is not None and asked.verify_mode is ssl.CERT_NONE
    assert parse("redis://h?tls=yes", 1).tls_context().verify_mode is ssl.CERT_REQUIRED  # type: ignore[union-attr]
    with pytest.raises(BadUrl, match="certificates cannot be loaded"):
        parse(f"redis://h?ca={tmp_path}/none.pem", 1).tls_context()


def test_a_guarantee_can_be_required_by_name() -> None:
    pxrs.open("memory:", require=["linearizable", "atomic-rows"]).close()
    with pytest.raises(Refused, match="'memory:' does not guarantee ACROSS_HOSTS, DURABLE"):
        pxrs.open("memory:", require=["durable", pxrs.Guarantee.ACROSS_HOSTS])
    with pytest.raises(BadSetting, match="'forever': there is no such guarantee; there are durable"):
        pxrs.open("memory:", require=["forever"])
