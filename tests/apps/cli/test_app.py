"""Help, usage errors, exit codes, PXRS_URL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pxrs.apps.cli import app
from pxrs.apps.cli.app import VERBS, Verb
from pxrs.apps.cli.commands import init as create
from tests.apps.cli.helpers import QUEUE, Pxrs, make_group, make_queue


def test_help_lists_every_verb_with_an_example(pxrs: Pxrs) -> None:
    shown = pxrs("--help")
    assert shown.code == 0
    for verb in VERBS:
        assert f"\n  {verb.words.split()[0]} " in shown.out
        assert verb.example in shown.out
        assert verb.example.startswith(f"pxrs {verb.words}")


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.words)
def test_each_verb_has_help_with_its_example(pxrs: Pxrs, verb: Verb) -> None:
    shown = pxrs(*verb.words.split(), "--help")
    assert shown.code == 0
    assert verb.example in shown.out
    assert verb.function.__doc__ is not None
    assert verb.function.__doc__.split(".")[0].split("\n")[0] in " ".join(shown.out.split())


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("pxrs gr", {"group"}),
        ("pxrs group de", {"describe", "delete"}),
        ("pxrs group describe --fail", {"--fail-if-lag"}),
        ("pxrs log cat --ke", {"--key"}),
    ],
)
@pytest.mark.parametrize("url", ["", QUEUE])
def test_the_shell_completes_verbs_and_options(
    pxrs: Pxrs, monkeypatch: pytest.MonkeyPatch, typed: str, offered: set[str], url: str
) -> None:
    monkeypatch.setenv("_PXRS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    monkeypatch.setenv("PXRS_URL", url)
    assert set(pxrs().out.split()) == offered


def test_the_script_for_completion_is_printed(pxrs: Pxrs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    assert "_PXRS_COMPLETE=complete_bash" in pxrs("--show-completion").out


def test_without_a_verb_help_is_shown_and_the_usage_is_wrong(pxrs: Pxrs) -> None:
    shown = pxrs()
    assert shown.code == 2 and "Usage: pxrs" in shown.out + shown.err


def test_version_is_printed(pxrs: Pxrs) -> None:
    import pxrs as library

    assert pxrs("--version") == (0, f"{library.__version__}\n", "")


@pytest.mark.parametrize(
    "words",
    [("frobnicate",), ("group", "frobnicate"), ("init",), ("init", QUEUE, "--partitions", "many"), ("log", "ls")],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(pxrs: Pxrs, words: tuple[str, ...]) -> None:
    shown = pxrs(*words)
    assert shown.code == 2 and shown.out == "" and "Usage" in shown.err


@pytest.mark.parametrize(
    "words",
    ["group list", "log ls", "log cat", "log verify", "health", "produce", "registry dump", "dlq ls {} g"],
)
def test_a_missing_queue_is_one_line_that_names_init(pxrs: Pxrs, words: str) -> None:
    command = words.format(QUEUE) if "{}" in words else f"{words} {QUEUE}"
    shown = pxrs(*command.split())
    assert shown.code == 1 and shown.out == ""
    assert shown.err.startswith("pxrs: error: ") and shown.err.count("\n") == 1 and "pxrs init" in shown.err


def test_a_url_without_a_driver_is_an_error(pxrs: Pxrs) -> None:
    shown = pxrs("init", "carrier-pigeon:coop", "--registry", "memory:")
    assert shown.code == 2 and "no driver for 'carrier-pigeon'" in shown.err
    assert "is no URL" in pxrs("init", "orders").err


def test_the_queue_may_come_from_the_environment(pxrs: Pxrs, monkeypatch: pytest.MonkeyPatch) -> None:
    make_queue(pxrs, messages=3)
    make_group(pxrs, "billing")
    monkeypatch.setenv("PXRS_URL", QUEUE)
    assert "billing" in pxrs("group", "list").out
    assert "TOTAL-LAG" in pxrs("group", "describe", "billing").out
    assert pxrs("group", "describe").code == 2
    assert pxrs("group", "describe", "file:./elsewhere", "billing").code == 1


def test_an_unexpected_error_shows_its_stack_only_when_asked(pxrs: Pxrs, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: Any, **__: Any) -> None:
        raise KeyError("the moon")

    monkeypatch.setattr(create, "opened", explode)
    quiet, loud = pxrs("init", QUEUE), pxrs("init", QUEUE, "--debug")
    assert quiet.code == loud.code == 1
    assert quiet.err == "pxrs: error: unexpected KeyError: 'the moon'; `pxrs --debug ...` shows where\n"
    assert "Traceback" in loud.err and "explode" in loud.err


def test_an_interrupt_before_the_command_begins_is_quiet(pxrs: Pxrs, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "build", interrupt)
    try:
        assert pxrs("--version") == (130, "", "")
    except KeyboardInterrupt:  # it would end all tests, not this one
        pytest.fail("the interrupt got through")


@pytest.mark.processes
@pytest.mark.parametrize("words", [("--version",), ("log", "cat", QUEUE)], ids=" ".join)
def test_a_full_disk_behind_stdout_is_one_plain_line(pxrs: Pxrs, words: tuple[str, ...], tmp_path: Path) -> None:
    make_queue(pxrs, messages=2_000)
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "pxrs.apps.cli", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            timeout=60,
        )
    assert ended.returncode == 1 and ended.stderr.decode().count("\n") == 1
    assert ended.stderr.startswith(b"pxrs: error: ") and b"No space left on device" in ended.stderr
    assert b"unexpected" not in ended.stderr


def test_the_script_is_installed_and_module_and_script_are_the_same() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pxrs.apps.cli", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.strip() and callable(app.run)
