"""A registry in the caller's transaction: both are committed, or neither is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, func, insert, select

from pxrs.errors import Refused, Unavailable
from pxrs.stores.base import ABSENT, CONFLICT, Swap, Verdict
from pxrs.stores.sql.store import SqlStore
from pxrs.testing.servers.names import table_name
from pxrs.testing.stores.hooks import get, put, value_of
from tests.stores.kinds.places import opened
from tests.stores.sql.helpers import SqlServer


@pytest.fixture
def payments(store: SqlStore, place: str) -> Iterator[Table]:
    table = Table(
        f"{table_name(place)}_pay", MetaData(), Column("id", Integer, primary_key=True), Column("what", String(20))
    )
    table.create(store.engine)
    yield table
    table.drop(store.engine)


def paid(store: SqlStore, payments: Table) -> int:
    with store.engine.connect() as connection:
        return int(connection.execute(select(func.count()).select_from(payments)).scalar_one())


def test_rows_and_swaps_are_committed_together(store: SqlStore, payments: Table) -> None:
    version = put(store, "a", b"before")
    with store.engine.begin() as connection:
        connection.execute(insert(payments).values(id=1, what="x"))
        joined = store.within(connection)
        outcome = joined.swap_all([Swap("a", version, b"after"), Swap("b", ABSENT, b"new")])
        assert outcome.verdict is Verdict.DONE
        assert value_of(joined, "a") == b"after" and [row.key for row in joined.scan("")] == ["a", "b"]
        assert value_of(store, "a") == b"before", "nobody sees it before the caller commits"
    assert value_of(store, "a") == b"after" and paid(store, payments) == 1
    assert outcome.version == max(row.version for row in store.scan(""))


def test_a_rollback_takes_the_swaps_back(store: SqlStore, payments: Table) -> None:
    version = put(store, "a", b"before")
    with store.engine.connect() as connection:
        connection.execute(insert(payments).values(id=1, what="x"))
        outcomes = store.within(connection).swap_each([Swap("a", version, b"after"), Swap("b", ABSENT, b"new")])
        assert {outcome.verdict for outcome in outcomes} == {Verdict.DONE}
        connection.rollback()
    assert [row.key for row in store.scan("")] == ["a"] and value_of(store, "a") == b"before"
    assert paid(store, payments) == 0
    put(store, "a", b"still usable", version)


def test_a_transaction_that_begins_with_a_swap_is_the_callers_too(store: SqlStore) -> None:
    with store.engine.connect() as connection:
        store.within(connection).swap_each([Swap("a", ABSENT, b"x")])
        assert connection.in_transaction()
        connection.commit()
        store.within(connection).swap_each([Swap("b", ABSENT, b"x")])
    assert [row.key for row in store.scan("")] == ["a"], "what the caller did not commit was not done"


def test_a_conflict_leaves_the_rest_of_the_transaction_as_it_was(store: SqlStore, payments: Table) -> None:
    put(store, "taken", b"theirs")
    with store.engine.begin() as connection:
        connection.execute(insert(payments).values(id=1, what="x"))
        joined = store.within(connection)
        assert joined.swap_all([Swap("a", ABSENT, b"1"), Swap("taken", ABSENT, b"2")]) == CONFLICT
        assert joined.swap_all([Swap("a", ABSENT, b"1"), Swap("a", ABSENT, b"2")]) == CONFLICT
        each = joined.swap_each([Swap("b", ABSENT, b"1"), Swap("taken", ABSENT, b"2"), Swap("c", ABSENT, None)])
        assert [outcome.verdict for outcome in each] == [Verdict.DONE, Verdict.CONFLICT, Verdict.DONE]
        connection.execute(insert(payments).values(id=2, what="x"))
    assert [row.key for row in store.scan("")] == ["b", "taken"]
    assert paid(store, payments) == 2


def test_a_swap_waits_for_the_transaction_that_holds_its_row(store: SqlStore, server: SqlServer, place: str) -> None:
    version = put(store, "a", b"before")
    hasty = opened(server.url(place, options="timeout_ms=1500"))
    with store.engine.begin() as connection:
        store.within(connection).swap_each([Swap("a", version, b"within")])
        with pytest.raises(Unavailable):  # certainly not done: the server gave up before we did
            hasty.swap_each([Swap("a", version, b"hasty")])
    assert value_of(store, "a") == b"within"
    assert hasty.swap_each([Swap("a", version, b"late")]) == [CONFLICT]
    hasty.close()


def test_errors_in_the_callers_transaction_say_what_to_do(store: SqlStore) -> None:
    with store.engine.connect() as connection:
        joined = store.within(connection)
        put(joined, "a", b"x")
        connection.exec_driver_sql(f"DROP TABLE {store._tables.rows.name}")
        with pytest.raises(Unavailable, match="roll the transaction back"):
            get(joined, "a")
        with pytest.raises(Refused):
            joined.swap_each([Swap("\ud800", ABSENT, b"")])
        with pytest.raises(Refused):
            joined.wait("", 0, 1.0)
        joined.close()
        connection.rollback()


@pytest.mark.parametrize("size", [0, 1, 2, 300])
def test_batches_of_every_size(store: SqlStore, size: int) -> None:
    swaps = [Swap(f"k/{number:03d}", ABSENT, b"x") for number in range(size)]
    with store.engine.begin() as connection:
        joined = store.within(connection)
        assert [outcome.verdict for outcome in joined.swap_each(swaps)] == [Verdict.DONE] * size
        rows = joined.scan("k/")
        assert joined.swap_all([Swap(row.key, row.version, b"y") for row in rows]).verdict is Verdict.DONE
        assert joined.read([swap.key for swap in swaps]) == joined.scan("k/")
    assert {row.value for row in store.scan("k/")} == ({b"y"} if size else set())


def test_the_time_out_of_the_store_does_not_bind_the_callers_statements(store: SqlStore) -> None:
    with store.engine.connect() as connection:
        if store.address.scheme == "postgresql":
            assert connection.exec_driver_sql("SHOW statement_timeout").scalar_one() == "0"
            assert connection.exec_driver_sql("SHOW transaction_isolation").scalar_one() == "read committed"
        else:
            assert float(connection.exec_driver_sql("SELECT @@max_statement_time").scalar_one()) == 0
            assert connection.exec_driver_sql("SELECT @@tx_isolation").scalar_one() == "READ-COMMITTED"
