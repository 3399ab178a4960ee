"""Two or more that do the same work, in turns: whatever else the machine does disturbs all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from benchmarks.harness import PeerFailed, Result

Work = Callable[[], object]


def race(result: Result, title: str, messages: int, ours: Work, peers: Mapping[str, Work], rounds: int = 3) -> None:
    """Put the messages a second of each into the result, and our ratio to each peer; the median round counts."""
    our_times: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(rounds):
        our_times.append(seconds_of(ours))
        for name, peer in peers.items():
            try:
                times[name].append(seconds_of(peer))
            except Exception as error:
                raise PeerFailed(f"{title}: {error}") from error
    our_time = statistics.median(our_times)
    result.figures[f"{title}, M messages/s"] = messages / our_time / 1e6
    for name in peers:
        peer_time = statistics.median(times[name])
        result.peers[_and(title, name) + ", M messages/s"] = messages / peer_time / 1e6
        result.ratios[_and(title, name)] = peer_time / our_time


def _and(title: str, peer: str) -> str:
    return f"{title} / {peer}" if peer else title


def seconds_of(work: Work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
