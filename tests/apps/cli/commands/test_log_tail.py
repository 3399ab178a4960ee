"""log tail: the newest messages of all partitions, then those that come, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pxrs as library
from pxrs.apps.cli.values import timestamp
from tests.apps.cli.helpers import QUEUE, Pxrs, make_queue


def send(*values: str, partitions: int = 2) -> None:
    """One after the other, so that each is newer than those before it."""
    with library.open(QUEUE, partitions=partitions) as queue, queue.producer() as producer:
        for value in values:
            producer.send(None, value).result(20)


def test_the_newest_of_all_partitions_come_in_the_order_of_their_times(pxrs: Pxrs) -> None:
    make_queue(pxrs, partitions=2)
    send(*(f"m{number}" for number in range(30)))
    tail = ("log", "tail", QUEUE, "--no-follow", "-o")
    assert pxrs(*tail, "value").out.split() == [f"m{number}" for number in range(20, 30)]
    assert pxrs(*tail, "value", "-n", 3).out.split() == ["m27", "m28", "m29"]
    assert pxrs(*tail, "value", "-n", 0).out == ""
    assert len(pxrs(*tail, "value", "-n", 1_000).out.split()) == 30
    assert pxrs(*tail, "%p", "-p", 1, "-n", 2).out.split() == ["1", "1"]
    assert '"value": "m29"' in pxrs(*tail, "json", "-n", 1).out


def test_from_a_place_on(pxrs: Pxrs) -> None:
    make_queue(pxrs, partitions=1)
    send(*(f"m{number}" for number in range(6)), partitions=1)
    tail = ("log", "tail", QUEUE, "--no-follow", "-o", "value", "--from")
    assert pxrs(*tail, "4").out.split() == ["m4", "m5"]
    assert pxrs(*tail, "-1").out.split() == ["m5"]
    assert pxrs(*tail, "earliest", "-n", 2).out.split() == ["m0", "m1"]
    assert pxrs(*tail, "latest").out == ""
    with library.open(QUEUE) as queue:
        third = timestamp(queue.read(0, 3, 1)[0].timestamp_us)
    assert pxrs(*tail, third).out.split()[-3:] == ["m3", "m4", "m5"]
    assert pxrs(*tail, "soon").code == 2
    assert "99" in pxrs(*tail, "99").err
    assert pxrs("log", "tail", QUEUE, "-p", 7).code == 1


def test_with_a_count_it_ends_although_it_follows(pxrs: Pxrs) -> None:
    make_queue(pxrs, partitions=2)
    send("a", "b", "c")
    assert len(pxrs("log", "tail", QUEUE, "--from", "earliest", "-n", 2).out.splitlines()) == 2


@pytest.mark.processes
def test_what_comes_is_printed_at_once_and_ctrl_c_ends_it_cleanly(pxrs: Pxrs, tmp_path: Path) -> None:
    make_queue(pxrs, partitions=2)
    send("before")
    command = [sys.executable, "-m", "pxrs.apps.cli", "log", "tail", QUEUE, "-o", "value"]
    known = {name: value for name, value in os.environ.items() if not name.startswith("PXRS_")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=known
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            assert process.stdout.readline() == "before\n"
            for value in ("first", "second", "third"):
                send(value)
                assert process.stdout.readline() == f"{value}\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
            assert process.stdout.read() == "" and process.stderr.read() == ""
        finally:
            process.kill()
