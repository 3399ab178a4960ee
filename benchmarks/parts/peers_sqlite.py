"""SQLite as a queue: a table in WAL mode, synced at every commit, ten thousand messages in each."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path

BATCH = 10_000


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=30)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    return database


def send(path: Path, keys: Sequence[str], value: bytes, count: int) -> float:
    """Seconds for so many inserts."""
    database = _connect(path)
    database.execute("CREATE TABLE messages(id INTEGER PRIMARY KEY, key TEXT, value BLOB)")
    began = time.perf_counter()
    for first in range(0, count, BATCH):
        rows = [(keys[number % len(keys)], value) for number in range(first, min(first + BATCH, count))]
        database.executemany("INSERT INTO messages(key, value) VALUES (?, ?)", rows)
        database.commit()
    took = time.perf_counter() - began
    database.close()
    return took


def consume(path: Path, handler: Callable[[bytes], object], count: int) -> float:
    """Seconds to read so many in their order, handle each, and store the progress."""
    database = _connect(path)
    database.execute("CREATE TABLE progress(one INTEGER PRIMARY KEY, next INTEGER)")
    began, following = time.perf_counter(), 1
    while following <= count:
        rows = database.execute("SELECT id, value FROM messages WHERE id >= ? LIMIT ?", (following, BATCH)).fetchall()
        for number, value in rows:
            handler(value)
            following = number + 1
        database.execute("INSERT OR REPLACE INTO progress VALUES (1, ?)", (following,))
        database.commit()
    took = time.perf_counter() - began
    database.close()
    return took
