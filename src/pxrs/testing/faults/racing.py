"""Processes that race on one store, for tests that last seconds and for soaks that last hours."""

from __future__ import annotations

import multiprocessing
import random
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

T = TypeVar("T")

ROWS = 256
BATCH = 16
DEADLINE = 120.0

SPAWN = multiprocessing.get_context("spawn")


class Tally(NamedTuple):
    """The result of one racer: the rows it won in each round, or its renewals, or its error."""

    won: tuple[tuple[int, ...], ...] = ()
    renewed: int = 0
    error: str = ""


def open_store(url: str, settings: Settings | None = None) -> Store:
    store: Store = find_driver("pxrs.stores", url).open(url, settings or Settings())
    return store


def race_processes(url: str, rounds: int, racers: int = 8) -> list[str]:
    """Claim every row in every round, from this many processes. The answer says what went wrong: nothing, we hope."""
    store = open_store(url)
    lay_out(store)
    barrier = SPAWN.Barrier(racers)
    tallies = in_processes(racers, _race_in_process, url, barrier, rounds)
    wrong = judge(store, tallies, rounds)
    store.close()
    return wrong


def key_of(row: int) -> str:
    return f"p/{row:03}"


def lay_out(store: Store) -> None:
    store.swap_each([Swap(key_of(row), ABSENT, b"round -1 by nobody") for row in range(ROWS)])


def race(store: Store, racer: int, barrier: Any, rounds: int) -> tuple[tuple[int, ...], ...]:
    """In each round every racer reads the same rows, then all swap, each in an order of its own."""
    order = random.Random(racer)
    won = []
    for number in range(rounds):
        rows = _patiently(lambda: store.scan("p/"))
        barrier.wait(DEADLINE)  # everybody has read: for each row all hold the same version
        order.shuffle(rows)
        won.append(tuple(claim(store, rows, b"round %d by %d" % (number, racer))))
        barrier.wait(DEADLINE)
    return tuple(won)


def claim(store: Store, rows: list[Row], value: bytes) -> list[int]:
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


def judge(store: Store, tallies: list[Tally], rounds: int) -> list[str]:
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


def guarded(run: Callable[[], Tally]) -> Tally:
    try:
        return run()
    except Exception as error:
        return Tally(error=f"{type(error).__name__}: {error}")


def in_processes(count: int, target: Callable[..., Tally], *arguments: Any) -> list[Tally]:
    answers: Queue[Tally] = SPAWN.Queue()
    processes = [SPAWN.Process(target=_answer, args=(answers, target, number, *arguments)) for number in range(count)]
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
    answers.put(guarded(lambda: target(*arguments)))


def _race_in_process(number: int, url: str, barrier: Barrier, rounds: int) -> Tally:
    store = open_store(url)
    try:
        return Tally(race(store, number, barrier, rounds))
    finally:
        store.close()
