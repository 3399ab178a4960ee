"""The port ``Work`` between a member and its engine, and the handle of one partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pxrs.errors import PxrsError
from pxrs.model import Grant, Partition
from pxrs.rules.rebalance import Mode
from pxrs.runtime.ports.counters import Counters
from pxrs.runtime.registry.rows import Held


class Work(Protocol):
    """Those who process the partitions. Every call returns at once."""

    def start(self, grant: Grant, checkpoint: int | None, paused: bool, note: str) -> None:
        """Begin at the checkpoint (None: there is none yet). ``note`` was stored with it, by this or another owner."""

    def position(self, partition: int) -> int | None:
        """The next offset: everything below it is finished. None as long as the start is not known."""

    def drain(self, partition: int) -> None:
        """Take nothing more; finish what runs."""

    def drained(self, partition: int) -> bool:
        """Whether everything that was taken is finished."""

    def stop(self, partition: int, lost: bool) -> None:
        """The partition is gone: handed over, or (``lost``) taken away, in which case nothing more counts."""

    def pause(self, partition: int, paused: bool) -> None: ...

    def extend(self, until: float) -> None:
        """Work may go on until this monotonic time; after it nothing may be taken before a new extension."""

    def is_stalled(self, now: float) -> bool:
        """Whether a handler, or the log, has not answered for longer than the limit."""

    def is_blind(self) -> bool:
        """Whether the log does not answer."""

    def troubles(self) -> Mapping[int, PxrsError]:
        """Partitions that wait for their log, their sink, their dead letters or a disk, with the reason."""

    def tally(self) -> Counters:
        """The counters since the start."""


@dataclass(slots=True)
class Handle:
    """A partition in this member's hands. ``held`` is the row as last written here; None: read before writing.

    ``in_doubt``: a commit that was handed in has had no answer, so the row may be ahead of the known position.
    """

    grant: Grant
    held: Held[Partition] | None
    committed: int | None
    committed_at: float
    mode: Mode = Mode.ACTIVE
    paused: bool = False
    in_doubt: bool = False
