"""An event loop in a daemon thread, so that ordinary threads can use libraries that are written for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

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
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(seconds)
        finally:
            future.cancel()  # nothing happens if it is done

    def end(self) -> None:
        with suppress(Exception):
            self.submit(_cancel_the_rest(), _END_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(_END_SECONDS)
        if not self.thread.is_alive():
            self.loop.close()


async def _cancel_the_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=1)
