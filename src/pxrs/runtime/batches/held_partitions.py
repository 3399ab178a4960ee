"""The partitions in the hands of an engine that works in batches, as its member and its driver loop see them.

The member's thread starts, drains and stops partitions; the driver's thread takes ranges of them, and moves positions
when a batch is committed. A partition counts as drained when it is in no running batch: that is what makes a hand-over
wait for the end of the batch, and for nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pxrs.errors import PxrsError
from pxrs.io.clock import Clock
from pxrs.model import Grant, Range
from pxrs.runtime.failures.log_outage import Blindness
from pxrs.runtime.failures.parking import pause_after
from pxrs.runtime.ports.counters import Counters
from pxrs.settings import Settings


@dataclass(slots=True)
class HeldPartition:
    """One owned partition. ``position`` is the next offset; it is None until the start is known."""

    grant: Grant
    position: int | None
    paused: bool
    note: str
    ready: bool = False
    draining: bool = False
    trouble: PxrsError | None = None
    failures: int = 0
    """In a row, of what this partition waits for."""
    parked_until: float = 0.0
    unshown: str = ""
    """A note that is committed and not published: nothing more is taken before it is."""


@dataclass
class HeldPartitions:
    """The partitions that this member owns: the member starts and stops them, the batch loop takes ranges."""

    settings: Settings
    clock: Clock
    alive_until: float = 0.0
    wake_event: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._shares: dict[int, HeldPartition] = {}
        self._left: dict[int, str] = {}
        self._running: frozenset[Grant] = frozenset()
        self.blindness = Blindness(self.clock, self.settings)
        self._busy_since: float | None = None
        self._tally = Counters()
        self._halted = False
        self.wake: Callable[[], None] = lambda: None
        """Tell the member that what it waits for may be drained now."""

    # ---- what the member's thread calls -----------------------------------------------------------------------------

    def start(self, grant: Grant, checkpoint: int | None, paused: bool, note: str) -> None:
        with self._lock:
            self._shares[grant.partition] = HeldPartition(grant, checkpoint, paused, note)
            self._left.pop(grant.partition, None)
        self.wake_event.set()

    def position(self, partition: int) -> int | None:
        return self._shares[partition].position

    def drain(self, partition: int) -> None:
        with self._lock:
            self._shares[partition].draining = True
        self.wake_event.set()

    def drained(self, partition: int) -> bool:
        with self._lock:
            share = self._shares[partition]
            return share.draining and share.grant not in self._running

    def stop(self, partition: int, lost: bool) -> None:
        with self._lock:
            share = self._shares.pop(partition)
            if share.unshown and not lost:
                self._left[partition] = share.unshown
        self.wake_event.set()

    def pause(self, partition: int, paused: bool) -> None:
        with self._lock:
            self._shares[partition].paused = paused
        self.wake_event.set()

    def extend(self, until: float) -> None:
        old, self.alive_until = self.alive_until, until
        if self.clock.monotonic() >= old:
            self.wake_event.set()

    def is_stalled(self, now: float) -> bool:
        since, limit = self._busy_since, self.settings.progress_limit_ms / 1000
        return self.blindness.is_lost(now) or (since is not None and now - since > limit)

    def is_blind(self) -> bool:
        return self.blindness.is_blind

    def halt(self) -> None:
        self._halted = True
        self.wake_event.set()

    # ---- what is measured -------------------------------------------------------------------------------------------

    def tally(self) -> Counters:
        return replace(self._tally)

    def where(self, partition: int) -> int | None:
        share = self._shares.get(partition)
        return share.position if share else None

    def troubles(self) -> dict[int, PxrsError]:
        with self._lock:
            return {p: share.trouble for p, share in self._shares.items() if share.trouble is not None}

    # ---- what the driver's thread calls -----------------------------------------------------------------------------

    @property
    def partitions(self) -> list[int]:
        with self._lock:
            return sorted(self._shares)

    @property
    def is_halted(self) -> bool:
        return self._halted

    @property
    def may_work(self) -> bool:
        """Whether anything may be begun: not once others could have taken over."""
        return not self._halted and self.clock.monotonic() < self.alive_until

    def newcomers(self) -> list[HeldPartition]:
        """Partitions whose start is not known yet."""
        return [share for share in self._takeable() if not share.ready]

    def takeable(self) -> dict[Grant, int]:
        """Partitions of which messages may be taken now, with their positions."""
        free = (share for share in self._takeable() if share.ready and not share.paused and not share.unshown)
        return {share.grant: share.position for share in free if share.position is not None}

    def unshown(self) -> dict[str, list[int]]:
        """Committed notes that are to be published now, each with the partitions that wait for it."""
        found: dict[str, list[int]] = {}
        for share in self._takeable():
            if share.unshown:
                found.setdefault(share.unshown, []).append(share.grant.partition)
        return found

    def owes_output(self) -> bool:
        """Whether committed output may not be shown yet: made here, or left by the last owner and not looked at."""
        with self._lock:
            return any(share.unshown or (share.note and not share.ready) for share in self._shares.values())

    def left_unshown(self) -> dict[str, list[int]]:
        """Committed notes that this member leaves unshown, each with its partitions; not those of a lost life."""
        with self._lock:
            here = {} if self._halted else {p: share.unshown for p, share in self._shares.items() if share.unshown}
            found: dict[str, list[int]] = {}
            for partition, note in (self._left | here).items():
                found.setdefault(note, []).append(partition)
            return found

    def _takeable(self) -> list[HeldPartition]:
        now = self.clock.monotonic()
        if not self.may_work:
            return []
        with self._lock:
            return [share for share in self._shares.values() if not share.draining and now >= share.parked_until]

    def begin(self, grant: Grant, position: int) -> None:
        """The start of a partition is known, and what its last owner left is settled."""
        with self._lock:
            share = self._find(grant)
            if share is not None:
                share.position, share.ready, share.trouble, share.failures = position, True, None, 0

    def park(self, partition: int, error: PxrsError) -> bool:
        """Leave a partition alone for a while: it waits for something to get better, and holds up no other.

        True if it has not waited for the same before.
        """
        with self._lock:
            share = self._shares.get(partition)
            if share is None:
                return False
            is_new = type(share.trouble) is not type(error)
            share.trouble, share.failures = error, share.failures + 1
            share.parked_until = self.clock.monotonic() + pause_after(share.failures)
            return is_new

    def hold(self, grants: Iterable[Grant], note: str) -> None:
        """These partitions are committed, and wait until what the note names is published."""
        with self._lock:
            for grant in grants:
                share = self._find(grant)
                if share is not None:
                    assert not share.unshown, f"partition {grant.partition}: {share.unshown} is not shown yet"
                    share.unshown = note

    def shown(self, partitions: Iterable[int], note: str) -> None:
        """Note that the output of this note is published: these partitions go on."""
        with self._lock:
            for partition in partitions:
                share = self._shares.get(partition)
                if share is not None and share.unshown == note:
                    share.unshown, share.trouble, share.failures, share.parked_until = "", None, 0, 0.0

    def take(self, ranges: Iterable[Range]) -> tuple[Range, ...]:
        """Begin a batch with those ranges that may still be taken."""
        with self._lock:
            taken = tuple(part for part in ranges if self._is_free(part))
            self._running = frozenset(self._shares[part.partition].grant for part in taken)
            self._busy_since = self.clock.monotonic() if taken else None
        return taken

    def _is_free(self, part: Range) -> bool:
        share = self._shares.get(part.partition)
        if share is None or share.grant.epoch != part.epoch:
            return False
        return not (share.draining or share.paused or share.unshown)

    def is_wanted(self, part: Range) -> bool:
        """Whether this part of a batch is still ours, is the next one there, and nobody waits for its partition.

        The next one: if what comes before it was refused, to go on behind it would skip that forever. If what comes
        before it is committed and not shown, its commit would overwrite the note that says what is to be shown.
        """
        with self._lock:
            return not self._halted and self._is_free(part) and self._shares[part.partition].position == part.start

    def progressed(self) -> None:
        """A part of the batch has ended: the time for the next part counts anew."""
        self._busy_since = self.clock.monotonic()

    def advance(self, positions: Mapping[Grant, int]) -> None:
        """These positions are committed."""
        with self._lock:
            for grant, position in positions.items():
                share = self._find(grant)
                if share is not None:
                    share.position, share.trouble, share.failures = position, None, 0

    def finish(self) -> None:
        """The batch has ended, one way or the other."""
        with self._lock:
            self._running, self._busy_since = frozenset(), None
        self.wake()

    def count(self, **more: float) -> None:
        for name, value in more.items():
            setattr(self._tally, name, getattr(self._tally, name) + value)

    def _find(self, grant: Grant) -> HeldPartition | None:
        share = self._shares.get(grant.partition)
        return share if share is not None and share.grant == grant else None
