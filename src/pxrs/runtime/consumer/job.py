"""The job that all partitions of one consumer share: the log, the handler, and the link to the member."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pxrs.errors import PxrsError
from pxrs.io.clock import Clock
from pxrs.logs.base import Log
from pxrs.runtime.delivery import DeadLetterBox, Deliver
from pxrs.runtime.failures.log_outage import LogReachability
from pxrs.runtime.group.membership import Membership, weakly
from pxrs.runtime.ports.events import Report
from pxrs.runtime.ports.sink import Sink
from pxrs.runtime.registry.registry import Changed, CommitRequest
from pxrs.settings import Settings


class MemberLink(NamedTuple):
    """The link from a consumer's threads to its membership, which they do not keep alive, or to its subscription."""

    wake: Callable[[], None]
    """Wakes the member: there is something to commit or to release."""
    fail: Callable[[PxrsError], None]
    """The consumer must stop, and why."""
    stop: Callable[[], None]
    """The consumer shall leave: a handler has had enough."""
    report: Report
    submit: Callable[[CommitRequest], Future[Changed] | None]
    """Commit, and learn what became of it: for a sink, which publishes by that. None: there is no member any more."""

    @classmethod
    def to(cls, member: Membership) -> MemberLink:
        fail, stop = weakly(member.fail), weakly(member.request_stop)
        return cls(member.wake, fail, stop, weakly(member.tell), weakly(member.submit))


@dataclass(slots=True)
class Job:
    """The parts that all partitions of one consumer share."""

    log: Log
    settings: Settings
    clock: Clock
    handler: Callable[..., Any]
    deliver: Deliver
    start_at: Callable[[int], int]
    """The offset at which a partition without a checkpoint begins."""
    dead_letters: Callable[[], DeadLetterBox]
    link: MemberLink
    sink: Sink | None = None
    group: str = ""
    assigned: Callable[..., Any] | None = None
    revoked: Callable[..., Any] | None = None
    member: str = ""
    alive_until: float = 0.0
    """The monotonic time after which nothing is taken. A member extends it; without one it is infinite."""
    sink_took: bool = False
    """Whether the sink has taken output of this consumer. If so, it refuses a message, and not the set-up."""
    sight: LogReachability = field(init=False)

    def __post_init__(self) -> None:
        self.sight = LogReachability(self.log, self.clock, self.settings)
