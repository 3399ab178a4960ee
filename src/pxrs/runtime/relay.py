"""A second pair of hands: carries out one piece of work while the next is being prepared."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class Relay(Generic[_Item]):
    """Works on one item at a time, in a thread that is made when it is first needed. ``work`` must not raise."""

    def __init__(self, work: Callable[[_Item], object], name: str) -> None:
        self._work = work
        self._name = name
        self._inbox: SimpleQueue[tuple[_Item] | None] = SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None

    def start(self, item: _Item) -> None:
        """Begin with an item, after ``wait``."""
        self._idle.clear()
        if self._thread is None and not self._begin():
            self._do(item)
        else:
            self._inbox.put((item,))

    def _begin(self) -> bool:
        """Whether there is a second thread: Python may give none when the program ends."""
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def wait(self) -> None:
        """Until the item is done."""
        self._idle.wait()

    def end(self) -> None:
        self._inbox.put(None)

    def _run(self) -> None:
        while (given := self._inbox.get()) is not None:
            self._do(given[0])

    def _do(self, item: _Item) -> None:
        try:
            self._work(item)
        finally:
            self._idle.set()
