"""A database that stands still for a while: the sink throws the connection away, waits, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from pxrs.errors import Unavailable
from pxrs.sinks import SqlSink
from pxrs.sinks.sql import database as sql_database
from pxrs.sinks.sql.database import Database
from pxrs.sinks.sql.staging import SqlStaging
from tests.sinks.sql.support import PLAIN, SqlPlace
from tests.sinks.sql.test_sql import one
from tests.sinks.support import batch_of, output_of

Moments = dict[str, tuple[type, str, bool]]
MOMENTS: Moments = {
    "a connection is taken from the pool": (Database, "connect", True),
    "a statement runs": (SqlStaging, "keep", True),
    "the commit is sent": (SqlStaging, "pass_guard", False),
}
"""Where the database stops: which call, and whether that is before it or after it."""


@pytest.fixture
def sink(place: SqlPlace, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlSink]:
    """A sink that has a connection, gives up an answer soon, and is patient."""
    monkeypatch.setattr(sql_database, "LONG_SECONDS", 1.0)
    place.make(PLAIN)
    url = place.url()
    sink = SqlSink(f"{url}{'&' if '?' in url else '?'}timeout_ms=1000", place.table, patience=60)
    sink.publish(sink.stage(one(), output_of(one())))
    yield sink
    place.server.resume()
    sink.close()


def stop_at(moment: str, place: SqlPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server stand still at this moment, once."""
    kind, name, before = MOMENTS[moment]
    real: Callable[..., Any] = getattr(kind, name)
    pauses = iter([place.server.pause])

    def paused(*args: Any) -> Any:
        if before:
            next(pauses, lambda: None)()
        found = real(*args)
        if not before:
            next(pauses, lambda: None)()
        return found

    monkeypatch.setattr(kind, name, paused)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_database_that_hangs_is_waited_for_whenever_it_stops(
    place: SqlPlace, sink: SqlSink, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []

    def between_tries(seconds: float) -> bool:
        tries.append(seconds)
        place.server.resume()
        return False

    monkeypatch.setattr(sink._database._connections, "pause", between_tries)
    stop_at(moment, place, monkeypatch)
    batch = batch_of(*one(2).ranges, number=2)
    sink.publish(sink.stage(batch, output_of(batch)))
    assert tries, "the database has answered all the time"
    assert place.values() == ["0-0", "0-0", "0-1", "0-1", "0-2", "0-2"]


def test_a_database_that_hangs_for_longer_than_the_patience_is_unavailable(
    place: SqlPlace, sink: SqlSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink._database._patience = 0
    for moment in MOMENTS:
        with monkeypatch.context() as patch:
            stop_at(moment, place, patch)
            batch = one(2)
            with pytest.raises(Unavailable, match="does not answer"):
                sink.stage(batch, output_of(batch))
        place.server.resume()
        with suppress(Unavailable):  # the first call after it may find one more connection from before
            sink.discard(batch)
    sink._database._patience = 60
    sink.publish(sink.stage(one(2), output_of(one(2))))
