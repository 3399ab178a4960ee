"""How long a partition is without an owner: after a clean leave, and after a crash; against a polled lock table.

On every store the same: two members share 8 partitions, one goes, and the other takes over. A crash may come at any
moment between two beats and two looks at them: on SQLite it is shown how much that matters.
"""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pxrs
from benchmarks.harness import Result
from benchmarks.parts.phases import beyond_the_lease
from benchmarks.parts.registry_stores import places
from benchmarks.parts.waking import wake_ms

SUMMARY = "hand-over of 8 partitions after a clean leave and after a crash: ours against a polled lease table"

LEASE_MS = 1_000
PARTITIONS = 8


def run(quick: bool) -> Result:
    rounds = 3 if quick else 10
    with tempfile.TemporaryDirectory() as place:
        clean = [_pair(f"file:{place}/clean-{n}", _leave) for n in range(rounds)]
        crash = [_pair(f"file:{place}/crash-{n}", _die) for n in range(rounds)]
        table_clean = [_table(Path(place) / f"tc{n}.db", crash=False) for n in range(rounds)]
        table_crash = [_table(Path(place) / f"tx{n}.db", crash=True) for n in range(rounds)]
        phases = beyond_the_lease(lambda name: f"{place}/{name}", LEASE_MS, 4 if quick else 20)
    ours = {"clean leave, ms": _ms(clean), "crash, ms": _ms(crash), "crash beyond the lease, ms": _ms(crash) - LEASE_MS}
    peers = {"polled table, clean leave, ms": _ms(table_clean), "polled table, crash, ms": _ms(table_crash)}
    ratios = {
        "clean leave: polled table / ours": _ms(table_clean) / _ms(clean),
        "crash: polled table / ours": _ms(table_crash) / _ms(crash),
    }
    result = Result("handover", ours | {"lease, ms": LEASE_MS} | phases, peers, ratios)
    _on_every_store(result, 3 if quick else 15)
    return result


def _on_every_store(result: Result, rounds: int) -> None:
    """The distribution, of a clean leave and of a crash, as milliseconds: lowest, median, highest."""
    with tempfile.TemporaryDirectory() as name, places(Path(name)) as found:
        for place in found:
            result.figures[f"{place.name}: wake after a leave, p50 ms"] = wake_ms(place, rounds)
            for what, last_act in (("clean", _leave), ("crash", _die)):
                log = f"file:{name}/{place.name}-{what}"
                took = [_pair(f"{log}-{n}", last_act, place.url(f"{what}{n}")) for n in range(rounds)]
                for kind, value in (("low", min(took)), ("p50", statistics.median(took)), ("high", max(took))):
                    result.figures[f"{place.name}: {what}, {kind} ms"] = value * 1000


def picture(result: Result, path: Path) -> None:
    """For each store a line from the quickest to the slowest hand-over, with the median on it."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    stores = [what.partition(":")[0] for what in result.figures if what.endswith(": clean, p50 ms")]
    figure, axes = plt.subplots(figsize=(9, 1.5 + 0.5 * len(stores)))
    for what, color, shift in (("clean", "#3b7a9e", -0.12), ("crash", "#b5482e", 0.12)):
        for row, store in enumerate(stores):
            low, middle, high = (result.figures[f"{store}: {what}, {kind} ms"] for kind in ("low", "p50", "high"))
            axes.plot([low, high], [row + shift] * 2, color=color, linewidth=4, alpha=0.4)
            axes.plot([middle], [row + shift], "o", color=color, label=f"{what} (median)" if row == 0 else None)
            axes.annotate(f"{middle:.0f}", (high, row + shift), xytext=(6, -4), textcoords="offset points", fontsize=8)
    axes.axvline(LEASE_MS, color="#999999", linewidth=1)
    axes.set(title="Hand-over of 4 partitions, ms (grey: the lease)", xscale="log")
    axes.set_yticks(range(len(stores)), stores)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.legend(loc="upper center", bbox_to_anchor=(0.72, 1))  # between the two: nothing takes that long
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _ms(times: list[float]) -> float:
    return statistics.median(times) * 1000


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("the hand-over did not end within 60 s")
        time.sleep(0.0005)


def _pair(log: str, last_act: Callable[[pxrs.Consumer], None], registry: str | None = None) -> float:
    """Two members share the queue; one goes; the time until the other works on everything."""
    settings = pxrs.Settings(lease_ms=LEASE_MS)
    registry = registry or f"sqlite:{log.removeprefix('file:')}.db"
    with (
        pxrs.open(log=log, registry=registry, partitions=PARTITIONS, settings=settings) as one,
        pxrs.open(log=log, registry=registry, partitions=PARTITIONS, settings=settings) as other,
    ):
        goes = one.consumer(group="g", handler=lambda _: None, member="A").start()
        stays = other.consumer(group="g", handler=lambda _: None, member="B").start()
        _until(lambda: len(goes.partitions) == len(stays.partitions) == PARTITIONS // 2)
        began = time.perf_counter()
        last_act(goes)
        _until(lambda: len(stays.partitions) == PARTITIONS)
        return time.perf_counter() - began


def _leave(consumer: pxrs.Consumer) -> None:
    threading.Thread(target=consumer.stop).start()


def _die(consumer: pxrs.Consumer) -> None:
    consumer.kill()


# ---- the peer -------------------------------------------------------------------------------------------------------


class _LeaseTable:
    """The usual home-made form: an owner and a time for each partition, looked at every third of the lease."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        db = self._connect()
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE leases(partition INTEGER PRIMARY KEY, owner TEXT, renewed REAL)")
        db.executemany("INSERT INTO leases VALUES (?, NULL, 0)", [(p,) for p in range(PARTITIONS)])
        db.commit()
        db.close()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30)

    def live(self, name: str, share: int, owned: list[int], stop: threading.Event, clean: bool) -> None:
        db = self._connect()
        while not stop.is_set():
            now = time.time()
            db.execute("UPDATE leases SET renewed = ? WHERE owner = ?", (now, name))
            free = "SELECT partition FROM leases WHERE owner IS NULL OR renewed < ? LIMIT ?"
            limit = max(0, share - self._count(db, name)) if share else PARTITIONS
            for (partition,) in db.execute(free, (now - LEASE_MS / 1000, limit)).fetchall():
                db.execute("UPDATE leases SET owner = ?, renewed = ? WHERE partition = ?", (name, now, partition))
            db.commit()
            owned[0] = self._count(db, name)
            stop.wait(LEASE_MS / 3000)
        if clean:
            db.execute("UPDATE leases SET owner = NULL WHERE owner = ?", (name,))
            db.commit()
        db.close()

    def _count(self, db: sqlite3.Connection, name: str) -> int:
        return int(db.execute("SELECT count(*) FROM leases WHERE owner = ?", (name,)).fetchone()[0])


def _table(path: Path, crash: bool) -> float:
    table, stop_a, stop_b = _LeaseTable(path), threading.Event(), threading.Event()
    owned_a, owned_b = [0], [0]
    first = threading.Thread(target=table.live, args=("A", PARTITIONS // 2, owned_a, stop_a, not crash))
    first.start()
    _until(lambda: owned_a[0] == PARTITIONS // 2)
    second = threading.Thread(target=table.live, args=("B", 0, owned_b, stop_b, True))
    second.start()
    _until(lambda: owned_b[0] == PARTITIONS // 2)
    began = time.perf_counter()
    stop_a.set()
    _until(lambda: owned_b[0] == PARTITIONS)
    took = time.perf_counter() - began
    stop_b.set()
    first.join()
    second.join()
    return took
