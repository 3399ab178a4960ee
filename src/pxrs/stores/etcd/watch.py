"""Waiting for changes in etcd: one thread and one stream for all prefixes that somebody waits for, and none before.

A stream always begins at the present revision. Whatever ended the one before - a break, a fork, a compaction that
overtook it - may have hidden changes, so everybody who waits is woken, and reads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pxrs.errors import Closed, PxrsError
from pxrs.stores.etcd.client import Client
from pxrs.stores.etcd.grpc_channel import Failed, keep_for_parent, messages

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = (0.05, 1.0)
"""Between two tries to open the stream: at first, and at most."""


def end_of(prefix: bytes) -> bytes:
    """The first key after all that begin with the prefix."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])


class RevisionWatch:
    """The marks of the prefixes that are waited for. A mark is a revision plus one, or more; it only grows."""

    def __init__(self, client: Client, revision: Callable[[], int]) -> None:
        self._client = client
        self._revision = revision
        self._closed = False
        self._stream: Any = None
        self._begin()
        client.after_fork(self._begin)

    def _begin(self) -> None:
        """Also in a forked child, which has neither the thread nor the locks of its parent."""
        if self._stream is not None:
            keep_for_parent(self._stream)
        self._change = threading.Condition()
        self._marks: dict[bytes, int] = {}
        self._running = False
        self._stream = None

    def wait(self, prefix: bytes, after: int, timeout: float) -> int:
        if prefix not in self._marks:
            self._add(prefix)
        with self._change:
            if after == 0:
                return self._marks[prefix]
            self._change.wait_for(lambda: self._closed or self._marks[prefix] != after, max(0.0, timeout))
            return self._marks[prefix]

    def _add(self, prefix: bytes) -> None:
        mark = self._revision() + 1
        with self._change:
            if self._closed:
                raise Closed(f"{self._client.address} was closed before this call")
            if prefix in self._marks:
                return
            self._marks[prefix] = mark
            if self._running:
                self._cancel()  # the next stream has this prefix too
                return
            self._running = True
            threading.Thread(target=self._run, name="pxrs-etcd-watch", daemon=True).start()

    def _run(self) -> None:
        pause, first = _PAUSE_SECONDS[0], True
        while not self._closed:
            prefixes = list(self._marks)
            try:
                for response in self._responses(prefixes):
                    self._take_in(prefixes, response, first)
                    first = first and not response.created
                    pause = _PAUSE_SECONDS[0]
            except Closed:
                return
            except (Failed, PxrsError) as error:
                logger.debug("the watch of %s broke: %s", self._client.address, error)
            first = False
            if prefixes == list(self._marks):
                self._rest(pause)
                pause = min(2 * pause, _PAUSE_SECONDS[1])

    def _responses(self, prefixes: list[bytes]) -> Iterator[Any]:
        requests = [_request(number, prefix) for number, prefix in enumerate(prefixes, 1)]
        with self._client.watch(requests) as stream:
            with self._change:
                self._stream = stream
                if self._closed or len(self._marks) != len(prefixes):
                    return
            for response in stream:
                if response.canceled:
                    self._say_why(response)
                    return
                yield response

    def _say_why(self, response: Any) -> None:
        why = f"compacted up to revision {response.compact_revision}" if response.compact_revision else "cancelled"
        logger.info("the watch of %s was ended by the server: %s %s", self._client.address, why, response.cancel_reason)

    def _take_in(self, prefixes: list[bytes], response: Any, first: bool) -> None:
        prefix = prefixes[response.watch_id - 1]
        seen = response.header.revision + 1
        with self._change:
            mark = self._marks[prefix]
            if response.events or (response.created and not (first and seen == mark)):
                self._marks[prefix] = max(mark + 1, seen)
                self._change.notify_all()

    def _rest(self, seconds: float) -> None:
        with self._change:
            self._change.wait_for(lambda: self._closed, seconds)

    def _cancel(self) -> None:
        if self._stream is not None:
            self._stream.cancel()

    def close(self) -> None:
        """Waits in other threads end."""
        with self._change:
            self._closed = True
            self._cancel()
            self._change.notify_all()


def _request(number: int, prefix: bytes) -> Any:
    wish = messages.WatchCreateRequest(key=prefix, range_end=end_of(prefix), watch_id=number)
    return messages.WatchRequest(create_request=wish)
