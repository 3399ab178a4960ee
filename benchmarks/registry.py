"""Fenced checkpoints on every store, against the same client's bare loop; and what a group costs its registry."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from statistics import median

from benchmarks.harness import Result, without
from benchmarks.parts.registry_peers import bare_loop
from benchmarks.parts.registry_stores import Place, places
from benchmarks.parts.registry_work import CLOCK, CountingStore, Owning, open_store, per_second
from pxrs.logs.memory import MemoryLog
from pxrs.rules import row_format
from pxrs.rules.routing.partitioner import Partitioner
from pxrs.runtime.consumer.consumer import Consumer
from pxrs.runtime.queue.queue import Queue
from pxrs.settings import Settings
from pxrs.stores.base import Store
from pxrs.stores.memory import MemoryStore
from pxrs.testing.proxy import Proxy

SUMMARY = "fenced checkpoints a second on every store: ours against the same client's bare compare-and-set"

SIZES = (8, 256, 4_096)
NO_PEER = ("memory", "lockfiles")
"""A dict and a directory have no client whose loop could be compared."""


def run(quick: bool) -> Result:
    result = Result("registry")
    with tempfile.TemporaryDirectory() as name, places(Path(name)) as found:
        for place in found:
            _speed(result, place, Path(name), quick)
            _whole(result, place, quick)
    for partitions in SIZES:
        _costs(result, partitions)
    return result


# ---- how fast -------------------------------------------------------------------------------------------------------


def _speed(result: Result, place: Place, directory: Path, quick: bool) -> None:
    """One partition's checkpoint after the other; ours and the bare loop take turns, short ones: how fast the disk is
    changes from one second to the next.
    """
    seconds, rounds = (0.2, 5) if quick else (0.25, 29)
    with closing(open_store(place.url("speed"))) as store, ThreadPoolExecutor(1) as member:
        owning = Owning(store, 8)

        def commits() -> float:
            """As in a consumer: a thread of its own commits, not the main one."""
            return member.submit(per_second, lambda: owning.commit([3]), seconds).result()

        if place.name in NO_PEER:
            whole = without(row_format, "is_spliced", commits)
            ours, plain = zip(*((commits(), whole()) for _ in range(rounds)), strict=True)
            result.figures[f"{place.name}: commits/s"] = max(ours)
            result.figures[f"{place.name}: commits/s, rows encoded whole"] = max(plain)
            return
        with bare_loop(place, directory) as swap:
            bare, ours = zip(*((per_second(swap, seconds), commits()) for _ in range(rounds)), strict=True)
    result.figures[f"{place.name}: commits/s"] = median(ours)
    result.peers[f"{place.name}: bare compare-and-set/s"] = median(bare)
    pairs = zip(ours, bare, strict=True)
    result.ratios[f"{place.name}: ours / bare"] = median(mine / theirs for mine, theirs in pairs)


def _whole(result: Result, place: Place, quick: bool) -> None:
    """All of 256 partitions in one commit: how long, and over a network how many bytes."""
    rounds = 5 if quick else 20
    everything = list(range(256))
    if not place.port:
        with closing(open_store(place.url("whole"))) as store:
            owning = Owning(store, 256)
            took = median(_seconds(owning, everything) for _ in range(rounds))
        result.figures[f"{place.name}: commit of 256, ms"] = took * 1000
        return
    with Proxy("127.0.0.1", place.port) as proxy:
        url = place.url("whole").replace(f"127.0.0.1:{place.port}", proxy.address)
        with closing(open_store(url)) as store:
            owning = Owning(store, 256)
            before = dict(proxy.forwarded)
            took = median(_seconds(owning, everything) for _ in range(rounds))
            sent, back = (proxy.forwarded[way] - before[way] for way in ("requests", "replies"))
    result.figures[f"{place.name}: commit of 256, ms"] = took * 1000
    result.figures[f"{place.name}: commit of 256, kB sent"] = sent / rounds / 1000
    result.figures[f"{place.name}: commit of 256, kB received"] = back / rounds / 1000


def _seconds(owning: Owning, numbers: list[int]) -> float:
    began = time.perf_counter()
    owning.commit(numbers)
    return time.perf_counter() - began


# ---- how much -------------------------------------------------------------------------------------------------------


def _costs(result: Result, partitions: int) -> None:
    """What is asked of the store, whichever it is: for a beat, for a commit of everything, and for a rebalance."""
    store = CountingStore(MemoryStore())
    owning = Owning(store, partitions)
    owning.beat()
    everything = list(range(partitions))
    for what, work in (("a beat", owning.beat), ("a commit of all", lambda: owning.commit(everything))):
        cost = store.measured(work)
        for kind, value in (("calls", cost.calls), ("rows", cost.rows), ("bytes", cost.bytes)):
            result.figures[f"{partitions} partitions: {what}, {kind}"] = value
    _rebalance(result, partitions)


def _rebalance(result: Result, partitions: int) -> None:
    """A second member joins the first, until both own their half; then an idle while, per beat."""
    store = CountingStore(MemoryStore())
    settings = Settings(lease_ms=3_000, poll_ms=3_600_000, revoke_timeout_ms=60_000, drain_ms=30_000)
    with _queue(partitions, store, settings) as queue:
        first = queue.consumer(group="g", handler=lambda _: None, member="A").start()
        _until(lambda: len(first.partitions) == partitions)
        cost = store.measured(lambda: _join(queue, first, partitions))
        for kind, value in (("calls", cost.calls), ("rows", cost.rows), ("bytes", cost.bytes)):
            result.figures[f"{partitions} partitions: a rebalance, {kind}"] = value
        seconds = 4.0
        threading.Event().wait(2 * settings.beat_ms / 1000)  # until the last looks after the rebalance are over
        idle = store.measured(lambda: threading.Event().wait(seconds))
        beats = 2 * seconds * 1000 / settings.beat_ms
        result.figures[f"{partitions} partitions: idle, calls for each beat"] = idle.calls / beats


def _join(queue: Queue, first: Consumer, partitions: int) -> None:
    second = queue.consumer(group="g", handler=lambda _: None, member="B").start()
    _until(lambda: len(second.partitions) == len(first.partitions) == partitions // 2)


def _queue(partitions: int, store: Store, settings: Settings) -> Queue:
    from pxrs.logs.base import OpenOptions

    log = MemoryLog.open("memory:", OpenOptions(partitions, "xxh64-spark", "pmod"), settings, True)
    return Queue(log, store, Partitioner(partitions), None, settings, CLOCK)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("the group did not come to rest within 120 s")
        time.sleep(0.002)
