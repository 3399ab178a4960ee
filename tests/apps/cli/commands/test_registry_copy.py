"""registry copy: a stopped group goes to another store, whole."""

from __future__ import annotations

from pathlib import Path

import pytest

import pxrs as library
from tests.apps.cli.helpers import QUEUE, Pxrs, make_group, make_queue

SOURCE = "sqlite:orders/registry.db"
TARGET = "sqlite:other.db"


@pytest.fixture
def ready(pxrs: Pxrs) -> Pxrs:
    make_queue(pxrs, messages=40)
    make_group(pxrs, "billing")
    make_group(pxrs, "audit")
    pxrs("group", "seek", QUEUE, "billing", "--to-latest", "--execute")
    return pxrs


def checkpoints(registry: str, group: str = "billing") -> list[tuple[int, int | None]]:
    with library.open(log=QUEUE, registry=registry, create=False) as queue:
        return [(line.epoch, line.checkpoint) for line in queue.group(group).describe()]


def test_epochs_and_checkpoints_are_the_same_there(ready: Pxrs) -> None:
    shown = ready("registry", "copy", SOURCE, TARGET)
    assert shown.code == 0, shown.err
    assert "orders/audit: " in shown.out and "orders/billing: " in shown.out and "still in sqlite:" in shown.err
    assert checkpoints(TARGET) == checkpoints(SOURCE) and any(found for _, found in checkpoints(TARGET))
    again = ready("registry", "copy", SOURCE, TARGET)
    assert again.code == 0 and "orders/billing: 0 rows written" in again.out


def test_one_group_moves_and_the_others_stay(ready: Pxrs) -> None:
    before = checkpoints(SOURCE)
    shown = ready("registry", "copy", SOURCE, TARGET, "--queue", "orders", "--group", "billing", "--move")
    assert shown.code == 0 and "orders/billing: deleted in FROM" in shown.out and "audit" not in shown.out
    assert checkpoints(TARGET) == before
    with library.open(QUEUE, create=False) as queue:
        assert queue.groups() == ["audit"]
        assert not [row.key for row in queue.store.scan("") if "/billing/" in row.key]


def test_a_group_that_has_members_is_refused(ready: Pxrs) -> None:
    with library.open(QUEUE, create=False) as queue:
        queue.group("billing").registry.register(library.model.MemberRow("A", "life-1"))
    shown = ready("registry", "copy", SOURCE, TARGET)
    assert shown.code == 1 and "group 'billing' of queue 'orders' has members: A. Stop them" in shown.err
    with library.open(log=QUEUE, registry=TARGET, create=False) as queue:
        assert queue.store.scan("") == [], "something was written before it was refused"
    assert ready("registry", "copy", SOURCE, TARGET, "--force").code == 0
    with library.open(log=QUEUE, registry=TARGET, create=False) as queue:
        assert queue.group("billing").members() == [], "a member is of the place where it lives"


def test_rows_that_differ_are_kept_unless_forced(ready: Pxrs) -> None:
    ready("registry", "copy", SOURCE, TARGET)
    ready("group", "seek", QUEUE, "billing", "--to-earliest", "--execute")
    refused = ready("registry", "copy", SOURCE, TARGET)
    assert refused.code == 1 and "TO has group orders/billing already" in refused.err
    assert checkpoints(TARGET) != checkpoints(SOURCE)
    assert ready("registry", "copy", SOURCE, TARGET, "--force").code == 0
    assert checkpoints(TARGET) == checkpoints(SOURCE)


def test_an_unknown_group_is_named_with_those_there_are(ready: Pxrs) -> None:
    shown = ready("registry", "copy", SOURCE, TARGET, "--group", "nobody")
    assert shown.code == 1 and "groups there: orders/audit, orders/billing" in shown.err


def test_passwords_are_not_shown(pxrs: Pxrs, tmp_path: Path) -> None:
    shown = pxrs("registry", "copy", "redis://me:hush@127.0.0.1:1/0", f"sqlite:{tmp_path}/other.db")
    assert shown.code == 1 and "hush" not in shown.err + shown.out
