"""Stores on etcd for tests: each on a place of its own, and ways to lose what their server answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from pxrs.stores.etcd.grpc_channel import Channel, Failed, messages
from pxrs.stores.etcd.store import EtcdStore
from pxrs.testing.proxy import Direction, Proxy
from pxrs.testing.servers.etcd import EtcdServer
from tests.stores.kinds.places import SOON


def losing_everything(_: EtcdStore, proxy: Proxy, direction: Direction) -> AbstractContextManager[None]:
    """Reads are lost as well: nothing that is asked afterwards tells what became of a swap."""
    return proxy.losing(direction)


@contextmanager
def losing_swaps_alone(store: EtcdStore, proxy: Proxy, direction: Direction) -> Iterator[None]:
    """What is lost belongs to a swap; reads work before and after it."""
    client = store._client
    send = client.send

    def send_and_lose(verb: str, requests: list[Any]) -> list[Any]:
        if not requests[0].compare:
            return send(verb, requests)
        with proxy.losing(direction):
            return send(verb, requests)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "send", send_and_lose)
        yield
        assert proxy.lost[direction] > 0


class Operator:
    """Asks a server what a registry never asks."""

    def __init__(self, server: EtcdServer) -> None:
        self._channel = Channel(server.address)
        self.token: str | None = None

    def ask(self, verb: str, request: Any) -> Any:
        [answer] = self._channel.ask(verb, [request], SOON, [("token", self.token)] if self.token else [])
        if isinstance(answer, Failed):
            raise answer
        return answer

    def revision(self) -> int:
        return int(self.ask("Range", messages.RangeRequest(key=b"x")).header.revision)

    def all_keys(self) -> list[bytes]:
        everything = messages.RangeRequest(key=b"\0", range_end=b"\0", keys_only=True)
        return [row.key for row in self.ask("Range", everything).kvs]

    def leases(self) -> set[int]:
        return {lease.ID for lease in self.ask("LeaseLeases", messages.LeaseLeasesRequest()).leases}

    def close(self) -> None:
        self._channel.close()


@contextmanager
def operator_of(server: EtcdServer) -> Iterator[Operator]:
    operator = Operator(server)
    try:
        yield operator
    finally:
        operator.close()
