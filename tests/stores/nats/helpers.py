"""NATS stores of the tests: each in a bucket of its own, what is done behind their backs, and ways to lose answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import nats as natspy
import pytest

from pxrs.errors import Unavailable
from pxrs.io.nats import client as nats_client
from pxrs.stores.nats.store import NatsStore
from pxrs.testing.proxy import Direction, Proxy
from pxrs.testing.servers.base import wait_until
from tests.stores.kinds.places import SOON


def ask(address: str, verb: str, body: Any = None) -> dict[str, Any]:
    """Ask the API of a server, over a connection of its own."""

    async def work() -> bytes:
        connection = await natspy.connect(f"nats://{address}")
        try:
            answer = await connection.request(f"$JS.API.{verb}", json.dumps(body).encode() if body else b"", timeout=5)
            return answer.data
        finally:
            await connection.close()

    found: dict[str, Any] = json.loads(asyncio.run(work()))
    return found


def edit(address: str, bucket: str, **changes: Any) -> dict[str, Any]:
    """Change the configuration of a bucket's stream, as an operator could; the answer."""
    config = ask(address, f"STREAM.INFO.KV_{bucket}")["config"]
    return ask(address, f"STREAM.UPDATE.KV_{bucket}", {**config, **changes})


def consumers(address: str, bucket: str) -> list[str]:
    found = ask(address, f"CONSUMER.NAMES.KV_{bucket}").get("consumers")
    return list(found or [])


def delete_consumers(address: str, bucket: str) -> int:
    names = consumers(address, bucket)
    for name in names:
        ask(address, f"CONSUMER.DELETE.KV_{bucket}.{name}")
    return len(names)


@contextmanager
def losing_from_the_next_swap(store: NatsStore, proxy: Proxy, direction: Direction) -> Iterator[None]:
    """Reads work until a swap is sent; from then on one direction is lost until the block ends."""
    with ExitStack() as lost, pytest.MonkeyPatch.context() as patch:
        for name in ("each", "all"):
            swap = getattr(store._swapper, name)

            def lose(*arguments: Any, swap: Any = swap) -> Any:
                lost.enter_context(proxy.losing(direction))
                return swap(*arguments)

            patch.setattr(store._swapper, name, lose)
        yield
        assert proxy.lost[direction] > 0
    proxy.cut()  # a connection that was made while the block ended would wait for a greeting that was lost
    wait_until(lambda: _answers(store), "the store is reached again", SOON)


def _answers(store: NatsStore) -> bool:
    with suppress(Unavailable):
        return store.read(["nothing"]) == [None]
    return False


@contextmanager
def losing_swaps_alone(store: NatsStore, proxy: Proxy, direction: Direction) -> Iterator[None]:
    """What is lost belongs to a swap: the connection breaks after it was sent, and comes back at once."""
    burst = store._client.burst
    with pytest.MonkeyPatch.context() as patch:

        async def lose(sends: Any, seconds: float) -> Any:
            if not any(send.subject.startswith("$KV.") for send in sends):
                return await burst(sends, seconds)
            before = proxy.lost[direction]
            with proxy.losing(direction):  # its end breaks the connection
                answers = asyncio.ensure_future(burst(sends, seconds))
                while proxy.lost[direction] == before:
                    await asyncio.sleep(0.001)
            return await answers

        patch.setattr(store._client, "burst", lose)
        yield
        assert proxy.lost[direction] > 0


def client_loop() -> asyncio.AbstractEventLoop:
    """The loop in which all connections of this process run."""
    return nats_client._process.running().loop
