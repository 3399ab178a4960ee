"""Redis stores of the tests: each on a place of its own, and ways to lose what their server answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from pxrs.stores.redis.store import RedisStore
from pxrs.testing.proxy import Direction, Proxy


def is_listening(store: RedisStore) -> bool:
    return store._listener.is_subscribed


def has_waiters(store: RedisStore) -> bool:
    return bool(store._listener._change._waiters)  # type: ignore[attr-defined]  # of the standard library


@contextmanager
def losing_from_the_next_swap(store: RedisStore, proxy: Proxy, direction: Direction) -> Iterator[None]:
    """Reads work until a swap is sent; from then on one direction is lost until the block ends."""
    client = store._client
    run = client.run
    with ExitStack() as lost, pytest.MonkeyPatch.context() as patch:

        def run_and_lose(*arguments: Any) -> Any:
            lost.enter_context(proxy.losing(direction))
            return run(*arguments)

        patch.setattr(client, "run", run_and_lose)
        yield
        assert proxy.lost[direction] > 0


@contextmanager
def losing_swaps_alone(store: RedisStore, proxy: Proxy, direction: Direction) -> Iterator[None]:
    """What is lost belongs to a swap; reads work before and after it."""
    client = store._client
    run = client.run
    with pytest.MonkeyPatch.context() as patch:

        def run_and_lose(*arguments: Any) -> Any:
            with proxy.losing(direction):
                return run(*arguments)

        patch.setattr(client, "run", run_and_lose)
        yield
        assert proxy.lost[direction] > 0
