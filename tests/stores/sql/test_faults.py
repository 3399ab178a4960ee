"""Faults between a registry in SQL and its database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pymysql
import pytest

from pxrs.errors import Refused, Unavailable
from pxrs.io.sql import mysql as sql_mysql
from pxrs.stores.base import ABSENT, Swap, Verdict
from pxrs.stores.sql.store import SqlStore
from pxrs.testing.proxy import Proxy
from pxrs.testing.servers.base import wait_until
from pxrs.testing.servers.mariadb import MariadbServer
from pxrs.testing.servers.postgres import PostgresServer
from pxrs.testing.stores.hooks import Background, get, put, swap, value_of
from tests.stores.kinds.places import SOON, opened
from tests.stores.sql.helpers import OPTIONS, SqlServer, at_the_next_commit, hanging_up, hasty

# ---- answers that are lost -------------------------------------------------------------------------------------------


def test_b49_a_commit_whose_answer_was_lost_is_recognised_by_its_version(far_store: SqlStore, proxy: Proxy) -> None:
    version = put(far_store, "a", b"before")
    with at_the_next_commit(hanging_up(proxy, "replies")):
        [outcome] = far_store.swap_each([Swap("a", version, b"after")])
    assert outcome.verdict is Verdict.DONE
    assert get(far_store, "a") == ("a", b"after", outcome.version)


def test_b49_a_batch_whose_answer_was_lost_is_recognised_row_by_row(far_store: SqlStore, proxy: Proxy) -> None:
    version = put(far_store, "theirs", b"theirs")
    swaps = [Swap(f"r/{number}", ABSENT, b"mine") for number in range(100)]
    with at_the_next_commit(hanging_up(proxy, "replies")):
        outcomes = far_store.swap_each([*swaps, Swap("theirs", version + 1, b"mine")])
    assert {outcome.verdict for outcome in outcomes[:-1]} == {Verdict.DONE}
    assert outcomes[-1].verdict is Verdict.UNKNOWN, "a row that is not ours may have been ours, and overwritten"
    assert {row.version for row in far_store.scan("r/")} == {outcome.version for outcome in outcomes[:-1]}


@pytest.mark.parametrize("creates", [True, False])
def test_b49_an_atomic_swap_whose_answer_was_lost_is_recognised(
    far_store: SqlStore, proxy: Proxy, creates: bool
) -> None:
    versions = [ABSENT if creates else put(far_store, key, b"before") for key in ("a", "b")]
    with at_the_next_commit(hanging_up(proxy, "replies")):
        outcome = far_store.swap_all([Swap("a", versions[0], b"1"), Swap("b", versions[1], b"2")])
    assert outcome.verdict is Verdict.DONE
    assert outcome.version == max(row.version for row in far_store.scan(""))
    assert [row.value for row in far_store.scan("")] == [b"1", b"2"]


def test_b49_a_commit_that_never_arrived_is_not_called_done(far_store: SqlStore, proxy: Proxy) -> None:
    version = put(far_store, "a", b"before")
    with at_the_next_commit(hanging_up(proxy, "requests")):
        [outcome] = far_store.swap_each([Swap("a", version, b"after")])
    assert outcome.verdict is Verdict.UNKNOWN and outcome.reason
    assert value_of(far_store, "a") == b"before"


def test_b49_a_delete_whose_answer_was_lost_is_unknown(far_store: SqlStore, proxy: Proxy) -> None:
    version = put(far_store, "a", b"before")
    with at_the_next_commit(hanging_up(proxy, "replies")):
        [outcome] = far_store.swap_each([Swap("a", version, None)])
    assert outcome.verdict is Verdict.UNKNOWN, "who deleted it cannot be seen"
    assert get(far_store, "a") is None


def test_a_transaction_that_breaks_before_its_commit_is_done_again(far_store: SqlStore, proxy: Proxy) -> None:
    put(far_store, "a", b"x")
    begun: list[int] = []
    begin = far_store._driver.begin

    def begin_and_break(cursor: Any) -> None:
        begin(cursor)
        begun.append(proxy.cut() if not begun else 0)

    far_store._driver.begin = begin_and_break  # type: ignore[method-assign]
    assert far_store.swap_all([Swap("b", ABSENT, b"1"), Swap("c", ABSENT, b"2")]).verdict is Verdict.DONE
    assert len(begun) == 2 and begun[0] > 0
    assert [row.key for row in far_store.scan("")] == ["a", "b", "c"]


def test_an_idle_connection_that_died_is_not_used(far_store: SqlStore, proxy: Proxy) -> None:
    version = put(far_store, "a", b"before")
    for number in range(5):
        assert proxy.cut() > 0
        version = put(far_store, "a", b"%d" % number, version)  # must be done, never in doubt


def test_without_a_network_nothing_is_written_and_it_says_so(far_store: SqlStore, proxy: Proxy) -> None:
    version = put(far_store, "a", b"before")
    with proxy.refusing():
        for call in (lambda: get(far_store, "a"), lambda: swap(far_store, "a", version, b"after")):
            with pytest.raises(Unavailable, match=str(proxy.port)):
                call()
    assert value_of(far_store, "a") == b"before"


@pytest.mark.processes
@pytest.mark.parametrize("kind", [PostgresServer, MariadbServer])
def test_a_server_that_hangs_is_not_waited_for(kind: type[SqlServer], tmp_path: Path) -> None:
    with kind(tmp_path / "server") as own:
        store = opened(own.url("place", options=OPTIONS))
        version = put(store, "a", b"before")
        own.pause()
        try:
            with hasty(store, 0.3):
                told = Background(swap, store, "a", version, b"after").result(SOON, "a swap that nobody answers")
                assert told.verdict is Verdict.UNKNOWN
                with pytest.raises(Unavailable):  # on a new connection, which is not answered either
                    Background(get, store, "a").result(SOON, "a read that nobody answers")
            with pytest.raises(Unavailable):
                Background(opened, own.url("place", options="timeout_ms=300")).result(SOON, "an open")
        finally:
            own.resume()
        wait_until(lambda: _answers(store), "the server answers again")
        own.restart()
        put(store, "b", b"after a restart")
        store.close()


def _answers(store: SqlStore) -> bool:
    try:
        return get(store, "a") is not None
    except Unavailable:
        return False


# ---- row counts, odd bytes ------------------------------------------------------------------------------------------


def test_b51_a_swap_of_equal_bytes_is_done_even_if_the_server_counts_changed_rows_only(
    mariadb_server: MariadbServer, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = sql_mysql._FLAGS
    assert flags & pymysql.constants.CLIENT.FOUND_ROWS
    monkeypatch.setattr(sql_mysql, "_FLAGS", flags & ~pymysql.constants.CLIENT.FOUND_ROWS)
    store = opened(mariadb_server.url(place))
    version = put(store, "a", b"same")
    for _ in range(3):
        version = put(store, "a", b"same", version)
    together = store.swap_each([Swap("a", version, b"same"), Swap("b", ABSENT, b"same")])
    assert [outcome.verdict for outcome in together] == [Verdict.DONE] * 2
    store.close()


def test_b53_keys_that_differ_in_a_byte_are_kept_apart(store: SqlStore) -> None:
    keys = ["\0", "a", "a ", "a  ", "a\0", "A", "ä", "a\u0308", "é", "e", "", "'; DROP TABLE x; --", "%s", "\\", "\\0"]
    outcomes = store.swap_each([Swap(key, ABSENT, key.encode()) for key in keys])
    assert {outcome.verdict for outcome in outcomes} == {Verdict.DONE}
    assert [value_of(store, key) for key in keys] == [key.encode() for key in keys]
    assert [row.key for row in store.scan("")] == sorted(keys)
    assert [row.key for row in store.scan("a")] == ["a", "a\0", "a ", "a  ", "a\u0308"]


def test_b53_a_key_that_cannot_be_stored_is_refused_before_anything_is_written(store: SqlStore) -> None:
    for key in ("\ud800", "x" * 1_048_576, "é" * 1_001):
        for call in (store.swap_each, store.swap_all):
            with pytest.raises(Refused):
                call([Swap("fine", ABSENT, b""), Swap(key, ABSENT, b"")])
        with pytest.raises(Refused):
            store.read([key])
    assert store.scan("") == []
    put(store, "x" * 2_000, b"the longest")


@pytest.mark.parametrize(
    "value",
    [b"", b"\0", bytes(range(256)) * 3, b"'\"\\%s;", b"\xff" * 1_048_576],
    ids=["empty", "NUL", "all bytes", "quotes", "1 MiB"],
)
def test_b53_every_value_survives_alone_and_in_a_batch(store: SqlStore, value: bytes) -> None:
    put(store, "alone", value)
    store.swap_each([Swap("b/1", ABSENT, value), Swap("b/2", ABSENT, value)])
    store.swap_all([Swap("c/1", ABSENT, value), Swap("c/2", ABSENT, value)])
    assert {row.value for row in store.scan("")} == {value} and len(store.scan("")) == 5
