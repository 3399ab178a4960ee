"""The same story on every registry: three consumer processes, one killed -9, nothing lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pxrs.testing.servers.postgres import PostgresServer

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SERVERS = {
    "postgresql": "postgres_server",
    "mysql": "mariadb_server",
    "etcd": "etcd_server",
    "redis": "valkey_server",
    "nats": "nats_server",
}
FILES: dict[str, Callable[[Path], str]] = {"lockfiles": lambda place: f"lockfiles:{place}/registry"}
"""SQLite is what the demo takes by itself: ``test_demo.py`` has seen it."""


def told(engine: str, registry: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pxrs.apps.cli", "demo", "--engine", engine, "--registry", registry]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize("store", [*FILES, *SERVERS])
def test_the_demo_in_processes(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    place = FILES[store](tmp_path) if store in FILES else request.getfixturevalue(SERVERS[store]).url("demo")
    shown = told("processes", place)
    assert shown.returncode == 0 and "PROVED" in shown.stdout, shown.stdout + shown.stderr
    assert "a-word-for-tests" not in shown.stdout + shown.stderr, "the password was shown"


@pytest.mark.parametrize("store", ["memory"])
def test_the_demo_in_threads(store: str) -> None:
    shown = told("threads", f"{store}:demo")
    assert shown.returncode == 0 and "PROVED" in shown.stdout, shown.stdout + shown.stderr


@pytest.mark.xdist_group("spark-stories")
def test_the_demo_in_spark_applications_that_share_a_server(postgres_server: PostgresServer) -> None:
    shown = told("spark", postgres_server.url("demo-of-spark"))
    assert shown.returncode == 0 and "PROVED" in shown.stdout, shown.stdout + shown.stderr
