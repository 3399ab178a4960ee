"""What all partitions of one consumer share: the log, the handler, and whom to tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pxrs.errors import PxrsError
from pxrs.io.clock import Clock
from pxrs.logs.base import Log
from pxrs.runtime.delivery import DeadLetterBox, Deliver
from pxrs.runtime.failures.log_outage import LogReachability
from pxrs.runtime.ports.events import Report, silent
from pxrs.runtime.ports.sink import Sink
from pxrs.settings import Settings


def nobody_yet(*_: Any) -> None:
    """Stands in a new ``Job`` until its consumer has connected itself."""


@dataclass(slots=True)
class Job:
    """What all partitions of one consumer share."""

    log: Log
    settings: Settings
    clock: Clock
    handler: Callable[..., Any]
    deliver: Deliver
    start_at: Callable[[int], int]
    """The offset at which a partition without a checkpoint begins."""
    dead_letters: DeadLetterBox
    wake: Callable[..., Any] = nobody_yet
    """Tell the member's loop that there is something to commit or to release."""
    fail: Callable[[PxrsError], Any] = nobody_yet
    """Tell the consumer that it must stop, and why."""
    stop: Callable[..., Any] = nobody_yet
    """Tell the consumer that it shall leave: a handler has had enough."""
    submit: Callable[..., Any] = nobody_yet
    """Commit, and learn what became of it: for a sink, which publishes by that."""
    report: Report = silent
    sink: Sink | None = None
    group: str = ""
    assigned: Callable[..., Any] | None = None
    revoked: Callable[..., Any] | None = None
    member: str = ""
    alive_until: float = 0.0
    """Nothing is taken after this monotonic time. A member extends it; without one it is infinite."""
    sink_took: bool = False
    """Whether the sink has taken output of this consumer. If so, it refuses a message, and not the set-up."""
    sight: LogReachability = field(init=False)

    def __post_init__(self) -> None:
        self.sight = LogReachability(self.log, self.clock, self.settings)
