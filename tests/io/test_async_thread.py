"""Work for an event loop, from ordinary threads: whichever thread runs the loop, everything is done and heard."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pxrs.io import async_thread as loops
from pxrs.io.async_thread import LoopThread

SECONDS = 10.0


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a busy machine ends a loop in that time, and then it is closed."""
    monkeypatch.setattr(loops, "_END_SECONDS", 30.0)


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    made = LoopThread("test")
    yield made
    made.end()
    assert made.loop.is_closed()


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    """A thread that is not the main one."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


async def _who() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


async def _never(begun: threading.Event, cancelled: threading.Event) -> None:
    begun.set()
    try:
        await asyncio.Event().wait()
    finally:
        cancelled.set()


def test_a_thread_that_asks_again_and_again_runs_the_loop_itself(
    loop: LoopThread, elsewhere: ThreadPoolExecutor
) -> None:
    def ask() -> set[str]:
        return {loop.submit(_who(), SECONDS) for _ in range(1_000)} - {"test"}

    [name] = elsewhere.submit(ask).result(SECONDS)
    assert name.startswith("ThreadPoolExecutor")


def test_the_main_thread_never_does(loop: LoopThread) -> None:
    """A signal could end any task there."""
    assert {loop.submit(_who(), SECONDS) for _ in range(200)} == {"test"}


def test_a_thread_with_a_loop_of_its_own_does_not_either(loop: LoopThread, elsewhere: ThreadPoolExecutor) -> None:
    async def ask() -> set[str]:
        return {loop.submit(_who(), SECONDS) for _ in range(200)}

    assert elsewhere.submit(asyncio.run, ask()).result(SECONDS) == {"test"}


def test_unasked_messages_are_read_after_a_thread_has_asked(loop: LoopThread, elsewhere: ThreadPoolExecutor) -> None:
    for _ in range(20):
        elsewhere.submit(loop.submit, _who(), SECONDS).result(SECONDS)
        heard = asyncio.run_coroutine_threadsafe(_who(), loop.loop)
        assert heard.result(SECONDS) == "test"


def test_threads_do_not_hold_each_other_up(loop: LoopThread) -> None:
    """A long call of one thread goes on whoever runs the loop, and many short ones end meanwhile."""
    begun, release = threading.Event(), asyncio.Event()

    async def long() -> str:
        begun.set()
        await release.wait()
        return "over"

    def many() -> int:
        return len([loop.submit(_who(), SECONDS) for _ in range(500)])

    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(loop.submit, long(), 10 * SECONDS)
        assert begun.wait(SECONDS)
        assert [done.result(SECONDS) for done in [pool.submit(many) for _ in range(8)]] == [500] * 8
        assert not first.done()
        loop.loop.call_soon_threadsafe(release.set)
        assert first.result(SECONDS) == "over"


@pytest.mark.parametrize("warm", [False, True], ids=["run there", "run here"])
def test_what_takes_too_long_is_cancelled(loop: LoopThread, elsewhere: ThreadPoolExecutor, warm: bool) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    def ask(seconds: float) -> None:
        for _ in range(1_000 if warm else 0):
            loop.submit(_who(), SECONDS)
        loop.submit(_never(begun, cancelled), seconds)

    for seconds in (0.05, 0.5, 5.0):  # if the loop's thread was held up for so long, it has not even begun
        with pytest.raises(TimeoutError):
            elsewhere.submit(ask, seconds).result(seconds + SECONDS)
        if begun.is_set():
            break
    assert begun.is_set() and cancelled.wait(SECONDS)
    assert elsewhere.submit(loop.submit, _who(), SECONDS).result(SECONDS)


@pytest.mark.parametrize("in_main", [False, True])
def test_a_failure_reaches_its_caller(loop: LoopThread, elsewhere: ThreadPoolExecutor, in_main: bool) -> None:
    async def fail() -> None:
        raise LookupError("not there")

    def ask() -> None:
        loop.submit(_who(), SECONDS)
        loop.submit(fail(), SECONDS)

    run: Callable[[], object] = ask if in_main else lambda: elsewhere.submit(ask).result(SECONDS)
    with pytest.raises(LookupError, match="not there"):
        run()


def test_work_that_is_started_goes_on_while_its_thread_does_other_things(
    loop: LoopThread, elsewhere: ThreadPoolExecutor
) -> None:
    def ask() -> list[str]:
        started = []
        for _ in range(100):
            loop.submit(_who(), SECONDS)
            started.append(loop.start(_who()))
        return [future.result(SECONDS) for future in started]

    assert len(elsewhere.submit(ask).result(SECONDS)) == 100


def test_a_loop_ends_under_a_thread_that_runs_it() -> None:
    """Its stop may be taken by that thread; the loop is closed all the same."""
    loop, slow = LoopThread("test"), threading.Event()

    async def reluctant() -> None:
        slow.set()
        for _ in range(2):  # takes its time to accept that it is cancelled
            try:
                await asyncio.sleep(0.3)
            except asyncio.CancelledError:
                continue

    def ask() -> None:
        for _ in range(1_000):
            loop.submit(_who(), SECONDS)
        loop.submit(reluctant(), SECONDS)

    with ThreadPoolExecutor(1) as elsewhere:
        asked = elsewhere.submit(ask)
        assert slow.wait(SECONDS)
        loop.end()
        assert asked.exception(SECONDS) is None
    loop.thread.join(SECONDS)
    assert loop.loop.is_closed()


def test_what_is_asked_of_a_closed_loop_fails_and_leaves_nothing_behind() -> None:
    loop = LoopThread("test")
    loop.end()
    with pytest.raises(RuntimeError, match="closed"):
        loop.submit(_who(), SECONDS)
