"""Sinks where a small difference matters: what others have asked for when a sweep fails, and what is left behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine

from pxrs.errors import Conflict, Fenced, Unknown
from pxrs.io.clock import SystemClock
from pxrs.io.durable import create_file
from pxrs.io.sql.connections import Sort, Trouble
from pxrs.model import Grant, Owner, Range
from pxrs.runtime.ports.sink import Overtaken
from pxrs.runtime.registry.registry import CommitRequest, Registry
from pxrs.sinks.sql.sink import Pending, _FirstReadStore
from pxrs.sinks.sql.staging import SqlStaging
from pxrs.sinks.staging import Claim, Staging
from pxrs.stores.base import ABSENT, Store, Swap
from pxrs.stores.memory import MemoryStore
from tests.sinks.support import GROUP, LOG, QUEUE, batch_of

ME = Owner("B", "life-2")


def test_what_others_have_asked_a_sweep_for_is_not_forgotten_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One walk serves all who wait for it. When it fails, the next of them walks for the others, too."""
    staging, swept = Staging(str(tmp_path / "staging")), list[list[int]]()

    def sweep(claims: set[Claim]) -> None:
        swept.append(sorted(claim.grant.partition for claim in claims))
        if len(swept) == 1:
            raise OSError("the disk says no")

    def clear(partition: int) -> None:
        staging.clear_dead(QUEUE, LOG, GROUP, Grant(partition, ME, 5), keep="")

    monkeypatch.setattr(staging, "_sweep", sweep)
    staging._claims.add(Claim(QUEUE, LOG, GROUP, Grant(2, ME, 5), ""))  # of a thread that waits for its turn
    with pytest.raises(OSError, match="the disk says no"):
        clear(1)
    clear(3)
    assert swept == [[1, 2], [2, 3]]


def test_a_missing_staging_directory_is_an_error_and_not_a_new_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever believes in a new owner stops for good, and nobody else would go on."""
    staging, plans = Staging(str(tmp_path / "staging")), tmp_path / "staging" / "plans"

    def unmount(path: str, content: bytes, temporary: str) -> None:
        shutil.rmtree(plans)
        create_file(path, content, temporary)

    monkeypatch.setattr("pxrs.sinks.staging.create_file", unmount)
    with pytest.raises(FileNotFoundError):
        staging.begin(batch_of(Range(0, 0, 5, 1)))


def test_a_plan_that_its_new_owner_has_swept_on_its_way_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = Staging(str(tmp_path / "staging"))

    def overtaken(path: str, content: bytes, temporary: str) -> None:
        raise FileNotFoundError(temporary)

    monkeypatch.setattr("pxrs.sinks.staging.create_file", overtaken)
    with pytest.raises(Fenced, match="one of its partitions has a new owner"):
        staging.begin(batch_of(Range(0, 0, 5, 1)))


# ---- the guard of a table -------------------------------------------------------------------------------------------


@pytest.fixture
def connection() -> Iterator[Connection]:
    """A database in memory, for what does not depend on its kind."""
    with create_engine("sqlite://").begin() as opened:
        yield opened


@pytest.mark.parametrize(("seen", "passes"), [(3, True), (4, True), (5, False), (6, False)])
def test_the_guard_refuses_an_owner_that_was_overtaken_by_a_single_epoch(
    connection: Connection, seen: int, passes: bool
) -> None:
    """A new life that claims over its earlier one is one epoch ahead of it, and no more."""
    staging = SqlStaging("bills", None)
    staging.prepare(connection)
    staging.raise_guard(connection, LOG, GROUP, Grant(1, ME, seen))
    late = batch_of(Range(0, 0, 5, 1), Range(1, 0, 5, 4))
    if passes:
        staging.pass_guard(connection, late)
        with pytest.raises(Overtaken, match="has seen epoch 4 of partition 1"):
            staging.raise_guard(connection, LOG, GROUP, Grant(1, ME, 3))
    else:
        with pytest.raises(Fenced, match=f"has seen epoch {seen} of partition 1, and not only 4"):
            staging.pass_guard(connection, late)


# ---- one transaction with the registry ------------------------------------------------------------------------------


def test_rows_that_changed_while_a_commit_waited_for_them_are_not_swapped_in_its_transaction() -> None:
    """What has changed them may be an earlier try of the same commit, and then its output stands there already."""
    store = MemoryStore()
    before = store.swap_each([Swap("a", ABSENT, b"one")])[0].version
    once = _FirstReadStore(store)
    once.read(["a"])
    after = store.swap_each([Swap("a", before, b"two")])[0].version
    assert once.read(["a"]) == [("a", b"two", after)]
    with pytest.raises(Conflict, match="has changed while this commit waited"):
        once.swap_all([Swap("a", after, b"three")])
    assert store.read(["a"]) == [("a", b"two", after)]


class Noted:
    """A transaction that writes down how it ends."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.ends: list[str] = []

    def commit(self) -> None:
        self.ends.append("commit")

    def rollback(self) -> None:
        self.ends.append("rollback")


def test_output_is_not_committed_again_when_an_earlier_try_of_its_commit_has_landed() -> None:
    """The checkpoint would be stored a second time without harm, but not the rows beside it."""
    store = MemoryStore()
    registry = Registry(store, QUEUE, GROUP, SystemClock())
    registry.initialize(1, "xxh64-spark", "pmod")
    registry.claim([0], ME)
    for note, ends in (("first", ["commit", "rollback"]), ("first", ["rollback"]), ("second", ["commit", "rollback"])):
        transaction = Noted(store)
        registry.store_progress(CommitRequest({Grant(0, ME, 1): 5}, note, lambda: transaction))  # noqa: B023 - called at once
        assert transaction.ends == ends


def test_a_commit_of_rows_and_checkpoints_without_an_answer_is_unknown_and_not_rolled_back() -> None:
    def lose() -> None:
        raise Trouble(Sort.LOST, "the connection is gone")

    database: Any = SimpleNamespace(sorted=nullcontext, address="db", let_go=lambda *_: None)
    pending = Pending(database, None, None, lambda *_: None)  # type: ignore[arg-type]
    pending.write(SimpleNamespace(commit=lose))  # type: ignore[arg-type]
    with pytest.raises(Unknown, match="no answer to a COMMIT"):
        pending.commit()


def test_all_sinks_that_there_are_can_be_imported_without_sqlalchemy() -> None:
    code = (
        "import sys; sys.modules['sqlalchemy'] = None\n"
        "from pxrs.sinks import *\n"
        "assert ParquetSink and QueueSink and 'SqlSink' not in dir()\n"
        "import pxrs.sinks\n"
        "try:\n    pxrs.sinks.SqlSink\n"
        "except pxrs.errors.BadSetting as error:\n    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True).stdout
    assert said == "sqlalchemy is not installed: pip install 'pxrs[postgres]' or 'pxrs[mysql]'\n"


def test_all_sinks_can_be_imported_at_once() -> None:
    found: dict[str, object] = {}
    exec("from pxrs.sinks import *", found)
    assert {"ParquetSink", "QueueSink", "SqlSink"} <= found.keys()
