"""Where a registry on NATS stands: in a bucket of one nats-server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from pxrs.testing.ground import ServerGround
from pxrs.testing.servers.base import wait_until
from pxrs.testing.servers.nats import NatsServer
from tests.stores.nats.helpers import delete_consumers, edit

_BUCKET = "ground"
_SECOND = 1_000_000_000


class NatsGround(ServerGround):
    """Its stream of changes is a consumer, of a kind that the bucket can be told to take no more."""

    name: ClassVar[str] = "nats"
    server: NatsServer

    def make_server(self, directory: Path) -> NatsServer:
        return NatsServer(directory)

    def url_at(self, address: str) -> str:
        return f"nats://{address}/{_BUCKET}"

    @contextmanager
    def without_watch(self) -> Iterator[None]:
        wait_until(self._forbid, "the bucket takes no more consumers")
        try:
            yield
        finally:
            edit(self.server.address, _BUCKET, consumer_limits={})

    def _forbid(self) -> bool:
        """Delete those that there are, before new ones come; the server refuses the limit while one exceeds it."""
        delete_consumers(self.server.address, _BUCKET)
        return "error" not in edit(self.server.address, _BUCKET, consumer_limits={"inactive_threshold": _SECOND})
