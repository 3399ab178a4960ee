"""The hooks that a store driver's test class fills in, and small helpers of the promises."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pxrs.stores.base import ABSENT, Outcome, Row, Store, Swap, Verdict


class Promises:
    """The hooks. Only ``make_store`` is a must."""

    patience: ClassVar[float] = 20.0
    """The time that something may take which must happen, before the promise counts as broken."""

    odd_keys: ClassVar[tuple[str, ...]] = (
        "a b", "a'b", 'a"b', "a%b", "a*b", "a?b", "a[b]", "a\\b", "a$b", "a:b", "a..b", "-a",
        "A", "a", "é", "日本", "𝄞",
    )  # fmt: skip
    """Keys that need care on their way into a store. Names and prefixes of users may hold them."""

    largest_value: ClassVar[int] = 1_048_576
    """The largest row that PXRS writes is the plan for 65,536 partitions, 128 KiB; a store should take this much."""

    def make_store(self, tmp_path: Path) -> Store:
        """A store with no rows in it."""
        raise NotImplementedError

    def make_second(self, store: Store, tmp_path: Path) -> Store:  # noqa: ARG002 - for drivers that need it
        """Open the same store again. By default: in the same directory."""
        return self.make_store(tmp_path)

    def lose_reply(self, store: Store, applied: bool) -> AbstractContextManager[object]:  # noqa: ARG002 - a hook
        """While the block runs, replies to swaps are lost, after the write was applied or before it."""
        pytest.skip("this driver's test class has no way to lose a reply")


def swap(store: Store, key: str, expect: int, value: bytes | None) -> Outcome:
    """Swap one row."""
    [outcome] = store.swap_each([Swap(key, expect, value)])
    return outcome


def put(store: Store, key: str, value: bytes, expect: int = ABSENT) -> int:
    """A swap that must be done; the new version."""
    outcome = swap(store, key, expect, value)
    assert outcome.verdict is Verdict.DONE, f"{key!r}: {outcome} for a swap without a conflict"
    return outcome.version


def get(store: Store, key: str) -> Row | None:
    [row] = store.read([key])
    return row


def value_of(store: Store, key: str) -> bytes | None:
    row = get(store, key)
    return None if row is None else row.value


class Background:
    """A call in another thread, whose answer or error is asked for later, with a deadline."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._call = call
        self._arguments = arguments
        self._answer: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._call(*self._arguments)
        except BaseException as error:
            self._error = error

    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self, patience: float, what: str) -> Any:
        self._thread.join(patience)
        if self._thread.is_alive():
            raise AssertionError(f"{what}: nothing happened for {patience} s")
        if self._error is not None:
            raise self._error
        return self._answer
