"""Fixtures of all tests, and the table of stores at their end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from pxrs.testing.servers.etcd import etcd_cluster, etcd_server
from pxrs.testing.servers.mariadb import mariadb_server
from pxrs.testing.servers.nats import nats_cluster, nats_server
from pxrs.testing.servers.postgres import postgres_server
from pxrs.testing.servers.spark import spark_cluster
from pxrs.testing.servers.valkey import valkey_server
from tests.tools import store_results
from tests.tools.one_jvm import one_jvm

# Named here once, each is one server for all tests of a process: a module that imported one would start its own.
__all__ = [
    "etcd_cluster", "etcd_server", "mariadb_server", "nats_cluster", "nats_server", "one_jvm", "postgres_server",
    "spark_cluster", "valkey_server",
]  # fmt: skip

_FOUND = pytest.StashKey[store_results.Outcomes]()


@pytest.fixture
def show(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Print for whoever runs the tests, past the capture of output, also in a worker process."""

    def show(text: str) -> None:
        with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\n{text}", file=sys.stderr, flush=True)

    return show


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A store that was not tested is a failure of a full run; only Oracle may be missing."""
    reporter: Any = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):
        return
    reports = [report for found in reporter.stats.values() for report in found if hasattr(report, "nodeid")]
    found = session.config.stash[_FOUND] = store_results.gathered(reports)
    store_results.record(found)
    is_full = store_results.is_full(session.config)
    if is_full and store_results.missing(found) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    found: store_results.Outcomes = config.stash.get(_FOUND, {})
    if not found:
        return
    terminalreporter.section("registry stores, each scenario")
    terminalreporter.write_line(store_results.table(found).as_text())
    if store_results.is_full(config):
        for line in store_results.missing(found):
            terminalreporter.write_line(f"NOT TESTED: {line}", red=True)
