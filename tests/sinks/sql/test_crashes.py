"""Owners that end, sleep, or lose an answer at every step: each message's row stands in the table once."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psycopg
import pymysql
import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DBAPIError

from pxrs.errors import Fenced
from pxrs.model import Grant, Range
from pxrs.runtime.registry import rows as registry_rows
from pxrs.runtime.registry.registry import CommitRequest
from pxrs.sinks.sql import database as sql_database
from pxrs.sinks.sql import sink as sql_joined
from pxrs.stores.base import Row
from pxrs.testing.proxy import Proxy
from pxrs.testing.servers.base import wait_until
from tests.sinks.sql.owner import SqlOwner, ends_at, owner, sleeps_at
from tests.sinks.sql.support import PLAIN, SqlPlace, elsewhere
from tests.sinks.support import GROUP, LOG, QUEUE, Rows, batch_of, output_of

MODES = ("together", "aside")
END = 4


@pytest.fixture(params=MODES)
def home(request: pytest.FixtureRequest, place: SqlPlace, tmp_path: Path) -> SqlPlace:
    """A table, and a registry in its database or elsewhere."""
    place.registry_elsewhere = elsewhere(tmp_path) if request.param == "aside" else ""
    place.make()
    return place


def finish(home: SqlPlace, life: str = "f") -> None:
    """Somebody takes over, and works to the end."""
    with owner(home, life, END) as last:
        last.live()
    assert home.values() == Rows(END).expected
    assert home.staged() == 0


def start_again(home: SqlPlace, turn: int) -> SqlPlace:
    """The same place with nothing in it."""
    fresh = SqlPlace(
        home.server, f"{home.name}-{turn}", home.registry_elsewhere and f"{home.registry_elsewhere}-{turn}"
    )
    fresh.make()
    return fresh


def test_rows_and_checkpoints_are_one_transaction_where_the_registry_is_that_database(home: SqlPlace) -> None:
    with owner(home, "a", END) as one:
        [*_, (grant, _)] = one.claim().items()
        batch = batch_of(Range(grant.partition, 0, 2, grant.epoch))
        note = one.sink.stage(batch, output_of(batch))
        one.commit({grant: 2}, note)
        together = home.registry_elsewhere == ""
        assert len(home.values()) == (2 if together else 0)
        assert ("_pxrs_staged" in home.tables()) is not together
        one.sink.publish(note)
        assert len(home.values()) == 2 and one.registry.partition(grant.partition).checkpoint == 2


def test_a_refused_commit_shows_nothing(home: SqlPlace) -> None:
    with owner(home, "a", END) as late, owner(home, "b", END) as new:
        [(grant, _), *_] = late.claim().items()
        batch = batch_of(Range(grant.partition, 0, 2, grant.epoch))
        note = late.sink.stage(batch, output_of(batch))
        new.claim()
        with pytest.raises(Fenced):
            late.commit({grant: 2}, note)
        late.sink.discard(batch)
        with pytest.raises(Fenced):
            late.commit({grant: 2}, note)
        assert home.values() == [] and home.staged() == 0
    finish(home)


@pytest.mark.slow
def test_an_owner_that_ends_at_any_step_shows_nothing_twice_and_loses_nothing(home: SqlPlace) -> None:
    for at in range(10_000):
        place = start_again(home, at)
        with owner(place, "a", END) as one:
            ended = ends_at(one, at)
        shown = place.values()
        assert set(shown) <= set(Rows(END).expected) and len(set(shown)) == len(shown)
        finish(place)
        place.close()
        if not ended:
            break
    assert at > 20, "there are that many steps, at least"


@pytest.mark.slow
def test_b77_an_owner_that_sleeps_at_any_step_and_wakes_after_its_loss_changes_nothing(
    home: SqlPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_database, "HOLD_SECONDS", 1)
    monkeypatch.setattr(sql_database, "LOCK_SECONDS", 1)
    for at in range(random.Random(5).randrange(3), 10_000, 3):
        place = start_again(home, at)
        with owner(place, "a", END) as one:
            slept = sleeps_at(one, at, lambda place=place: finish(place, "b"))  # type: ignore[misc]  # bound now
        finish(place)
        place.close()
        if not slept:
            break
    assert at > 20, "there are that many steps, at least"


# ---- answers that do not come ---------------------------------------------------------------------------------------


class Deaf:
    """Loses the answer to the next COMMIT that goes through a proxy."""

    def __init__(self, one: SqlOwner, proxy: Proxy) -> None:
        self.lost = 0
        self._losing = proxy.losing("replies")
        engine = one.sink._database.engine
        event.listen(engine, "commit", self._begin, once=True)
        event.listen(engine, "invalidate", self._end)

    def _begin(self, *_: object) -> None:
        self._losing.__enter__()
        self.lost = 1

    def _end(self, *_: object) -> None:
        if self.lost == 1:
            self.lost = 2
            self._losing.__exit__(None, None, None)


@pytest.mark.parametrize("step", ["stage", "publish"])
def test_b49_the_lost_answer_to_a_commit_is_looked_for(home: SqlPlace, step: str) -> None:
    together = home.registry_elsewhere == ""
    with Proxy("127.0.0.1", home.server.port) as proxy, owner(home, "a", END, proxy.address) as one:
        one.sink._database._seconds = 0.5
        claimed = one.claim()
        for grant, row in claimed.items():
            one.sink.recover(QUEUE, LOG, GROUP, grant, row.note)
        [(grant, _), *_] = claimed.items()
        warm_up(one, grant)
        batch = batch_of(Range(grant.partition, 1, 3, grant.epoch), number=2)
        deaf = Deaf(one, proxy) if step == "stage" or together else None
        note = one.sink.stage(batch, output_of(batch))
        one.commit({grant: 3}, note)
        deaf = deaf or Deaf(one, proxy)
        one.sink.publish(note)
        assert deaf.lost == 2 and proxy.lost["replies"] > 0
        assert home.values() == sorted(f"{grant.partition}-{n}" for n in range(3))
        assert one.registry.partition(grant.partition).checkpoint == 3
    finish(home)


def warm_up(one: SqlOwner, grant: Grant) -> None:
    """The first row, so that all connections stand and all tables are known."""
    batch = batch_of(Range(grant.partition, 0, 1, grant.epoch), number=1)
    note = one.sink.stage(batch, output_of(batch))
    one.commit({grant: 1}, note)
    one.sink.publish(note)


@pytest.mark.parametrize("after", [1, 2])
def test_an_earlier_try_that_lands_in_the_middle_of_the_next_one_is_not_written_twice(
    place: SqlPlace, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a COMMIT was lost, and the server takes its time with it. There is no key to catch the repeat."""
    place.make(PLAIN)
    with owner(place, "a", END) as one:
        [(grant, _), *_] = one.claim().items()
        batch = batch_of(Range(grant.partition, 0, 2, grant.epoch))
        note = one.sink.stage(batch, output_of(batch))
        first = one.sink.join(note)
        assert first is not None and first._connection is not None
        rules = one.registry._advances(CommitRequest({grant: 2}, note))
        registry_rows.Rows(first.store, one.registry._partitions._kind).change_all(rules)
        slow = first._connection
        first._connection, first._inserted = None, False  # the client has given up what the server has not ended
        read, reads = sql_joined._FirstReadStore.read, itertools.count(1)

        def read_and_land(store: sql_joined._FirstReadStore, keys: Sequence[str]) -> list[Row | None]:
            found = read(store, keys)
            if next(reads) == after:
                slow.commit()
            return found

        monkeypatch.setattr(sql_joined._FirstReadStore, "read", read_and_land)
        one.commit({grant: 2}, note)
        slow.close()
        one.sink.publish(note)
        assert next(reads) > after
    assert place.values() == [f"{grant.partition}-0", f"{grant.partition}-1"]


# ---- deadlocks ------------------------------------------------------------------------------------------------------


def deadlock_of(place: SqlPlace) -> Exception:
    if place.engine.dialect.name == "mysql":
        return pymysql.err.OperationalError(1213, "Deadlock found when trying to get lock")
    return psycopg.errors.DeadlockDetected("deadlock detected")


@pytest.mark.parametrize("at", [0, 1, 2])
def test_b54_a_transaction_that_is_the_victim_of_a_deadlock_is_done_again(
    home: SqlPlace, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first commit, the second, and the third: of tables, of staged rows, of rows that are shown."""
    commit, commits = Connection.commit, itertools.count()

    def fails_once(connection: Connection) -> None:
        if next(commits) == at:
            connection.rollback()
            raise deadlock_of(home)
        commit(connection)

    with owner(home, "a", END) as one:
        monkeypatch.setattr(Connection, "commit", fails_once)
        one.live()
        assert next(commits) > at
    assert home.values() == Rows(END).expected and home.staged() == 0


def test_b54_a_real_deadlock_with_a_user_of_the_table(place: SqlPlace, tmp_path: Path) -> None:
    place.registry_elsewhere = elsewhere(tmp_path)
    place.make()
    with owner(place, "a", END) as one, place.engine.connect() as user:
        [(grant, _), *_] = one.claim().items()
        batch = batch_of(Range(grant.partition, 0, 2, grant.epoch))
        note = one.sink.stage(batch, output_of(batch))
        user.execute(text(f"INSERT INTO {place.table} (value) VALUES ('{grant.partition}-1')"))
        publishing = threading.Thread(target=one.sink.publish, args=[note])
        publishing.start()
        wait_until(lambda: is_held(place), "the publisher has locked what is staged, and waits for the user's row")
        with suppress(DBAPIError):  # the database chooses whom it ends
            user.execute(text(f"DELETE FROM {place.table}_pxrs_staged"))
        user.rollback()
        publishing.join(60)
        assert not publishing.is_alive()
    assert place.values() == [f"{grant.partition}-0", f"{grant.partition}-1"]
    assert place.staged() == 0


def is_held(place: SqlPlace) -> bool:
    with place.engine.connect() as somebody:
        try:
            somebody.execute(text(f"SELECT seq FROM {place.table}_pxrs_staged FOR UPDATE NOWAIT"))
        except DBAPIError:
            return True
    return False
