"""Send → handle in one process: messages per second and latency, with everything on (routing, checkpoints, fsync)."""

from __future__ import annotations

import queue as stdlib_queue
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pxrs
from benchmarks.harness import Result

SUMMARY = "send → handle, per message: ours (durable and in memory) against a SQLite table and queue.Queue"

VALUE = b"x" * 100
KEYS = [f"account-{number:05d}" for number in range(1_000)]


def run(quick: bool) -> Result:
    count = 300_000 if quick else 1_000_000
    trips = 100 if quick else 500
    with tempfile.TemporaryDirectory() as place:
        durable = _rate(f"file:{place}/queue", count)
        latency = _latency(f"file:{place}/latency", trips)
        table = _sqlite_rate(Path(place) / "table.db", count)
        table_latency = _sqlite_latency(Path(place) / "latency.db", trips)
    memory = _rate("memory:", count)
    plain = _stdlib_rate(count)
    figures = {"file log, messages/s": durable, "memory, messages/s": memory, "file log, p50 ms": latency * 1000}
    peers = {
        "SQLite table, messages/s": table,
        "queue.Queue, messages/s": plain,
        "SQLite table, p50 ms": table_latency * 1000,
    }
    ratios = {
        "file log / SQLite table": durable / table,
        "memory / queue.Queue (no keys, no checkpoints)": memory / plain,
        "SQLite table p50 / file log p50": table_latency / latency,
    }
    return Result("pipeline-threads", figures, peers, ratios)


def _rate(url: str, count: int) -> float:
    """All messages sent one by one and handled one by one, at the same time."""
    handled = _Countdown(count)
    with pxrs.open(url, partitions=8) as queue:
        consumer = queue.consumer(group="bench", handler=lambda _: None, member="A").start()
        began = time.perf_counter()
        with queue.producer() as producer:
            send = producer.send
            for number in range(count):
                send(KEYS[number % 1_000], VALUE)
        handled.until(lambda: consumer.tally.handled)
        took = time.perf_counter() - began
    return count / took


def _latency(url: str, trips: int) -> float:
    arrived = threading.Event()
    settings = pxrs.Settings(linger_ms=0)
    with pxrs.open(url, partitions=8, settings=settings) as queue, queue.producer() as producer:
        queue.consumer(group="bench", handler=lambda _: arrived.set(), member="A").start()
        return _median_trip(lambda: producer.send("k", VALUE), arrived, trips)


def _median_trip(send: Callable[[], object], arrived: threading.Event, trips: int) -> float:
    times = []
    for _ in range(trips + 10):
        arrived.clear()
        began = time.perf_counter()
        send()
        if not arrived.wait(30):
            raise RuntimeError("a message did not arrive within 30 s")
        times.append(time.perf_counter() - began)
    return statistics.median(times[10:])


class _Countdown:
    """Waits until so many were handled; looks every millisecond, which is nothing against the run."""

    def __init__(self, count: int) -> None:
        self._count = count

    def until(self, seen: Callable[[], int]) -> None:
        deadline = time.monotonic() + 300
        while seen() < self._count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{seen()} of {self._count} messages handled in 300 s")
            time.sleep(0.001)


# ---- peers ----------------------------------------------------------------------------------------------------------


class _SqliteQueue:
    """What many teams have: a table, a batch per transaction, a reader that remembers the last row."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        with self._connect() as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("CREATE TABLE messages(id INTEGER PRIMARY KEY, key TEXT, value BLOB)")
            db.execute("CREATE TABLE progress(one INTEGER PRIMARY KEY, next INTEGER)")
            db.execute("INSERT INTO progress VALUES (1, 1)")

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=30)
        db.execute("PRAGMA synchronous=FULL")
        return db

    def write(self, count: int, batch: int) -> None:
        db = self._connect()
        for first in range(0, count, batch):
            rows = [(KEYS[n % 1_000], VALUE) for n in range(first, min(first + batch, count))]
            db.executemany("INSERT INTO messages(key, value) VALUES (?, ?)", rows)
            db.commit()
        db.close()

    def consume(self, handle: Callable[[bytes], object], stop: threading.Event) -> None:
        db = self._connect()
        following = 1
        while not stop.is_set():
            rows = db.execute("SELECT id, value FROM messages WHERE id >= ? LIMIT 10000", (following,)).fetchall()
            for number, value in rows:
                handle(value)
                following = number + 1
            if rows:
                db.execute("UPDATE progress SET next = ?", (following,))
                db.commit()
            else:
                time.sleep(0.001)
        db.close()


def _sqlite_rate(path: Path, count: int) -> float:
    queue, stop, seen = _SqliteQueue(path), threading.Event(), [0]

    def handle(_: bytes) -> None:
        seen[0] += 1

    reader = threading.Thread(target=queue.consume, args=(handle, stop))
    reader.start()
    began = time.perf_counter()
    queue.write(count, 10_000)
    _Countdown(count).until(lambda: seen[0])
    took = time.perf_counter() - began
    stop.set()
    reader.join()
    return count / took


def _sqlite_latency(path: Path, trips: int) -> float:
    queue, stop, arrived = _SqliteQueue(path), threading.Event(), threading.Event()
    reader = threading.Thread(target=queue.consume, args=(lambda _: arrived.set(), stop))
    reader.start()
    median = _median_trip(lambda: queue.write(1, 1), arrived, trips)
    stop.set()
    reader.join()
    return median


def _stdlib_rate(count: int) -> float:
    """No keys, no partitions, no checkpoints, nothing durable: the least that Python itself asks for."""
    channel: stdlib_queue.Queue[bytes | None] = stdlib_queue.Queue(10_000)

    def drain() -> None:
        while channel.get() is not None:
            pass

    reader = threading.Thread(target=drain)
    began = time.perf_counter()
    reader.start()
    for _ in range(count):
        channel.put(VALUE)
    channel.put(None)
    reader.join()
    return count / (time.perf_counter() - began)
