"""A registry that is not there yet: looking finds nothing and makes nothing, the first write makes it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from pxrs.errors import Closed
from pxrs.stores.base import Outcome, Row, Store, Swap

_LOOK_SECONDS = 0.5
"""How often a wait looks whether somebody else has made the registry."""


class LateStore(Store):
    """Stands for a store whose file or directory does not exist. Another process may make it at any time."""

    def __init__(self, driver: type[Store], exists: Callable[[], bool], make: Callable[[], Store]) -> None:
        # Of the instance: they are those of the store that this one stands for.
        self.__dict__.update(guarantees=driver.guarantees, max_atomic=driver.max_atomic)
        self._exists = exists
        self._make = make
        self._made: Store | None = None
        self._closed = False

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        found = self._found()
        return [None] * len(keys) if found is None else found.read(keys)

    def scan(self, prefix: str) -> list[Row]:
        found = self._found()
        return [] if found is None else found.scan(prefix)

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        return self._opened().swap_each(swaps)

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        return self._opened().swap_all(swaps)

    def wait(self, prefix: str, after: int, timeout: float) -> int:
        found = self._found()
        if found is not None:
            return found.wait(prefix, after, timeout)
        threading.Event().wait(min(timeout, _LOOK_SECONDS) if after else 0)
        return 1

    def close(self) -> None:
        self._closed = True
        if self._made is not None:
            self._made.close()

    def _found(self) -> Store | None:
        """The store, if there is one by now."""
        self._check_open()
        return self._opened() if self._made is not None or self._exists() else None

    def _opened(self) -> Store:
        if self._made is not None:
            return self._made
        self._check_open()
        made = self._make()
        # Without a lock, which a fork could leave locked: of two threads the later one closes its own.
        kept: Store = self.__dict__.setdefault("_kept", made)
        if kept is not made:
            made.close()
        self._made = kept
        return kept

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the registry was closed before this call")
