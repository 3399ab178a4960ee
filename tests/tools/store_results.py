"""The result of every store in every scenario: gathered from the tests' reports, shown at the end of a run.

``PXRS_RECORD=1`` writes it down beside the documents, where docs/generate.py makes a page of it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pxrs.runtime.views.tables import Table

STORES = ("memory", "sqlite", "lockfiles", "postgresql", "mysql", "etcd", "redis", "nats")
"""By the scheme of their URL. Oracle has no server in reach: its statements are compiled and parsed, nothing more."""
CONFORMANCE = {
    "TestMemoryStore": "memory",
    "TestSqliteStore": "sqlite",
    "TestLockFileStore": "lockfiles",
    "TestPostgresStore": "postgresql",
    "TestMariadbStore": "mysql",
    "TestEtcdStore": "etcd",
    "TestRedisStore": "redis",
    "TestNatsStore": "nats",
}
FAULTS = {
    "TestMemory": "memory",
    "TestSqlite": "sqlite",
    "TestLockFiles": "lockfiles",
    "TestPostgres": "postgresql",
    "TestMariadb": "mysql",
    "TestEtcd": "etcd",
    "TestValkey": "redis",
    "TestNats": "nats",
}
SCENARIOS = {
    "conformance": "the promises of a store",
    "test_b03_eight_processes_race_for_256_partitions": "8 processes race for 256 partitions",
    "test_server_killed_and_restarted": "server killed -9, restarted",
    "test_server_paused_past_the_lease": "server paused past the lease",
    "test_reply_lost_after_the_write": "reply lost after the write",
    "test_commits_whose_replies_are_lost_count_once": "replies of commits lost",
    "test_members_survive_a_network_that_loses_replies": "network loses replies",
    "test_the_watch_alone_wakes": "watch wakes, polls off",
    "test_with_the_watch_cut_the_poll_heals": "watch cut, poll heals",
    "test_b59_wiped": "store wiped",
    "test_b50_restored_to_an_older_copy": "restored to an older copy",
    "test_clock_jumps_on_a_member": "clock of a member jumps",
    "test_b46_fork_with_an_open_store": "fork with an open store",
    "demo": "the demo, a consumer killed -9",
}
DEMO_BY_ITSELF = "test_the_demo_kills_a_consumer_and_proves_that_nothing_was_lost[processes]"
"""The demo whose registry nobody has chosen: it is on SQLite."""
RECORD = Path(__file__).parents[2] / "docs" / "registry-results.json"

Outcomes = dict[str, dict[str, dict[str, str]]]
"""store → scenario → test → passed, failed or skipped."""


def gathered(reports: Iterable[Any]) -> Outcomes:
    """The outcomes of those tests that are about stores."""
    found: Outcomes = {}
    for report in reports:
        place = _place(report.nodeid)
        if place is None or not hasattr(report, "when") or (report.when != "call" and report.outcome == "passed"):
            continue
        store, scenario, test = place
        tests = found.setdefault(store, {}).setdefault(scenario, {})
        if tests.get(test) != "failed":
            tests[test] = report.outcome
    return found


def _place(nodeid: str) -> tuple[str, str, str] | None:
    path, *names = nodeid.split("::")
    if names[-1] == DEMO_BY_ITSELF:
        return "sqlite", "demo", names[-1]
    if path.endswith("test_demo_everywhere.py") and "[" in names[-1]:
        return names[-1].partition("[")[2].rstrip("]").partition("-")[0], "demo", names[-1]
    if len(names) != 2 or "stores/" not in path:
        return None
    group, test = names
    if group in CONFORMANCE:
        return CONFORMANCE[group], "conformance", test
    if group in FAULTS and test in SCENARIOS:
        return FAULTS[group], test, test
    return None


def cell(tests: dict[str, str]) -> str:
    """ok, with a count where there are several; FAILED; or a dash for what cannot happen there."""
    counts = Counter(tests.values())
    if counts["failed"]:
        return f"FAILED {counts['failed']}"
    if not counts["passed"]:
        return "-" if counts["skipped"] else "missing"
    return "ok" if counts["passed"] == 1 else f"{counts['passed']} ok"


def table(found: Outcomes) -> Table:
    rows = [
        [words, *(cell(found.get(store, {}).get(scenario, {})) for store in STORES)]
        for scenario, words in SCENARIOS.items()
    ]
    return Table(["SCENARIO", *STORES], rows)


def missing(found: Outcomes) -> list[str]:
    """Cells that no test has filled: on a full run, each of them is a failure."""
    return [
        f"{store}: {words}"
        for scenario, words in SCENARIOS.items()
        for store in STORES
        if cell(found.get(store, {}).get(scenario, {})) == "missing"
    ]


def is_full(config: pytest.Config) -> bool:
    """Whether everything was asked for, as ``make test`` does."""
    chosen = config.option.keyword or config.option.markexpr
    return config.args_source is config.ArgsSource.TESTPATHS and not chosen


def record(found: Outcomes) -> None:
    """Write them down, if that is asked for and nothing is missing."""
    if os.environ.get("PXRS_RECORD") and not missing(found):
        RECORD.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
