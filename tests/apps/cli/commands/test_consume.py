"""consume, in processes of its own: --max, --until-end, --exec, failures, pipes, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pxrs as library
from tests.apps.cli.helpers import QUEUE, Pxrs, Result, make_queue

pytestmark = pytest.mark.processes
Process = Callable[..., Result]


@pytest.fixture(autouse=True)
def queue(pxrs: Pxrs) -> None:
    make_queue(pxrs, messages=40)


def numbers(shown: Result) -> list[int]:
    return [json.loads(line)["n"] for line in shown.out.splitlines()]


def lag(group: str) -> int:
    with library.open(QUEUE, create=False) as queue:
        return queue.group(group).describe().total_lag


def test_until_end_prints_everything_once_and_then_nothing(pxrs_process: Process) -> None:
    first = pxrs_process("consume", QUEUE, "-g", "billing", "--until-end")
    assert first.code == 0 and sorted(numbers(first)) == list(range(40)) and "handled 40 messages" in first.err
    again = pxrs_process("consume", QUEUE, "-g", "billing", "--until-end")
    assert again.code == 0 and again.out == "" and lag("billing") == 0


def test_max_takes_exactly_that_many_and_the_next_goes_on(pxrs_process: Process) -> None:
    parts = [pxrs_process("consume", QUEUE, "-g", "billing", "--max", most) for most in (1, 7, 32)]
    assert [part.code for part in parts] == [0, 0, 0]
    assert [len(part.out.splitlines()) for part in parts] == [1, 7, 32]
    assert sorted(n for part in parts for n in numbers(part)) == list(range(40))


def test_from_latest_begins_behind_what_is_there(pxrs_process: Process) -> None:
    assert pxrs_process("consume", QUEUE, "-g", "late", "--from", "latest", "--until-end").out == ""
    assert pxrs_process("consume", QUEUE, "-g", "time", "--from", "2020-01-01T00:00Z", "--max", 3).code == 0
    wrong = pxrs_process("consume", QUEUE, "-g", "x", "--from", "noon")
    assert wrong.code == 2 and "'noon' is no time" in wrong.err


def test_b27_until_end_does_not_pass_over_a_checkpoint_beyond_the_end(pxrs_process: Process) -> None:
    assert pxrs_process("consume", QUEUE, "-g", "billing", "--until-end").code == 0
    with library.open(QUEUE, create=False) as queue:
        queue.group("billing").registry.seek({2: 5_000}, {})
    shown = pxrs_process("consume", QUEUE, "-g", "billing", "--until-end")
    assert shown.code == 1 and "offset 5000 is ahead of the log" in shown.err and "handled" not in shown.err


def test_formats(pxrs_process: Process) -> None:
    shown = pxrs_process("consume", QUEUE, "-g", "a", "--until-end", "-f", "%p %o %k %v")
    for line in shown.out.splitlines():
        _, _, key, value = line.split(" ", 3)
        assert json.loads(value)["account"]["id"] == key
    as_json = pxrs_process("consume", QUEUE, "-g", "b", "--max", 1, "-f", "json")
    assert json.loads(as_json.out)["key"].startswith("acct-")
    assert pxrs_process("consume", QUEUE, "-g", "c", "-f", "xml").code == 2


def test_exec_gets_the_value_and_the_place(pxrs_process: Process, tmp_path: Path) -> None:
    command = 'read v; echo "$PXRS_PARTITION $PXRS_OFFSET $PXRS_KEY $v" >> seen'
    assert pxrs_process("consume", QUEUE, "-g", "billing", "--until-end", "--exec", command).code == 0
    lines = [line.split(" ", 3) for line in (tmp_path / "seen").read_text().splitlines()]
    assert sorted(json.loads(value)["n"] for *_, value in lines) == list(range(40))
    assert all(json.loads(value)["account"]["id"] == key for _, _, key, value in lines)


def test_a_failing_command_is_tried_again_and_then_dead_lettered(
    pxrs: Pxrs, pxrs_process: Process, tmp_path: Path
) -> None:
    command = 'read v; echo x >> tries; case "$v" in *"\\"n\\": 11,"*) echo no such account >&2; exit 4;; esac'
    shown = pxrs_process(
        "consume", QUEUE, "-g", "billing", "--until-end", "--exec", command, "--tries", 2, PXRS_BACKOFF_MS="1"
    )
    assert shown.code == 0 and "handled 39 messages, 1 went to the dead letters" in shown.err
    assert len((tmp_path / "tries").read_text().splitlines()) == 41
    letters = json.loads(pxrs("dlq", "ls", QUEUE, "billing", "-o", "json").out)
    assert len(letters) == 1 and letters[0]["tries"] == 2
    assert letters[0]["cause"].startswith("CommandFailed: exit code 4: no such account")


def test_a_failing_command_can_stop_the_consumer(pxrs_process: Process) -> None:
    shown = pxrs_process(
        "consume", QUEUE, "-g", "billing", "--exec", "exit 9", "--tries", 1, "--on-failure", "stop"
    )  # fmt: skip
    assert shown.code == 1 and "pxrs: error: " in shown.err and "exit code 9" in shown.err and lag("billing") == 40
    skipped = pxrs_process(
        "consume", QUEUE, "-g", "other", "--exec", "exit 9", "--tries", 1, "--on-failure", "skip", "--until-end"
    )
    assert skipped.code == 0 and "40 were skipped" in skipped.err and lag("other") == 0


def test_a_command_that_cannot_be_run_ends_it_and_no_message_is_to_blame(pxrs: Pxrs, pxrs_process: Process) -> None:
    shown = pxrs_process("consume", QUEUE, "-g", "billing", "--exec", "read v; nosuchcommand")
    assert shown.code == 1 and "handled 0 messages\n" in shown.err and lag("billing") == 40
    assert "pxrs: error: --exec cannot be run: exit code 127: " in shown.err
    assert pxrs("dlq", "ls", QUEUE, "billing", "-o", "json").out == "[]\n"


def test_a_reader_that_goes_away_ends_it_quietly_and_loses_nothing(pxrs_process: Process, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "pxrs.apps.cli", "consume", QUEUE, "-g", "billing"]
    ended = subprocess.run(command, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, timeout=120, text=True)
    os.close(writer)
    assert ended.returncode == 0 and "Traceback" not in ended.stderr and "BrokenPipe" not in ended.stderr
    shown = pxrs_process("consume", QUEUE, "-g", "billing", "--until-end")
    assert sorted(numbers(shown)) == list(range(40))


def redirected(tmp_path: Path, how: str, *words: str) -> Result:
    """A command whose streams the shell redirects or closes."""
    line = f'exec "$@" {how}'
    command = ["/bin/sh", "-c", line, "sh", sys.executable, "-m", "pxrs.apps.cli", *words]
    known = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=known)
    return Result(ended.returncode, ended.stdout, ended.stderr)


@pytest.mark.parametrize(
    ("how", "said"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")], ids=["full", "closed"]
)
def test_a_stdout_that_takes_nothing_ends_it_and_no_message_is_to_blame(
    pxrs: Pxrs, tmp_path: Path, how: str, said: str
) -> None:
    shown = redirected(tmp_path, how, "consume", QUEUE, "-g", "billing", "--until-end")
    assert shown.code == 1 and "handled 0 messages\n" in shown.err and lag("billing") == 40
    assert shown.err.endswith(f"pxrs: error: cannot write to stdout: {said}; the message at hand is not done\n")
    assert pxrs("dlq", "ls", QUEUE, "billing", "-o", "json").out == "[]\n"


@pytest.mark.parametrize(
    ("how", "words", "code", "said"),
    [
        (">&-", ["log", "ls", QUEUE], 1, "pxrs: error: stdout: Bad file descriptor\n"),
        (">&-", ["--help"], 1, "pxrs: error: stdout: Bad file descriptor\n"),
        (">/dev/full", ["log", "cat", QUEUE], 1, "pxrs: error: stdout: No space left on device\n"),
        ("<&-", ["produce", QUEUE], 1, "pxrs: error: cannot read stdin: Bad file descriptor (stored 0 of 0 sent"),
        ("2>&-", ["log", "ls", "file:./absent"], 1, ""),
        (">&- 2>&- <&-", ["log", "ls", QUEUE], 1, ""),
    ],
)
def test_closed_and_full_streams_are_named(tmp_path: Path, how: str, words: list[str], code: int, said: str) -> None:
    shown = redirected(tmp_path, how, *words)
    assert (shown.code, shown.out) == (code, "") and shown.err.startswith(said) and "Traceback" not in shown.err


def test_a_command_never_writes_into_a_file_of_the_queue(tmp_path: Path) -> None:
    """With a closed stdout, the first file that is opened would get its number, and the command would inherit it."""
    shown = redirected(
        tmp_path, ">&-", "consume", QUEUE, "-g", "billing", "--exec", "echo spoilt || true", "--until-end"
    )
    assert shown.code == 0 and lag("billing") == 0
    with library.open(QUEUE, create=False) as queue:
        assert sum(len(queue.read(partition, 0, 100)) for partition in range(4)) == 40
    assert not any(b"spoilt" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_ctrl_c_is_a_clean_leave(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pxrs.apps.cli", "consume", QUEUE, "-g", "billing", "--member", "A"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline() for _ in range(40)]
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=60)
    assert process.returncode == 0 and len(seen) == 40 and rest == "" and "handled 40 messages" in said
    with library.open(QUEUE, create=False) as queue:
        view = queue.group("billing").describe()
    assert view.total_lag == 0 and view.members == [] and all(line.owner is None for line in view)
