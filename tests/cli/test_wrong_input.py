"""What a newcomer types wrongly is refused with what to write instead, and nothing else happens."""

from __future__ import annotations

import sys

import pytest

from pxrs.errors import BadUrl
from pxrs.plugins import find_driver

from .helpers import QUEUE, Pxrs, make_queue

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
    ],
)
def test_it_is_refused_as_wrong_usage(pxrs: Pxrs, words: list[str], said: str) -> None:
    make_queue(pxrs, messages=2)
    shown = pxrs(*words)
    assert shown.code == 2 and said in shown.err and "unexpected" not in shown.err


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
    for name in [name for name in sys.modules if name.startswith("pxrs.stores.sql")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(BadUrl, match=rf"needs the package sqlalchemy: pip install 'pxrs\[{extra}\]'"):
        find_driver("pxrs.stores", f"{scheme}://host/db")
