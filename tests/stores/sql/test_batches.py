"""Many swaps at once in SQL: deadlocks, crossing batches, processes that start together, requests that are counted."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import psycopg
import pymysql
import pytest

from pxrs.errors import Refused, Unavailable
from pxrs.io.sql.connections import Sort
from pxrs.stores.base import ABSENT, CONFLICT, Swap, Verdict
from pxrs.stores.sql.statements import Statements
from pxrs.stores.sql.store import SqlStore
from pxrs.testing.servers.base import wait_until
from pxrs.testing.stores.hooks import Background, get, put, swap, value_of
from tests.stores.kinds.places import SOON, opened
from tests.stores.sql.helpers import OPTIONS, SqlServer, hasty

# ---- deadlocks ------------------------------------------------------------------------------------------------------

PASSING = [
    *(("postgres_server", lambda state=state: psycopg.errors.lookup(state)("planted")) for state in ("40001", "40P01")),
    *(("mariadb_server", lambda code=code: pymysql.err.OperationalError(code, "planted")) for code in (1205, 1213)),
]


@pytest.mark.parametrize(("which", "make"), PASSING)
def test_b54_deadlocks_and_serialisation_failures_are_tried_again(
    which: str,
    make: Callable[[], Exception],
    place: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = opened(request.getfixturevalue(which).url(place, options=OPTIONS))
    for name in ("swap", "swap_and_commit", "swap_many"):
        _fail_first(monkeypatch, type(store._statements), name, make, times=3)
    put(store, "a", b"one")
    assert {o.verdict for o in store.swap_each([Swap("b", ABSENT, b""), Swap("c", ABSENT, b"")])} == {Verdict.DONE}
    assert store.swap_all([Swap("d", ABSENT, b""), Swap("e", ABSENT, b"")]).verdict is Verdict.DONE
    assert [row.key for row in store.scan("")] == ["a", "b", "c", "d", "e"]
    store.close()


@pytest.mark.parametrize(("which", "make"), PASSING[::2])
def test_b54_what_does_not_pass_in_time_is_unavailable_and_not_done(
    which: str,
    make: Callable[[], Exception],
    place: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = opened(request.getfixturevalue(which).url(place, options=OPTIONS))
    with monkeypatch.context() as patch, hasty(store, 0.5):
        _fail_first(patch, type(store._statements), "swap", make, times=1_000_000)
        with pytest.raises(Unavailable):
            put(store, "a", b"one")
    assert get(store, "a") is None
    store.close()


def _fail_first(
    patch: pytest.MonkeyPatch, kind: type[Statements], name: str, make: Callable[[], Exception], times: int
) -> None:
    real = getattr(kind, name)
    left = iter(range(times))

    def fail_first(self: Statements, *arguments: Any) -> Any:
        if next(left, None) is not None:
            raise make()
        return real(self, *arguments)

    patch.setattr(kind, name, fail_first)


WAITING = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    "mysql": "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}


def test_b54_a_real_deadlock_costs_a_try_and_no_more(store: SqlStore, server: SqlServer, place: str) -> None:
    versions = {key: put(store, key, b"start") for key in ("a", "b", *(f"weight/{number}" for number in range(50)))}
    seen: list[Sort] = []
    _note_troubles(store, seen)
    other = opened(server.url(place, options=OPTIONS))
    with other.engine.connect() as connection:
        theirs = other.within(connection)
        # The one with more changes is not the one that the server gives up.
        theirs.swap_each([Swap(key, version, b"theirs") for key, version in versions.items() if key != "a"])
        ours = Background(store.swap_each, [Swap(key, versions[key], b"ours") for key in ("a", "b")])
        wait_until(lambda: _count(other, WAITING[store.address.scheme]) > 0, "our batch waits for their lock")
        crossing = Background(theirs.swap_each, [Swap("a", versions["a"], b"theirs")])
        crossing.result(SOON, "their second swap: the deadlock was broken")
        connection.rollback()
    outcomes = ours.result(SOON, "our batch")
    assert Sort.AGAIN in seen, "there was no deadlock"
    assert {outcome.verdict for outcome in outcomes} == {Verdict.DONE}
    assert value_of(store, "a") == value_of(store, "b") == b"ours" and value_of(store, "weight/1") == b"start"
    other.close()


def _count(store: SqlStore, select: str) -> int:
    with store.engine.connect() as connection:
        return int(connection.exec_driver_sql(select).scalar_one())


def test_crossing_batches_do_not_lock_each_other_out(store: SqlStore, server: SqlServer, place: str) -> None:
    """They come in opposite orders, and their locks are taken in one."""
    keys = [f"k/{number:02d}" for number in range(40)]
    store.swap_each([Swap(key, ABSENT, b"0") for key in keys])
    seen: list[Sort] = []
    handles = [opened(server.url(place, options=OPTIONS)) for _ in range(4)]
    for handle in handles:
        _note_troubles(handle, seen)
    calls = [Background(_take_all, handle, keys[:: 1 if at % 2 else -1]) for at, handle in enumerate(handles)]
    won = [call.result(SOON, "a worker with crossing batches") for call in calls]
    assert seen == []
    assert sum(won) == sum(int(row.value) for row in store.scan("k/"))
    for handle in handles:
        handle.close()


def _note_troubles(store: SqlStore, seen: list[Sort]) -> None:
    trouble = store._driver.trouble

    def note(error: Exception) -> Any:
        found = trouble(error)
        seen.append(found.sort)
        return found

    store._driver.trouble = note  # type: ignore[method-assign]


def _take_all(store: SqlStore, keys: list[str]) -> int:
    """Count every row up, ten times; how many swaps were done."""
    won = 0
    for _ in range(10):
        rows = [row for row in store.read(keys) if row is not None]
        outcomes = store.swap_each([Swap(row.key, row.version, b"%d" % (int(row.value) + 1)) for row in rows])
        won += sum(outcome.verdict is Verdict.DONE for outcome in outcomes)
    return won


# ---- many at once ---------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_b48_sixteen_processes_open_a_new_registry_at_once(server: SqlServer, place: str) -> None:
    context = multiprocessing.get_context("fork")
    start = context.Barrier(16)
    url = server.url(place, options="timeout_ms=15000")
    children = [context.Process(target=_open_and_write, args=(url, start, at)) for at in range(16)]
    for child in children:
        child.start()
    for child in children:
        child.join(SOON)
    assert [child.exitcode for child in children] == [0] * 16
    store = opened(server.url(place))
    assert len(store.scan("child/")) == 16
    store.close()


def _open_and_write(url: str, start: Any, number: int) -> None:
    start.wait(SOON)
    store = opened(url)
    put(store, f"child/{number}", b"x")
    store.close()


def test_a_batch_is_one_request(store: SqlStore) -> None:
    keys = [f"p/{number:03d}" for number in range(256)]
    put(store, "warm", b"")
    requests = _count_requests(store)
    created = store.swap_each([Swap(key, ABSENT, b"x" * 200) for key in keys])
    assert len(requests) == 1
    mixed = [Swap(key, outcome.version, b"y") for key, outcome in zip(keys, created, strict=True)]
    mixed[7] = Swap(mixed[7].key, mixed[7].expect, None)
    mixed[9] = Swap(mixed[9].key, mixed[9].expect + 1, b"y")
    outcomes = store.swap_each(mixed)
    assert len(requests) == 2
    assert [at for at, outcome in enumerate(outcomes) if outcome == CONFLICT] == [9]
    assert len(store.scan("p/")) == 255 and value_of(store, keys[9]) == b"x" * 200
    del requests[:]
    swap(store, "warm", 1, b"")
    assert len(requests) == 1, "a swap alone is one request"


class _Counting:
    """A cursor that notes what it sends."""

    def __init__(self, cursor: Any, sent: list[str]) -> None:
        self._cursor = cursor
        self._sent = sent

    def execute(self, text: str, *values: Any) -> Any:
        self._sent.append(text)
        return self._cursor.execute(text, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def _count_requests(store: SqlStore) -> list[str]:
    """The texts that are sent from now on."""
    sent: list[str] = []
    store._connections._idle = [_Counting(cursor, sent) for cursor in store._connections._idle]
    return sent


def test_a_huge_batch_is_done_in_parts_and_in_order(store: SqlStore) -> None:
    swaps = [Swap(f"big/{number}", ABSENT, b"v" * 300_000) for number in range(8)]
    swaps += [Swap(f"n/{number:04d}", ABSENT, b"v") for number in range(2_500)]
    outcomes = store.swap_each([*swaps, Swap("n/0000", ABSENT, b"again")])
    assert [outcome.verdict for outcome in outcomes] == [Verdict.DONE] * 2_508 + [Verdict.CONFLICT]
    assert len(store.scan("n/")) == 2_500
    assert store.swap_all([Swap(s.key, o.version, None) for s, o in zip(swaps, outcomes, strict=False)]) == (
        Verdict.DONE, ABSENT, "",
    )  # fmt: skip
    assert store.scan("") == []
    with pytest.raises(Refused, match="10000"):
        store.swap_all([Swap(str(number), ABSENT, b"") for number in range(10_001)])


def test_after_a_part_was_done_a_failure_does_not_hide_it(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    each = SqlStore._each
    parts: list[int] = []

    def fail_second(self: SqlStore, wishes: list[Any]) -> Any:
        parts.append(len(wishes))
        if len(parts) == 2:
            raise Unavailable("planted")
        return each(self, wishes)

    monkeypatch.setattr(SqlStore, "_each", fail_second)
    outcomes = store.swap_each([Swap(f"{number:04d}", ABSENT, b"") for number in range(2_500)])
    assert [o.verdict for o in outcomes] == [Verdict.DONE] * 1_000 + [Verdict.UNKNOWN] * 1_500
    assert parts == [1_000, 1_000] and len(store.scan("")) == 1_000
