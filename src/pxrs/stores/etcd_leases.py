"""Leases of rows with a time to live: one for each key, kept alive by each write, and forgotten to let it run out.

A lease is kept alive before its row is written, and lasts a second longer than asked: so the row does not vanish
earlier than its time to live after the write. It is never revoked, since that would delete what is attached to it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from pxrs.clients.etcd import Client
from pxrs.clients.etcd_grpc import Failed, messages
from pxrs.clock import SystemClock
from pxrs.errors import PxrsError

NONE = 0
"""The id that says: no lease."""
_SPARE_SECONDS = 1


class _Lease(NamedTuple):
    id: int
    ttl_ms: int


class Leases:
    """The leases of one store object."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._clock = SystemClock()
        self._begin()
        client.after_fork(self._begin)

    def _begin(self) -> None:
        """Also in a forked child: the leases are those of its parent's members."""
        self._lock = threading.Lock()
        self._held: dict[bytes, _Lease] = {}

    def renew(self, wanted: Mapping[bytes, int]) -> dict[bytes, int]:
        """Living leases for these keys with these times to live: their ids. Raises when the server does not answer."""
        if not wanted:
            return {}
        with self._lock:
            held = {key: lease for key in wanted if (lease := self._held.get(key)) and lease.ttl_ms == wanted[key]}
        alive = self._keep_alive(held)
        made = self._grant({key: ttl_ms for key, ttl_ms in wanted.items() if key not in alive})
        with self._lock:
            self._held |= made
        return {key: lease.id for key, lease in {**alive, **made}.items()}

    def renew_if_late(self, wanted: Mapping[bytes, int], begun: float) -> None:
        """After the rows were written: if that took longer than the leases had to spare, keep them alive again."""
        if wanted and self._clock.monotonic() - begun > _SPARE_SECONDS:
            with self._lock:
                held = {key: self._held[key] for key in wanted if key in self._held}
            with suppress(PxrsError):
                self._keep_alive(held)

    def forget(self, keys: Iterable[bytes]) -> None:
        """Keep the leases of these rows alive no longer: they are deleted, or shall stay for good."""
        if self._held:
            with self._lock:
                for key in keys:
                    self._held.pop(key, None)

    def _keep_alive(self, held: Mapping[bytes, _Lease]) -> dict[bytes, _Lease]:
        """Those that still live."""
        if not held:
            return {}
        requests = [messages.LeaseKeepAliveRequest(ID=lease.id) for lease in held.values()]
        answers = {answer.ID: answer.TTL for answer in self._client.converse("LeaseKeepAlive", requests)}
        return {key: lease for key, lease in held.items() if answers.get(lease.id, 0) > 0}

    def _grant(self, wanted: Mapping[bytes, int]) -> dict[bytes, _Lease]:
        if not wanted:
            return {}
        requests = [messages.LeaseGrantRequest(TTL=_seconds(ttl_ms)) for ttl_ms in wanted.values()]
        answers = self._client.send("LeaseGrant", requests)
        for answer in answers:
            if isinstance(answer, Failed):  # one that was granted after all runs out by itself
                raise self._client.error(answer)
        return {key: _Lease(answer.ID, wanted[key]) for key, answer in zip(wanted, answers, strict=True)}


def _seconds(ttl_ms: int) -> int:
    """Whole ones, as etcd has them, rounded up."""
    return -(-ttl_ms // 1000) + _SPARE_SECONDS
