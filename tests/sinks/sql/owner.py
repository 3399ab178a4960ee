"""The life of an owner with an SQL sink and a real registry; and faults at every step that reaches a database."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pymysql
import pytest

from pxrs.drivers import find_driver
from pxrs.errors import Conflict, Fenced, PxrsError, Unavailable, Unknown
from pxrs.io.clock import SystemClock
from pxrs.model import Grant, Owner, Partition, Range
from pxrs.runtime.ports.sink import bind, joining
from pxrs.runtime.registry.registry import CommitRequest, Registry
from pxrs.runtime.registry.rows import Held
from pxrs.settings import Settings
from pxrs.sinks import SqlSink
from pxrs.stores.base import Store
from tests.sinks.sql.support import SqlPlace
from tests.sinks.support import GROUP, LOG, PARTITIONS, QUEUE, Crash, batch_of, output_of

STEPS = {
    psycopg.Cursor: ("execute", "executemany", "copy"),
    psycopg.Connection: ("commit",),
    pymysql.cursors.Cursor: ("execute", "executemany"),
    pymysql.connections.Connection: ("commit",),
}


class SqlOwner:
    """One member's life on a registry: takes everything over, then batch after batch to the end, or until fenced."""

    def __init__(self, place: SqlPlace, life: str, end: int, address: str = "", **options: Any) -> None:
        url = place.registry_elsewhere or place.url(address)
        self.store: Store = find_driver("pxrs.stores", url).open(url, Settings(lease_ms=20_000))
        self.registry = Registry(self.store, QUEUE, GROUP, SystemClock())
        self.sink: SqlSink = place.sink(address, **options)
        self.me = Owner("A", life * 32)
        self.end = end
        bind(self.sink, self.store)

    def warm_up(self) -> None:
        """Connect, and get to know the tables."""
        self.sink._find()
        if self.sink._registry is None:
            self.sink._prepare()
        self.registry.find_group()

    def claim(self) -> dict[Grant, Partition]:
        self.registry.initialize(len(PARTITIONS), "xxh64-spark", "pmod", log=LOG)
        owned = {row.number: row.owner for row in self.registry.partitions() if row.owner}
        self.registry.force_release(owned)
        found = self.registry.claim(PARTITIONS, self.me).values()
        rows = [held.row for held in found if isinstance(held, Held)]
        assert len(rows) == len(PARTITIONS)
        return {Grant(row.number, self.me, row.epoch): row for row in rows}

    def live(self, size: int = 3) -> None:
        claimed = self.claim()
        for grant, row in claimed.items():
            self.sink.recover(QUEUE, LOG, GROUP, grant, row.note)
        starts = {grant: row.checkpoint or 0 for grant, row in claimed.items()}
        for number in itertools.count():
            if min(starts.values()) >= self.end:
                return
            ends = {grant: min(self.end, start + size) for grant, start in starts.items()}
            ranges = [Range(g.partition, start, ends[g], g.epoch) for g, start in starts.items() if start < ends[g]]
            batch = batch_of(*ranges, number=number, life=self.me.inc)
            try:
                note = self.sink.stage(batch, output_of(batch))
                self.commit({g: ends[g] for g in starts}, note)
            except Fenced:
                self.sink.discard(batch)
                return
            self.sink.publish(note)
            starts = ends

    def commit(self, positions: dict[Grant, int], note: str) -> None:
        """As the engines do it: asked again until an answer comes."""
        for _ in range(50):
            try:
                self.registry.store_progress(CommitRequest(positions, note, joining(self.sink, note)))
                return
            except (Conflict, Unknown, Unavailable):
                continue
        pytest.fail("no answer to 50 commits")

    def close(self) -> None:
        self.store.close()
        self.sink.close()


@contextmanager
def owner(place: SqlPlace, life: str, end: int, address: str = "", **options: Any) -> Iterator[SqlOwner]:
    made = SqlOwner(place, life, end, address, **options)
    try:
        yield made
    finally:
        made.close()


# ---- faults ---------------------------------------------------------------------------------------------------------


@contextmanager
def before_each_step(hook: Callable[[int], None]) -> Iterator[list[str]]:
    """Call the hook with the number of each request to a database before it is made, and after each commit."""
    seen: list[str] = []

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **more: Any) -> Any:
            seen.append(name)
            hook(len(seen) - 1)
            answer = function(*args, **more)
            if name in ("commit", "swap_all"):
                seen.append(f"after {name}")
                hook(len(seen) - 1)
            return answer

        return step

    sqlite = find_driver("pxrs.stores", "sqlite:x")
    with pytest.MonkeyPatch.context() as patch:
        for where, names in {**STEPS, sqlite: ("swap_all", "read")}.items():
            for name in names:
                patch.setattr(where, name, watched(name, getattr(where, name)))
        yield seen


def ends_at(one: SqlOwner, at: int) -> bool:
    """Whether an owner came to the step at which it was to end. Nothing it does from then on reaches a database."""

    def hook(number: int) -> None:
        if number >= at:
            raise Crash

    one.warm_up()
    with before_each_step(hook):
        try:
            one.live()
        except Crash:
            return True
    return False


def sleeps_at(one: SqlOwner, at: int, meanwhile: Callable[[], None]) -> bool:
    """Whether an owner came to the step before which something else happens; then it goes on."""
    sleeping = False

    def hook(number: int) -> None:
        nonlocal sleeping
        if number >= at and not sleeping:
            sleeping = True
            meanwhile()

    one.warm_up()
    with before_each_step(hook):
        try:
            one.live()
        except PxrsError:
            assert sleeping
    return sleeping
