from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from pxrs.drivers import find_driver
from pxrs.errors import BadUrl, Damaged, NewerFormat, NotFound, Refused, Unavailable
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, CONFLICT, Store, Swap, Verdict
from pxrs.stores.sqlite import connections
from pxrs.stores.sqlite import store as driver
from pxrs.stores.sqlite.store import SqliteStore
from pxrs.testing.conformance import StoreSuite
from pxrs.testing.stores.hooks import Background, get, put, swap, value_of
from pxrs.testing.stores.sharing import in_forked_child
from tests.tools import races

SOON = 30.0
LONG = 3_600.0


def opened(path: Path) -> SqliteStore:
    return SqliteStore.open(f"sqlite:{path}", Settings())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = opened(path)
    yield store
    store.close()


@contextmanager
def commits_fail(applied: bool) -> Iterator[None]:
    """Every COMMIT, and what commits itself, raises an I/O error, after it was carried out or before."""

    def commit(connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT" if applied else "ROLLBACK")
        raise sqlite3.OperationalError("disk I/O error")

    def commit_alone(connection: sqlite3.Connection, statement: str, values: Sequence[str | bytes | int]) -> int:
        if applied:
            connection.execute(statement, values)
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_commit", commit)
        patch.setattr(driver, "_commit_alone", commit_alone)
        yield


class TestSqliteStore(StoreSuite):
    def make_store(self, tmp_path: Path) -> Store:
        return opened(tmp_path / "registry.db")

    def lose_reply(self, store: Store, applied: bool) -> AbstractContextManager[object]:
        return commits_fail(applied)


def test_the_driver_answers_to_its_url() -> None:
    assert find_driver("pxrs.stores", "sqlite:x.db") is SqliteStore


def test_rows_survive_a_close(path: Path) -> None:
    first = opened(path)
    version = put(first, "a", b"kept")
    first.close()
    second = opened(path)
    assert value_of(second, "a") == b"kept"
    swap(second, "a", version, None)
    second.close()
    third = opened(path)
    assert put(third, "a", b"new") != version, "a version was used again after delete, close and open"
    third.close()


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore.open("sqlite:here.db", Settings())
    put(store, "a", b"x")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert Background(value_of, store, "a").result(SOON, "a read by another thread") == b"x"
    store.close()
    assert os.listdir(tmp_path / "elsewhere") == []


def test_an_answered_write_is_on_the_disk(store: SqliteStore) -> None:
    full = 2
    assert store._query("PRAGMA synchronous") == [(full,)]
    assert store._query("PRAGMA journal_mode") == [("wal",)]


@pytest.mark.parametrize("url", ["sqlite:", "sqlite::memory:", "sqlite:a\0b"])
def test_a_url_without_a_file_is_refused(url: str) -> None:
    with pytest.raises(BadUrl):
        SqliteStore.open(url, Settings())


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no/such"):
        opened(tmp_path / "no" / "such" / "registry.db")
    assert os.listdir(tmp_path) == []


def test_a_directory_is_no_registry(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=tmp_path.name):
        opened(tmp_path)


def test_a_file_that_is_no_database_is_named_and_left_alone(path: Path) -> None:
    path.write_bytes(b"this is a diary, not a database. " * 100)
    with pytest.raises(Damaged, match=r"registry\.db"):
        opened(path)
    assert path.read_bytes() == b"this is a diary, not a database. " * 100


def test_a_database_of_somebody_else_is_refused(path: Path) -> None:
    with _raw(path) as connection:
        connection.execute("CREATE TABLE meta(colour TEXT)")
    with pytest.raises(Damaged, match=r"registry\.db"):
        opened(path)


def test_a_later_schema_is_refused(path: Path) -> None:
    opened(path).close()
    with _raw(path) as connection:
        connection.execute("UPDATE meta SET value = 99 WHERE name = 'schema'")
    with pytest.raises(NewerFormat, match="99"):
        opened(path)


def test_a_file_that_vanished_is_not_made_again(path: Path, store: SqliteStore) -> None:
    for file in path.parent.iterdir():
        if file.is_file():
            file.unlink()
    with pytest.raises(Unavailable):
        Background(get, store, "a").result(SOON, "a read by a thread without a connection")
    assert not path.exists()


def test_the_keys_below_a_prefix_of_last_characters_are_found(store: SqliteStore) -> None:
    last = "\U0010ffff"
    for key in ("a", f"a{last}", f"a{last}b", "b", last, f"{last}{last}x", "\ud7ff1", "\ue000"):
        put(store, key, b"x")
    assert [row.key for row in store.scan(f"a{last}")] == [f"a{last}", f"a{last}b"]
    assert [row.key for row in store.scan(last)] == [last, f"{last}{last}x"]
    assert [row.key for row in store.scan("\ud7ff")] == ["\ud7ff1"]


def test_a_write_under_another_prefix_does_not_end_a_wait(store: SqliteStore) -> None:
    mark = store.wait("x/", 0, 0.0)
    call = Background(store.wait, "x/", mark, LONG)
    for number in range(20):
        swap(store, f"y/{number}", put(store, f"y/{number}", b"x"), None)
    assert call.running()
    put(store, "x/1", b"x")
    call.result(SOON, "the wait under x/")


def test_the_look_of_a_waiter_walks_the_rows_of_its_prefix_only(store: SqliteStore) -> None:
    steps = [step[-1] for step in store._query(f"EXPLAIN QUERY PLAN {driver._VERSIONS}", ("a", "b"))]
    assert steps == ["SEARCH rows USING PRIMARY KEY (key>? AND key<?)"]


_OF_EARLIER_VERSIONS = (
    "CREATE INDEX rows_by_version ON rows(version)",
    "CREATE TABLE deleted(version INTEGER PRIMARY KEY, key TEXT NOT NULL)",
    "INSERT INTO meta VALUES ('revision', 7)",
    "INSERT INTO rows VALUES ('x/1', x'78', 7)",
)


def test_a_file_of_an_earlier_version_goes_on(store: SqliteStore) -> None:
    for statement in _OF_EARLIER_VERSIONS:
        store._query(statement)
    mark = store.wait("x/", 0, 0.0)
    assert get(store, "x/1") == ("x/1", b"x", 7)
    assert swap(store, "x/1", 6, b"late") == CONFLICT
    assert swap(store, "x/1", 7, b"y").verdict is Verdict.DONE
    assert store.wait("x/", mark, LONG) != mark
    assert store._query("SELECT value FROM meta WHERE name = 'revision'") == [(7,)]


def test_a_commit_writes_one_page(store: SqliteStore, path: Path) -> None:
    version = put(store, "a", b"0")
    log = Path(f"{path}-wal")
    frame, sizes = 4_096 + 24, [log.stat().st_size]
    for _ in range(3):
        version = put(store, "a", b"1", version)
        sizes.append(log.stat().st_size)
    assert [after - before for before, after in itertools.pairwise(sizes)] == [frame] * 3


def test_a_commit_that_raised_is_unknown_and_the_store_goes_on(store: SqliteStore) -> None:
    version = put(store, "a", b"before")
    with commits_fail(applied=True):
        outcomes = store.swap_each([Swap("a", version, b"after"), Swap("b", 99, b"x")])
        together = store.swap_all([Swap("c", ABSENT, b"x")])
    assert [outcome.verdict for outcome in outcomes] == [Verdict.UNKNOWN, Verdict.CONFLICT]
    assert together.verdict is Verdict.UNKNOWN and "disk I/O error" in together.reason
    assert value_of(store, "a") == b"after"
    put(store, "d", b"x")


def test_a_swap_alone_is_one_statement_that_commits_itself(store: SqliteStore) -> None:
    version = put(store, "a", b"before")
    sent: list[str] = []
    store._connections.call(lambda connection: connection.set_trace_callback(sent.append))
    version = put(store, "a", b"after", version)
    assert swap(store, "a", version + 1, b"late") == CONFLICT
    assert swap(store, "b", ABSENT, None).verdict is Verdict.DONE, "there is nothing to delete"
    swap(store, "a", version, None)
    assert [line.split()[0] for line in sent] == ["UPDATE", "UPDATE", "BEGIN", "SELECT", "ROLLBACK", "DELETE"]


@pytest.mark.parametrize("applied", [True, False])
def test_a_swap_alone_that_raised_is_unknown_and_waiters_look(store: SqliteStore, applied: bool) -> None:
    versions = {key: put(store, key, b"before") for key in ("changed", "deleted")}
    mark = store.wait("", 0, 0.0)
    waiting = Background(store.wait, "", mark, LONG if applied else 0.5)
    with commits_fail(applied):
        told = [
            swap(store, "changed", versions["changed"], b"after"),
            swap(store, "deleted", versions["deleted"], None),
            swap(store, "new", ABSENT, b"x"),
        ]
    assert [outcome.verdict for outcome in told] == [Verdict.UNKNOWN] * 3
    assert all("disk I/O error" in outcome.reason for outcome in told)
    assert (waiting.result(SOON, "a wait") != mark) == applied
    assert [row.key for row in store.scan("")] == (["changed", "new"] if applied else ["changed", "deleted"])


def test_an_error_before_the_commit_rolls_back_and_frees_the_lock(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = iter([1])

    def fail_at_the_second() -> int:
        for version in versions:
            return version
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "new_version", fail_at_the_second)
        with pytest.raises(Unavailable, match="full"):
            store.swap_each([Swap("a", ABSENT, b"x"), Swap("b", ABSENT, b"x")])
    assert get(store, "a") is None
    other = opened(path)
    put(other, "a", b"x")
    other.close()


def test_a_database_that_stays_locked_is_unavailable(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PATIENCE_SECONDS", 0.05)
    with _raw(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked"):
            put(store, "a", b"x")
        assert get(store, "a") is None, "readers are not stopped by a writer"
        connection.execute("ROLLBACK")
    put(store, "a", b"x")


def test_connections_of_threads_that_ended_are_closed(store: SqliteStore) -> None:
    for _ in range(10):
        Background(get, store, "a").result(SOON, "a read by a thread")
    assert store._connections.count() <= 2


def test_b46_threads_that_work_during_a_fork_disturb_neither_side(store: SqliteStore) -> None:
    ended = threading.Event()
    workers = [Background(_work, store, f"w/{number}", ended) for number in range(4)]
    try:
        for number in range(10):
            assert in_forked_child(partial(_child_works, store, number)) == 0
    finally:
        ended.set()
    counts = [worker.result(SOON, "a worker thread") for worker in workers]
    assert [int(value_of(store, f"w/{number}") or b"0") for number in range(4)] == counts
    assert len(store.scan("child/")) == 10


def test_b46_a_child_holds_a_lock_of_its_own(path: Path, store: SqliteStore) -> None:
    # Were the parent's connection inherited, the child would think that it has the parent's locks, and the parent's
    # close (the last one, as far as the kernel knows) would delete the log under the child.
    put(store, "a", b"parent")
    (ready_read, ready), (go, go_write) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            version = put(store, "b", b"before the parent closed")
            os.write(ready, b"!")
            os.read(go, 1)
            put(store, "b", b"after the parent closed", version)
            status = 0
        finally:
            os._exit(status)
    os.read(ready_read, 1)
    store.close()
    os.write(go_write, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for file in (ready_read, ready, go, go_write):
        os.close(file)
    again = opened(path)
    assert [row.value for row in again.scan("")] == [b"parent", b"after the parent closed"]
    again.close()


@pytest.mark.processes
def test_a_wait_is_woken_by_another_process(store: SqliteStore, path: Path) -> None:
    mark = store.wait("w/", 0, 0.0)
    call = Background(store.wait, "w/", mark, LONG)
    code = f"from tests.tools.races import write; write('sqlite:{path}', 'w/1')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=SOON)
    call.result(SOON, "a wait for another process")
    assert value_of(store, "w/1") == b"x"


@pytest.mark.processes
def test_a_killed_writer_leaves_whole_transactions(store: SqliteStore, path: Path) -> None:
    """A process that swaps pairs is killed in the middle of it: nothing is locked, no pair is torn."""
    for _ in range(3):
        mark = store.wait("pair/", 0, 0.0)
        writer = multiprocessing.get_context("spawn").Process(target=races.write_pairs, args=(f"sqlite:{path}",))
        writer.start()
        for _ in range(5):
            mark = store.wait("pair/", mark, SOON)
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        values = [row.value for row in store.scan("pair/")]
        assert len(values) == 2 and values[0] == values[1]
        put(store, f"alive/{mark}", b"x")


@pytest.mark.processes
@pytest.mark.slow
def test_b48_sixteen_processes_open_a_new_file_at_once(path: Path) -> None:
    assert races.open_together(f"sqlite:{path}", processes=16) == ["opened"] * 16


@pytest.mark.processes
@pytest.mark.slow
def test_b47_eight_processes_claim_and_renew_and_none_sees_a_lock(path: Path) -> None:
    tallies = races.claim_and_renew(f"sqlite:{path}", processes=8, seconds=6.0)
    assert [tally.error for tally in tallies] == [""] * 8
    assert all(tally.renewed > 0 for tally in tallies), "a process starved"


@contextmanager
def _raw(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def _work(store: Store, key: str, ended: threading.Event) -> int:
    """Count up in the row until told to end; how far it came."""
    number, version = 0, ABSENT
    while not ended.is_set():
        version = put(store, key, b"%d" % (number + 1), version)
        number += 1
    return number


def _child_works(store: Store, number: int) -> bool:
    version = put(store, f"child/{number}", b"x")
    mark = store.wait("child/", 0, LONG)
    waiting = Background(store.wait, "child/", mark, LONG)
    put(store, f"child/{number}", b"y", version)
    return int(waiting.result(SOON, "a wait in a forked child")) != mark
