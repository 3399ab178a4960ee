"""``pxrs metrics``: all groups as Prometheus text, printed and served."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.apps.cli.helpers import QUEUE, Pxrs, make_group, make_queue


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_lag_of_a_group_without_members_is_printed(pxrs: Pxrs) -> None:
    make_queue(pxrs, messages=9, partitions=1)
    make_group(pxrs, "billing")
    shown = pxrs("metrics", QUEUE)
    assert shown.code == 0 and shown.err == ""
    lines = shown.out.splitlines()
    assert 'pxrs_group_lag_messages{group="billing",partition="0",queue="orders"} 9.0' in lines
    assert 'pxrs_group_members{group="billing",queue="orders",state="dead"} 0.0' in lines
    assert 'pxrs_group_dead_letters{group="billing",queue="orders"} 0.0' in lines
    assert "# TYPE pxrs_group_lag_messages gauge" in lines


def test_they_are_served_until_sigterm(pxrs: Pxrs, tmp_path: Path) -> None:
    make_queue(pxrs, messages=9, partitions=1)
    make_group(pxrs, "billing")
    port = free_port()
    command = [sys.executable, "-m", "pxrs.apps.cli", "metrics", QUEUE, "--listen", str(port)]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert f"http://127.0.0.1:{port}/metrics" in process.stderr.readline()
            for _ in range(2):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                    assert b'pxrs_group_lag_messages{group="billing",partition="0",queue="orders"} 9.0' in answer.read()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("address", ["port", "127.0.0.1:", ":70000", "0", "localhost"])
def test_what_is_no_address_is_refused(pxrs: Pxrs, address: str) -> None:
    make_queue(pxrs)
    refused = pxrs("metrics", QUEUE, "--listen", address)
    assert refused.code == 2 and "0.0.0.0:9100" in refused.err


def test_an_address_that_is_taken_is_named(pxrs: Pxrs) -> None:
    make_queue(pxrs)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = pxrs("metrics", QUEUE, "--listen", f"127.0.0.1:{port}")
    assert refused.code == 1 and f"127.0.0.1:{port}: Address already in use; name another port" in refused.err
