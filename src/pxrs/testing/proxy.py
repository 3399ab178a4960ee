"""A TCP proxy between a client and a server, to lose what a network loses: replies, requests, connections.

    with Proxy("127.0.0.1", server.port) as proxy:
        store = open_store(f"redis://{proxy.address}")
        with proxy.losing("replies"):       # requests arrive and are carried out; nobody hears of it
            ...

It forwards bytes; it knows no protocol.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, Self

from pxrs.testing.servers.base import free_ports

Direction = Literal["requests", "replies"]
_CHUNK = 65_536


class Proxy:
    """Listens on a free port of the loopback interface and forwards to one server."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._lost: set[Direction] = set()
        self._refuses = False
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.port = free_ports(1)[0]
        self.connections = 0
        """The number of connections made through it so far."""
        self.forwarded = {"requests": 0, "replies": 0}
        """The bytes that went through, by direction."""
        self.lost = {"requests": 0, "replies": 0}
        """The bytes lost on purpose: they show that the fault really happened."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True, name="pxrs-proxy").start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @contextmanager
    def losing(self, direction: Direction) -> Iterator[None]:
        """While the block runs, bytes of one direction vanish. At its end the connections break: they are torn."""
        self._lost.add(direction)
        try:
            yield
        finally:
            self.cut()
            self._lost.discard(direction)
            self.cut()  # a client that came back in between has lost its greeting

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """While the block runs, there is no network: connections break, and new ones are refused."""
        self._refuses = True
        self.cut()
        try:
            yield
        finally:
            self._refuses = False

    def cut(self, which: slice = slice(None)) -> int:
        """Break connections, in the order in which they were made; all of them if none is said. Returns how many."""
        with self._lock:
            chosen = self._pairs[which]
            self._pairs = [pair for pair in self._pairs if pair not in chosen]
        for pair in chosen:
            for end in pair:
                _close(end)
        return len(chosen)

    @property
    def open(self) -> int:
        """The number of open connections."""
        with self._lock:
            return len(self._pairs)

    def close(self) -> None:
        _close(self._listener)
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refuses:
                _close(client)
                continue
            self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target, timeout=10)
        except OSError:
            _close(client)
            return
        server.settimeout(None)
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._pairs.append((client, server))
            self.connections += 1
        threading.Thread(target=self._forward, args=(client, server, "requests"), daemon=True).start()
        threading.Thread(target=self._forward, args=(server, client, "replies"), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, direction: Direction) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                if direction in self._lost:
                    self.lost[direction] += len(data)
                    continue
                target.sendall(data)
                self.forwarded[direction] += len(data)
        for end in (source, target):
            _close(end)
        with self._lock:
            self._pairs = [pair for pair in self._pairs if source not in pair]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _close(end: socket.socket) -> None:
    with suppress(OSError):  # wakes a thread that reads from it, which closing alone does not
        end.shutdown(socket.SHUT_RDWR)
    end.close()
