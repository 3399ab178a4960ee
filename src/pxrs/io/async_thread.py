"""An event loop for ordinary threads, so that they can use libraries that are written for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_END_SECONDS = 2.0
PAUSE_SECONDS = 0.002
"""The time after an answer for which the loop is left to the thread that got it: it probably asks again."""


class LoopThread:
    """An event loop that is run until the end of the process, or of itself.

    A daemon thread of its own runs it, and reads messages from outside. To hand work to that thread and the answer back
    takes longer than many a server needs. So a thread that asks again and again runs the loop itself meanwhile: what
    the loop calls must not wait for anything that such a thread may hold.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._turn = threading.Lock()
        self._wanted = threading.Event()
        self._calls: set[_Call[Any]] = set()
        self._visited = self._ending = False
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def submit(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run it in the loop and wait for its result; TimeoutError when it takes longer than that."""
        call = _Call(work)
        self._calls.add(call)
        run = self._run_here if _may_run_a_loop() else self._run_there
        try:
            if not run(call, seconds):
                raise TimeoutError
        except BaseException:
            try:
                self.loop.call_soon_threadsafe(call.cancel)
            except RuntimeError:  # the loop is closed: nobody will ever run it
                call.drop()
            raise
        finally:
            self._calls.discard(call)
        return call.result()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it in the loop; its result is asked for later."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        self._wanted.set()  # no asking thread stays until it is done
        return future

    def end(self) -> None:
        with suppress(Exception):
            self.submit(_cancel_the_rest(), _END_SECONDS)
        self._ending = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._wanted.set()
        self.thread.join(_END_SECONDS)
        if not self.thread.is_alive() and self._turn.acquire(timeout=_END_SECONDS):
            self.loop.close()

    # --- whose turn it is

    def _run(self) -> None:
        while not self._ending:
            with self._turn:
                self._wanted.clear()
                if self._ending:  # the thread that had the turn before may have taken the stop for its own
                    return
                self.loop.run_forever()
            while not self._is_needed() and not self._wanted.wait(PAUSE_SECONDS) and self._visited:
                self._visited = False

    def _is_needed(self) -> bool:
        """Whether a thread waits for work that it does not run itself."""
        return any(call.is_left_to_others for call in list(self._calls))

    def _run_here(self, call: _Call[Any], seconds: float) -> bool:
        """Whether it is done in time: by this thread, unless another one has its turn."""
        if not self._turn.acquire(blocking=False):
            call.then = self._stop_if_alone
            return self._run_there(call, seconds)
        call.then = self._stop_soon
        self._visited = True
        try:
            self._run_until_over(call, self.loop.time() + seconds)
        finally:
            self._turn.release()
            if len(self._calls) > 1:  # others wait
                self._wanted.set()
        return call.is_over

    def _run_until_over(self, call: _Call[Any], ends: float) -> None:
        alarm = self.loop.call_at(ends, self.loop.stop)
        self.loop.call_soon(call.start)
        while not call.is_over and self.loop.time() < ends:
            self.loop.run_forever()
        alarm.cancel()

    def _run_there(self, call: _Call[Any], seconds: float) -> bool:
        """Whether it is done in time, by the thread whose turn it is."""
        call.is_left_to_others = True
        self.loop.call_soon_threadsafe(call.start)
        if not self._turn.locked():
            self._wanted.set()
        return call.over.acquire(timeout=max(0.0, seconds))

    def _stop_if_alone(self) -> None:
        if len(self._calls) < 2:
            self._stop_soon()

    def _stop_soon(self) -> None:
        """Stop after one more turn, for bytes that the work has left to be sent."""
        self.loop.call_soon(self.loop.stop)


def _may_run_a_loop() -> bool:
    """Not the main thread: what a signal raises there would end whichever task happens to run, for instance the one
    that reads from the server. Nor a thread that runs another loop.
    """
    return threading.current_thread() is not threading.main_thread() and asyncio._get_running_loop() is None


class _Call(Generic[T]):
    """Work that one thread waits for. What asyncio has for this takes twice as many turns of the loop and of locks."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._answer: list[T] = []
        self._failure: BaseException | None = None
        self.then: Callable[[], None] | None = None
        self.is_left_to_others = False
        self.over = threading.Lock()
        self.over.acquire()

    @property
    def is_over(self) -> bool:
        """Whether it is over: only for a thread that does not wait for it with ``over``."""
        return not self.over.locked()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            self._answer.append(await self._work)
        except asyncio.CancelledError:
            self._failure = CancelledError("the loop ends")
        except BaseException as error:
            self._failure = error
        finally:
            self.is_left_to_others = False
            self.over.release()
            if self.then is not None:
                self.then()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.add_done_callback(lambda _: self._work.close())  # which may not even have begun
            self._task.cancel()

    def drop(self) -> None:
        """Drop work that will not be run."""
        if self._task is None:
            self._work.close()

    def result(self) -> T:
        if self._failure is not None:
            raise self._failure
        return self._answer[0]


async def _cancel_the_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=1)
