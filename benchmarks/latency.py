"""From ``send`` in one process to the handler in another, one message at a time."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import pxrs
from benchmarks.harness import HERE, PeerFailed, Result, without
from benchmarks.parts import peers_valkey
from benchmarks.parts.peers_servers import stopped
from pxrs.logs.formats import few_rows

SUMMARY = "send → handler in another process, one at a time: ours (flush, and fsync) against XADD + XREADGROUP BLOCK"

WARM_UP = 30
FILLING = b"x" * 80

Send = Callable[[bytes], object]


class Trips(NamedTuple):
    """Milliseconds."""

    p50: float
    p99: float


def run(quick: bool) -> Result:
    trips, rounds = (200, 3) if quick else (1_000, 5)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "valkey").mkdir()
        with (
            _our_way(place / "flush", "flush") as flushed,
            _our_way(place / "fsync", "fsync") as synced,
            _their_way(place / "valkey") as theirs,
        ):
            ways = {
                "flush": flushed, "flush, encoded by Arrow": without(few_rows, "is_on", flushed), "fsync": synced,
                "XREADGROUP BLOCK": theirs,
            }  # fmt: skip
            seen: dict[str, list[Trips]] = {way: [] for way in ways}
            for _ in range(rounds):
                for way, trip in ways.items():
                    seen[way].append(_measured(trip, trips))
    return _result(seen)


def _result(seen: dict[str, list[Trips]]) -> Result:
    result = Result("latency")
    for way, found in seen.items():
        table = result.peers if way == "XREADGROUP BLOCK" else result.figures
        table[f"{way}, p50 ms"] = median(trips.p50 for trips in found)
        table[f"{way}, p99 ms"] = median(trips.p99 for trips in found)
    for which in ("p50", "p99"):
        pairs = zip(seen["XREADGROUP BLOCK"], seen["flush"], strict=True)
        ratios = [getattr(theirs, which) / getattr(ours, which) for theirs, ours in pairs]
        result.ratios[f"XREADGROUP BLOCK {which} / ours {which}, flush"] = median(ratios)
    return result


def _measured(trip: Callable[[], float], count: int) -> Trips:
    for _ in range(WARM_UP):
        trip()
    times = [trip() for _ in range(count)]
    return Trips(median(times), quantiles(times, n=100)[98])


@contextmanager
def _our_way(directory: Path, durability: str) -> Iterator[Callable[[], float]]:
    settings = pxrs.Settings(durability="flush" if durability == "flush" else "fsync", linger_ms=0)
    with (
        pxrs.open(f"file:{directory}", partitions=1, settings=settings) as queue,
        queue.producer() as producer,
        _receiver("ours", f"file:{directory}") as heard,
    ):
        yield lambda: _trip(lambda value: producer.send("k", value), heard)
        producer.send("k", b"").result()


@contextmanager
def _their_way(place: Path) -> Iterator[Callable[[], float]]:
    with peers_valkey.valkey(place) as port, _receiver("valkey", str(port)) as heard:
        client = peers_valkey.connect(port)

        def send(value: bytes) -> None:
            client.xadd(peers_valkey.STREAM, {"value": value})

        yield lambda: _trip(send, heard)
        send(b"")


def _trip(send: Send, heard: Callable[[], str]) -> float:
    send(b"%020d" % time.monotonic_ns() + FILLING)
    return int(heard()) / 1e6


@contextmanager
def _receiver(kind: str, place: str) -> Iterator[Callable[[], str]]:
    command = [sys.executable, "-m", "benchmarks.parts.peers_receiver", kind, place]
    process = subprocess.Popen(command, cwd=HERE.parent, stdout=subprocess.PIPE)
    stdout = process.stdout
    assert stdout is not None

    def heard() -> str:
        line = stdout.readline()
        if not line:
            raise PeerFailed(f"the receiving process ({kind}) has ended")
        return line.decode().strip()

    with stopped(process), stdout:
        if heard() != "ready":
            raise PeerFailed(f"the receiving process ({kind}) is not ready")
        yield heard
