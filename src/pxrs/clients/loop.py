"""An event loop in a daemon thread, so that ordinary threads can use libraries that are written for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_END_SECONDS = 2.0


class LoopThread:
    """An event loop that runs until the end of the process, or of itself."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self.thread.start()

    def submit(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run it in the loop and wait for its result; TimeoutError when it takes longer than that."""
        call = _Call(work)
        self.loop.call_soon_threadsafe(call.start)
        try:
            if not call.ended.acquire(timeout=max(0.0, seconds)):
                raise TimeoutError
        except BaseException:
            self.loop.call_soon_threadsafe(call.cancel)
            raise
        return call.result()

    def end(self) -> None:
        with suppress(Exception):
            self.submit(_cancel_the_rest(), _END_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(_END_SECONDS)
        if not self.thread.is_alive():
            self.loop.close()


class _Call(Generic[T]):
    """Work that one thread waits for. What asyncio has for this takes twice as many turns of the loop and of locks."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._answer: list[T] = []
        self._failure: BaseException | None = None
        self.ended = threading.Lock()
        self.ended.acquire()

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
            self.ended.release()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.add_done_callback(lambda _: self._work.close())  # which may not even have begun
            self._task.cancel()

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
