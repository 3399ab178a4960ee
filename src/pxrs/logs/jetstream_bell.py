"""A bell over plain NATS: a tiny message tells the readers of a partition, in any process, that it has grown.

It is a hint. It is stored nowhere, it may be lost, and after a reconnect everybody is told, just in case.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from nats.aio.msg import Msg

from pxrs.errors import Unavailable
from pxrs.logs.jetstream_names import bell_of
from pxrs.logs.jetstream_stream import Stream

logger = logging.getLogger(__name__)


class Bell:
    """One subscription on the server for all partitions of a log, made when the first reader wants to be told."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._listeners: dict[int, dict[object, Callable[[], None]]] = {}
        self._stops: tuple[Callable[[], Coroutine[Any, Any, None]], Callable[[], None]] | None = None

    async def ring(self, partition: int) -> None:
        await self._stream.client.publish(bell_of(self._stream.name, partition), b"")

    def subscribe(self, partition: int, notify: Callable[[], None], seconds: float) -> Callable[[], None]:
        token = object()
        with self._lock:
            if self._stops is None:
                client = self._stream.client
                stop = client.run(client.listen(bell_of(self._stream.name, "*"), self._hear), seconds)
                self._stops = stop, client.on_reconnect(self._hear_all)
            self._listeners.setdefault(partition, {})[token] = notify

        def cancel() -> None:
            self._listeners.get(partition, {}).pop(token, None)  # after a close nobody listens

        return cancel

    def _hear(self, message: Msg) -> None:
        self._notify(int(message.subject.rpartition(".")[2]))

    def _hear_all(self) -> None:
        for partition in list(self._listeners):
            self._notify(partition)

    def _notify(self, partition: int) -> None:
        for notify in list(self._listeners.get(partition, {}).values()):
            try:
                notify()
            except Exception:
                logger.exception("a subscriber's callback failed; the others go on")

    def close(self) -> None:
        with self._lock:
            stops, self._stops = self._stops, None
            self._listeners = {}
        if stops is not None:
            stop, stop_reconnects = stops
            stop_reconnects()
            with suppress(Unavailable):
                self._stream.client.run(stop(), 2.0)
