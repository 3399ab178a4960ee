"""The places of embedded stores: this process's memory, and a file of SQLite."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from pxrs.io.watch.file_bell import Bells
from pxrs.stores.base import ABSENT, Row, Store, Swap
from pxrs.testing.faults.racing import open_store
from pxrs.testing.ground import FileGround, Ground, Happening


class MemoryGround(Ground):
    """Nothing outside can touch it: what happens to it is done through a handle of its own."""

    name: ClassVar[str] = "memory"
    lacks: ClassVar[dict[Happening, str]] = {
        "restart": "no server",
        "pause": "no server",
        "lose": "no network",
        "cut_watch": "waiters and writers are one process",
    }

    def __init__(self, directory: Path) -> None:
        self._name = directory.parent.name
        self._saved: list[Row] = []

    @property
    def url(self) -> str:
        return f"memory:{self._name}"

    def wipe(self) -> None:
        self._replace([])

    def save(self) -> None:
        with closing(open_store(self.url)) as store:
            self._saved = store.scan("")

    def restore(self) -> None:
        self._replace(self._saved)

    def _replace(self, rows: list[Row]) -> None:
        with closing(open_store(self.url)) as store:
            present = {row.key: row.version for row in store.scan("")}
            wanted = {row.key: row.value for row in rows}
            _swap_until_done(store, present, wanted)


def _swap_until_done(store: Store, present: dict[str, int], wanted: dict[str, bytes]) -> None:
    """In one step, and again if a member beats in between."""
    while True:
        keys = {*present, *wanted}
        swaps = [Swap(key, present.get(key, ABSENT), wanted.get(key)) for key in keys]
        if store.swap_all(swaps).verdict.name == "DONE":
            return
        present = {row.key: row.version for row in store.scan("")}


class SqliteGround(FileGround):
    """A copy is put back as an operator does it: over SQLite's own backup, with the file open elsewhere."""

    name: ClassVar[str] = "sqlite"

    @property
    def _file(self) -> Path:
        return self.place / "registry.db"

    @property
    def url(self) -> str:
        return f"sqlite:{self._file}"

    def wipe(self) -> None:
        with closing(sqlite3.connect(self._file, timeout=10)) as database, database:
            database.execute("DELETE FROM rows")

    def save(self) -> None:
        self._back_up(self._file, self._copy)

    def restore(self) -> None:
        self._back_up(self._copy, self._file)

    def _back_up(self, source: Path, target: Path) -> None:
        with closing(sqlite3.connect(source, timeout=10)) as one, closing(sqlite3.connect(target, timeout=10)) as two:
            one.backup(two)

    @contextmanager
    def without_watch(self) -> Iterator[None]:
        """Nobody rings while the block runs."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Bells, "ring", lambda *_: None)
            yield
        assert os.path.exists(f"{self._file}-bell")
