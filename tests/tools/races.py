"""More races on one store: threads, openers, writers that renew, and a writer that is killed."""

from __future__ import annotations

import random
import threading
from multiprocessing.synchronize import Barrier

from pxrs.io.clock import SystemClock
from pxrs.stores.base import ABSENT, Swap, Verdict
from pxrs.stores.memory import MemoryStore
from pxrs.testing.faults.racing import (
    DEADLINE,
    ROWS,
    SPAWN,
    Tally,
    guarded,
    in_processes,
    judge,
    key_of,
    lay_out,
    open_store,
    race,
)


def race_threads(rounds: int, racers: int = 8) -> list[str]:
    """Claim every row in every round, from so many threads, in memory. The answer says what went wrong."""
    store = MemoryStore()
    lay_out(store)
    barrier = threading.Barrier(racers)
    tallies: list[Tally] = []

    def run(number: int) -> None:
        tallies.append(guarded(lambda: Tally(race(store, number, barrier, rounds))))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return judge(store, tallies, rounds)


def open_together(url: str, processes: int) -> list[str]:
    """Open a new place from so many processes at the same moment; what each of them says."""
    barrier = SPAWN.Barrier(processes)
    return [tally.error or "opened" for tally in in_processes(processes, _open_in_process, url, barrier)]


def claim_and_renew(url: str, processes: int, seconds: float) -> list[Tally]:
    """Claim and renew rows for so long, from so many processes."""
    store = open_store(url)
    lay_out(store)
    store.close()
    return in_processes(processes, _renew_in_process, url, SPAWN.Barrier(processes), seconds)


def write(url: str, key: str) -> None:
    store = open_store(url)
    store.swap_each([Swap(key, ABSENT, b"x")])
    store.close()


def write_pairs(url: str) -> None:
    """Swap two rows together, to equal values, for ever."""
    store = open_store(url)
    number = 0
    while True:
        versions = [row.version if row else ABSENT for row in store.read(["pair/1", "pair/2"])]
        number += 1
        value = b"%d" % number
        store.swap_all([Swap("pair/1", versions[0], value), Swap("pair/2", versions[1], value)])


def _open_in_process(number: int, url: str, barrier: Barrier) -> Tally:
    barrier.wait(DEADLINE)
    store = open_store(url)
    store.swap_each([Swap(f"opener/{number}", ABSENT, b"x")])
    store.close()
    return Tally()


def _renew_in_process(number: int, url: str, barrier: Barrier, seconds: float) -> Tally:
    store = open_store(url)
    clock = SystemClock()
    order = random.Random(number)
    renewed = 0
    barrier.wait(DEADLINE)
    ends = clock.monotonic() + seconds
    while clock.monotonic() < ends:
        rows = store.read([key_of(order.randrange(ROWS)) for _ in range(4)])
        swaps = [Swap(row.key, row.version, b"by %d" % number) for row in rows if row]
        renewed += sum(outcome.verdict is Verdict.DONE for outcome in store.swap_each(swaps))
    store.close()
    return Tally(renewed=renewed)
