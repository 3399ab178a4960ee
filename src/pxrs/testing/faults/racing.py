"""Processes and threads that race on one store, for tests that last seconds and for soaks that last hours."""

from __future__ import annotations

import multiprocessing
import random
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any, NamedTuple, TypeVar

from pxrs.drivers import find_driver
from pxrs.errors import Unavailable
from pxrs.io.clock import SystemClock
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, Row, Store, Swap, Verdict
from pxrs.stores.memory import MemoryStore

T = TypeVar("T")

ROWS = 256
BATCH = 16
DEADLINE = 120.0

_spawn = multiprocessing.get_context("spawn")


class Tally(NamedTuple):
    """What one racer did: the rows it won in each round, or its renewals, or its error."""

    won: tuple[tuple[int, ...], ...] = ()
    renewed: int = 0
    error: str = ""


def opened(url: str) -> Store:
    store: Store = find_driver("pxrs.stores", url).open(url, Settings())
    return store


def race(rounds: int, url: str | None = None) -> list[str]:
    """Eight racers: processes on a store, or threads in memory where no URL is given."""
    return race_threads(rounds) if url is None else race_processes(url, rounds)


def race_processes(url: str, rounds: int, racers: int = 8) -> list[str]:
    """Claim every row in every round, from so many processes. The answer says what went wrong: nothing, we hope."""
    store = opened(url)
    _lay_out(store)
    barrier = _spawn.Barrier(racers)
    tallies = _in_processes(racers, _race_in_process, url, barrier, rounds)
    wrong = _judge(store, tallies, rounds)
    store.close()
    return wrong


def race_threads(rounds: int, racers: int = 8) -> list[str]:
    """The same from threads, in memory."""
    store = MemoryStore()
    _lay_out(store)
    barrier = threading.Barrier(racers)
    tallies: list[Tally] = []

    def run(number: int) -> None:
        tallies.append(_guarded(lambda: Tally(_race(store, number, barrier, rounds))))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _judge(store, tallies, rounds)


def open_together(url: str, processes: int) -> list[str]:
    """Open a new place from so many processes at the same moment; what each of them says."""
    barrier = _spawn.Barrier(processes)
    return [tally.error or "opened" for tally in _in_processes(processes, _open_in_process, url, barrier)]


def claim_and_renew(url: str, processes: int, seconds: float) -> list[Tally]:
    """Claim and renew rows for so long, from so many processes."""
    store = opened(url)
    _lay_out(store)
    store.close()
    return _in_processes(processes, _renew_in_process, url, _spawn.Barrier(processes), seconds)


def write(url: str, key: str) -> None:
    store = opened(url)
    store.swap_each([Swap(key, ABSENT, b"x")])
    store.close()


def write_pairs(url: str) -> None:
    """Swap two rows together, to equal values, for ever."""
    store = opened(url)
    number = 0
    while True:
        versions = [row.version if row else ABSENT for row in store.read(["pair/1", "pair/2"])]
        number += 1
        value = b"%d" % number
        store.swap_all([Swap("pair/1", versions[0], value), Swap("pair/2", versions[1], value)])


def _key(row: int) -> str:
    return f"p/{row:03}"


def _lay_out(store: Store) -> None:
    store.swap_each([Swap(_key(row), ABSENT, b"round -1 by nobody") for row in range(ROWS)])


def _race(store: Store, racer: int, barrier: Any, rounds: int) -> tuple[tuple[int, ...], ...]:
    """In each round every racer reads the same rows, then all swap, each in an order of its own."""
    order = random.Random(racer)
    won = []
    for number in range(rounds):
        rows = _patiently(lambda: store.scan("p/"))
        barrier.wait(DEADLINE)  # everybody has read: for each row all hold the same version
        order.shuffle(rows)
        won.append(tuple(_claim(store, rows, b"round %d by %d" % (number, racer))))
        barrier.wait(DEADLINE)
    return tuple(won)


def _claim(store: Store, rows: list[Row], value: bytes) -> list[int]:
    won = []
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        swaps = [Swap(row.key, row.version, value) for row in part]
        outcomes = _patiently(partial(store.swap_each, swaps))
        assert all(outcome.verdict is not Verdict.UNKNOWN for outcome in outcomes)
        pairs = zip(part, outcomes, strict=True)
        won += [int(row.key[2:]) for row, outcome in pairs if outcome.verdict is Verdict.DONE]
    return won


def _patiently(ask: Callable[[], T]) -> T:
    """Unavailable means that nothing happened, and to ask again: on a busy machine one of eight may starve a while."""
    clock = SystemClock()
    deadline = clock.monotonic() + DEADLINE
    while True:
        try:
            return ask()
        except Unavailable:
            if clock.monotonic() > deadline:
                raise


def _judge(store: Store, tallies: list[Tally], rounds: int) -> list[str]:
    wrong = [tally.error for tally in tallies if tally.error]
    if wrong:
        return wrong
    for number in range(rounds):
        winners = sorted(row for tally in tallies for row in tally.won[number])
        if winners != list(range(ROWS)):
            wrong.append(
                f"round {number}: {len(winners)} wins of {len(set(winners))} rows, instead of one each of {ROWS}"
            )
    last = {row.value.rpartition(b" by ")[0] for row in store.scan("p/")}
    if last != {b"round %d" % (rounds - 1)}:
        wrong.append(f"at the end the rows show {sorted(last)}")
    return wrong


def _guarded(run: Callable[[], Tally]) -> Tally:
    try:
        return run()
    except Exception as error:
        return Tally(error=f"{type(error).__name__}: {error}")


def _in_processes(count: int, target: Callable[..., Tally], *arguments: Any) -> list[Tally]:
    answers: Queue[Tally] = _spawn.Queue()
    processes = [_spawn.Process(target=_answer, args=(answers, target, number, *arguments)) for number in range(count)]
    try:
        for process in processes:
            process.start()
        return [answers.get(timeout=DEADLINE * 10) for _ in processes]
    finally:
        for process in processes:
            process.join(DEADLINE)
            process.kill()
        answers.close()
        answers.join_thread()


def _answer(answers: Queue[Tally], target: Callable[..., Tally], *arguments: Any) -> None:
    answers.put(_guarded(lambda: target(*arguments)))


def _race_in_process(number: int, url: str, barrier: Barrier, rounds: int) -> Tally:
    store = opened(url)
    try:
        return Tally(_race(store, number, barrier, rounds))
    finally:
        store.close()


def _open_in_process(number: int, url: str, barrier: Barrier) -> Tally:
    barrier.wait(DEADLINE)
    store = opened(url)
    store.swap_each([Swap(f"opener/{number}", ABSENT, b"x")])
    store.close()
    return Tally()


def _renew_in_process(number: int, url: str, barrier: Barrier, seconds: float) -> Tally:
    store = opened(url)
    clock = SystemClock()
    order = random.Random(number)
    renewed = 0
    barrier.wait(DEADLINE)
    ends = clock.monotonic() + seconds
    while clock.monotonic() < ends:
        rows = store.read([_key(order.randrange(ROWS)) for _ in range(4)])
        swaps = [Swap(row.key, row.version, b"by %d" % number) for row in rows if row]
        renewed += sum(outcome.verdict is Verdict.DONE for outcome in store.swap_each(swaps))
    store.close()
    return Tally(renewed=renewed)
