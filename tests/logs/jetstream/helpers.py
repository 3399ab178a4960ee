"""Logs on a test server, a look at the server behind the log's back, and a proxy that loses answers."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import nats as natspy
from nats.aio.client import Client

from pxrs.logs.base import Log
from pxrs.settings import Settings
from tests.logs.helpers import open_url

open_nats = open_url


@contextmanager
def opened(url: str, create: bool = True, settings: Settings | None = None, **wish: Any) -> Iterator[Log]:
    log = open_nats(url, create, settings, **wish)
    try:
        yield log
    finally:
        log.close()


def with_server(address: str, work: Callable[[Client], Coroutine[Any, Any, Any]]) -> Any:
    """Do something with a connection of its own."""

    async def run() -> Any:
        connection = await natspy.connect(f"nats://{address}")
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


def ask(address: str, subject: str, body: Any = None, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """One request to the server; the answer as it is."""
    payload = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()

    async def work(connection: Client) -> Any:
        return json.loads((await connection.request(subject, payload, timeout=5, headers=headers)).data)

    found: dict[str, Any] = with_server(address, work)
    return found


def delete_streams(address: str) -> None:
    """All of them, as far as the server manages: only to spare it the work."""
    with suppress(natspy.errors.Error, OSError):
        for name in ask(address, "$JS.API.STREAM.NAMES").get("streams") or []:
            ask(address, f"$JS.API.STREAM.DELETE.{name}")


def stream_state(address: str, stream: str) -> dict[str, Any]:
    state: dict[str, Any] = ask(address, f"$JS.API.STREAM.INFO.{stream}")["state"]
    return state


class Proxy:
    """Stands between client and server. When ``deaf``, it swallows the next acknowledgement and hangs up."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.deaf = threading.Event()
        self.swallowed = threading.Event()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._open += [client, server]
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if answers and self.deaf.is_set() and b'"seq":' in data:
                    self.deaf.clear()
                    self.swallowed.set()
                    break
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for one in [self._listener, *self._open]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
