"""A group whose processes are all dead: no command may say that all is well."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import pxrs as library
from pxrs.model import MemberRow
from tests.apps.cli.helpers import QUEUE, Pxrs, make_queue

HOUR = 3_600.0


@pytest.fixture(params=["sqlite", "lockfiles", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A registry in which the rows of dead processes stay; in lock files, those of processes of other machines."""
    if request.param == "postgres":
        url: str = request.getfixturevalue("postgres_server").url("dead_groups")
        return url
    return f"{request.param}:{tmp_path}/registry"


def leave_dead_member(registry: str) -> None:
    """The rows that the process of member A has left behind, an hour ago."""
    row = MemberRow("A", "life-of-A", lease_ms=300, seen=time.time() - HOUR, info=(("host", "h"), ("pid", "1")))
    with library.open(log=QUEUE, registry=registry) as queue:
        group = queue.make_group("billing").registry
        group.register(row)
        group.claim([0, 1], row.owner)


def test_a_dead_group_is_shown_as_dead_and_health_fails_until_somebody_works(pxrs: Pxrs, place: str) -> None:
    make_queue(pxrs, messages=8, partitions=2)
    leave_dead_member(place)
    at = ("--registry", place)

    listed = pxrs("group", "list", QUEUE, *at).out.splitlines()[1].split()
    assert listed[:5] == ["billing", "Dead", "0", "1h", "8"]
    described = pxrs("group", "describe", QUEUE, "billing", *at)
    assert "STATE       Dead for 1h\n" in described.out and "DEAD        A\n" in described.out
    assert "no member of group 'billing' shows life" in described.err
    facts = json.loads(pxrs("group", "describe", QUEUE, "billing", "-o", "json", *at).out)
    assert (facts["state"], facts["members"], facts["dead"]) == ("Dead", 0, ["A"])
    assert facts["last_seen"].startswith("20") and [p["consumer_id"] for p in facts["partitions"]] == ["A", "A"]
    [member] = json.loads(pxrs("group", "members", QUEUE, "billing", "-o", "json", *at).out)
    assert member["state"] == "Dead" and HOUR <= member["silent_seconds"] < 2 * HOUR
    unwell = pxrs("health", QUEUE, *at)
    assert unwell.code == 3 and "OK" not in unwell.out
    assert "group 'billing': 8 messages wait, and no member works (A: Dead, last seen 1h ago)" in unwell.err

    assert pxrs("member", "evict", QUEUE, "billing", "A", *at).code == 0
    facts = json.loads(pxrs("group", "describe", QUEUE, "billing", "-o", "json", *at).out)
    assert (facts["state"], facts["members"], facts["dead"]) == ("Empty", 0, [])
    assert json.loads(pxrs("group", "members", QUEUE, "billing", "-o", "json", *at).out) == []
    unwell = pxrs("health", QUEUE, *at)
    assert unwell.code == 3 and "8 messages wait, and no member works" in unwell.err
    assert pxrs("group", "seek", QUEUE, "billing", "--to-latest", "--execute", *at).code == 0
    assert pxrs("health", QUEUE, *at).code == 0
