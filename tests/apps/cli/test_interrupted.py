"""Commands that are cut short: by a signal in the middle of sending, or by a reader that has seen enough."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pxrs as library
from pxrs.errors import Unavailable
from pxrs.logs.file.log import FileLog
from pxrs.runtime.producer.producer import Producer
from tests.apps.cli.helpers import QUEUE, Pxrs, make_queue

DEADLINE = 60.0


def wait_for(messages: int) -> None:
    ends = time.monotonic() + DEADLINE
    with library.open(QUEUE, create=False) as queue:
        while sum(queue.ends().values()) < messages:
            assert time.monotonic() < ends, f"{messages} messages did not arrive"
            time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_produce_says_how_many_are_stored(pxrs: Pxrs, tmp_path: Path, number: int) -> None:
    make_queue(pxrs, partitions=1)
    command = [sys.executable, "-m", "pxrs.apps.cli", "produce", QUEUE, "--skip", "1"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, text=True, **pipes) as process:  # type: ignore[call-overload]
        process.stdin.write("one\ntwo\nthree\nfou")  # the last line has not ended yet: it is no message
        process.stdin.flush()
        wait_for(2)
        process.send_signal(number)
        assert process.wait(DEADLINE) == 130
        assert process.stderr.read() == "pxrs: interrupted: stored 2 of 2 sent; to go on behind them: --skip 3\n"
        assert process.stdout.read() == ""
    assert pxrs("produce", QUEUE, "--skip", 3, stdin="one\ntwo\nthree\nfour\n").code == 0
    assert pxrs("log", "cat", QUEUE, "-o", "%v").out.split() == ["two", "three", "four"]


def test_a_produce_that_fails_says_how_many_are_stored(pxrs: Pxrs, monkeypatch: pytest.MonkeyPatch) -> None:
    make_queue(pxrs)

    def fail(*_: object) -> None:
        raise Unavailable("the log is away")

    monkeypatch.setattr(Producer, "flush", fail)
    monkeypatch.setattr(Producer, "stored", 1)
    shown = pxrs("produce", QUEUE, "--skip", 1, stdin="a\nb\nc\n")
    assert shown.err == "pxrs: error: the log is away (stored 1 of 2 sent; to go on behind them: --skip 2)\n"


def test_ctrl_c_does_not_wait_for_a_log_that_is_away(pxrs: Pxrs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody loses patience at its first try; the log would be asked for a minute."""
    make_queue(pxrs, messages=3)
    asked: list[int] = []

    def fail(*_: object) -> None:
        if not asked:
            asked.append(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        raise Unavailable("the log is away")

    monkeypatch.setattr(FileLog, "_store", fail)
    shown = pxrs("produce", QUEUE, stdin="a\nb\n")
    assert shown.code == 130 and "stored 0 of 2 sent; to go on behind them: --skip 0" in shown.err


@pytest.mark.processes
@pytest.mark.parametrize("words", [["log", "tail", QUEUE], ["group", "describe", QUEUE, "billing", "--watch"]])
def test_sigterm_is_the_usual_end_of_what_has_no_other(pxrs: Pxrs, tmp_path: Path, words: list[str]) -> None:
    make_queue(pxrs, messages=3)
    assert pxrs("group", "create", QUEUE, "billing").code == 0
    command = [sys.executable, "-m", "pxrs.apps.cli", *words]
    with subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE) == 0 and process.stderr.read() == ""


def test_a_reader_that_has_seen_enough_is_no_failure(pxrs: Pxrs, tmp_path: Path) -> None:
    make_queue(pxrs, messages=2_000)
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "pxrs.apps.cli", "log", "cat", QUEUE]
    ended = subprocess.run(command, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, timeout=DEADLINE, text=True)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "")
