"""A streaming query's life in a group: it joins, holds shares of the partitions, and leaves within a second."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from pxrs.drivers import split_url
from pxrs.errors import Closed, Conflict, PxrsError, Refused, Unavailable, Unknown, masked_url
from pxrs.io.clock import Clock
from pxrs.model import Grant, Owner, Partition
from pxrs.runtime.batches.held_partitions import HeldPartitions
from pxrs.runtime.group.membership import Membership
from pxrs.runtime.queue.queue import Queue, open_queue
from pxrs.runtime.queue.settings_file import load_settings
from pxrs.runtime.registry.registry import CommitRequest
from pxrs.spark.read.options import StreamRequest

LEAVE_MS = 500
"""The time that a leaving member waits for the end of its batch. Spark has given the batch up by then."""
LEAVE_SECONDS = 3.0
"""The time after which Spark ends the source process anyway."""
LOOK_SECONDS = 0.02


@dataclass
class StreamShares(HeldPartitions):
    """The partitions in the hands of a query. Spark's questions are its sign of life."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.heard_at = self.clock.monotonic()
        self.stores_nothing = False
        """A sink commits: the rows alone tell how far it is."""
        self.is_committed: Callable[[], bool] = lambda: False
        """Whether a sink has committed the running batch, before Spark has said that it is over."""

    def position(self, partition: int) -> int | None:
        return None if self.stores_nothing else super().position(partition)

    def drained(self, partition: int) -> bool:
        if super().drained(partition):
            return True
        return self.is_draining(partition) and self.is_committed()

    def is_draining(self, partition: int) -> bool:
        with self._lock:
            return self._shares[partition].draining

    def is_stalled(self, now: float) -> bool:
        return now - self.heard_at > self.settings.progress_limit_ms / 1000

    def heard(self) -> None:
        """Spark has asked something: its JVM works."""
        self.heard_at = self.clock.monotonic()

    def grant(self, partition: int) -> Grant | None:
        with self._lock:
            share = self._shares.get(partition)
            return None if share is None else share.grant

    def with_notes(self) -> list[Grant]:
        """Partitions whose last owner has left a note beside the checkpoint."""
        with self._lock:
            return [share.grant for share in self._shares.values() if share.ready and share.note and not share.draining]


class StreamMember:
    """One start of a streaming query as a member: from Spark's first question to the end of the source process."""

    def __init__(self, queue: Queue, request: StreamRequest, member: str, clock: Clock) -> None:
        assert request.group is not None
        self.queue = queue
        self.group = queue.group(request.group)
        self.settings = queue.settings
        self.shares = StreamShares(self.settings, clock)
        about = {"engine": "spark-stream", "jvm": str(os.getppid())}
        self._membership: Membership = queue.join(request.group, self.shares, member, about, self.settings)
        self.shares.wake = self._membership.wake
        self.submit = self._membership.submit
        self.report = self._membership.report
        self._clock = clock
        self._membership.start()

    @property
    def me(self) -> Owner:
        return self._membership.owner

    def check(self) -> None:
        """Raise what has ended this member: then the query must end too."""
        error = self._membership.error
        if error is not None:
            raise error
        if self._membership.is_done or self._membership.stopping:
            raise Closed(f"member {self.me.id!r} was asked to leave group {self.group.name!r}, and has left")

    def rows(self, partitions: Collection[int]) -> dict[int, Partition]:
        found = self.group.registry.read_partitions(sorted(partitions))
        return {number: held.row for number, held in found.items()}

    def store(self, positions: Mapping[Grant, int]) -> dict[Grant, int]:
        """Store progress, each partition for itself; returns what must be tried again."""
        try:
            results = self.submit(CommitRequest(positions)).result()
        except Closed:
            self.check()
            raise
        again = (Conflict, Unknown, Unavailable)
        return {grant: end for grant, end in positions.items() if isinstance(results[grant.partition], again)}

    def await_claims(self, seconds: float) -> bool:
        """Wait until this member holds what the group has for it; False if the time was over first."""
        deadline = self._clock.monotonic() + seconds
        while not self._is_settled():
            self.check()
            if self._clock.monotonic() > deadline:
                return False
            self.shares.wake_event.wait(LOOK_SECONDS)
            self.shares.wake_event.clear()
        return True

    def _is_settled(self) -> bool:
        held = set(self.shares.partitions)
        try:
            group = self.group.registry.find_group()
            target = self.group.registry.target(group.target) if group is not None and group.target else None
        except Unavailable:
            return False
        return target is not None and self.me.id in target.members and set(target.of(self.me.id)) <= held

    def leave(self) -> None:
        """Give everything up at the positions that are known."""
        with suppress(PxrsError):  # the lease runs out then
            self._membership.stop(LEAVE_SECONDS)
        with suppress(PxrsError):
            self.queue.close()


def open_for(request: StreamRequest) -> Queue:
    """The queue that a stream reads, with the settings of its options."""
    log = request.read.log
    if split_url(log)[0] == "memory":
        raise Refused(f"{masked_url(log)!r} lives in the memory of one process, and Spark reads in others")
    own = {"on_expired": "stop" if request.read.fail_on_loss else "skip", "drain_ms": LEAVE_MS}
    settings = load_settings(**{**own, **request.settings})
    places: dict[str, Any] = {"url": log} if request.registry is None else {"log": log, "registry": request.registry}
    return open_queue(**places, settings=settings, create=False)


def exit_on_sigterm() -> Callable[[], None]:
    """Spark ends a source process by SIGTERM, sometimes twice, and calls ``stop`` only if something is raised.

    Returns how to have it as it was.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    before = signal.getsignal(signal.SIGTERM)

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # another one must not cut the leave short
        if callable(before):
            before(number, frame)
        raise SystemExit(0)

    def undo() -> None:
        signal.signal(signal.SIGTERM, before)

    signal.signal(signal.SIGTERM, leave)
    return undo
