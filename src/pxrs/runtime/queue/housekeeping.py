"""Housekeeping: a process that sends or consumes seals full segments and deletes messages that are not kept.

A thread of its own, and one for each queue object that sends or consumes. It takes turns with those of other processes
by locks of the log, and nobody waits for it. It knows the log and the registry: nothing is deleted that a group needs.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import NamedTuple

from pxrs.errors import Refused
from pxrs.io.clock import Clock
from pxrs.io.fork import renew_in_child
from pxrs.io.process_exit import Stage, at_exit, join_all
from pxrs.logs.base import Chunk, Log
from pxrs.rules.retention import KEPT_CHUNKS, Policy, RetainedPart, RetentionDecision, judge
from pxrs.rules.row_format import decode_group, decode_partition
from pxrs.runtime.group.membership import Loop
from pxrs.runtime.queue.log_registry import LogRegistry
from pxrs.runtime.telemetry import metric_names as metrics
from pxrs.runtime.telemetry.metric_names import Sample
from pxrs.settings import Settings
from pxrs.stores.base import Store

logger = logging.getLogger("pxrs.housekeeping")

_CLOSE_SECONDS = 2.0
"""The time that closing waits for a segment that is being sealed; the next process sweeps what is half done."""


class Need(NamedTuple):
    """The smallest checkpoint of a partition, and the group that has it."""

    checkpoint: int
    group: str


@dataclass
class Round:
    """The result of one round. ``trimmed``: the old and the new start of partitions; ``held``: which groups keep
    messages from deletion, in which partitions; ``troubles``: what went wrong, and where.
    """

    sealed: list[Chunk] = field(default_factory=list)
    trimmed: dict[int, tuple[int, int]] = field(default_factory=dict)
    held: dict[str, list[int]] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)


class _Judged(NamedTuple):
    """The facts on which a partition was judged last; it is looked at again when they change, or when it is due."""

    bounds: tuple[int, int]
    checkpoint: int | None
    due_us: float


class Housekeeper:
    """Seals and trims the partitions of one queue, as its settings say. Keeps log and store alive, never the queue."""

    def __init__(self, log: Log, store: Store, settings: Settings, clock: Clock, belonging: LogRegistry) -> None:
        self._log = log
        self._store = store
        self._belonging = belonging
        self._settings = settings
        self._clock = clock
        self._policy = Policy(settings.retention_ms, settings.retention_bytes, settings.retain == "unconsumed")
        self._seals = settings.seal == "auto" and log.directory is not None
        self._pause = settings.housekeeping_ms / 1000
        self._closed = False
        self._sealed = 0
        self._trimmed = 0
        self._forget: weakref.finalize[..., Housekeeper] | None = None
        self._start()
        _all.add(self)
        renew_in_child(self, Housekeeper._start)

    def _start(self) -> None:
        """Everything that belongs to this process alone; a forked child begins anew, and without a thread."""
        if self._forget is not None:
            self._forget.detach()
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._loop: Loop | None = None
        self._next_at = 0.0
        self._grown: dict[int, tuple[int, float]] = {}
        self._judged: dict[int, _Judged] = {}
        self._sweep_at: dict[int, float] = {}
        self._noted: dict[str, str] = {}
        self._holders: set[str] = set()

    # ---- the thread -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, if there is anything to do and it was not begun before."""
        with self._starting:
            if self._closed or self._loop is not None or not (self._seals or self._policy.is_any):
                return
            self._next_at = self._clock.monotonic() + self._pause
            self._loop = Loop(f"pxrs-{self._log.identity.name}-keep", self._step)
            # A queue that is dropped need not wait for the next round until its thread is gone.
            self._forget = weakref.finalize(self, self._loop.wake)
            self._forget.atexit = False
            self._loop.thread.start()

    def close(self) -> None:
        """End, and wait for it, but not for long. Closing twice is harmless."""
        join_all(self.end(), _CLOSE_SECONDS)

    def end(self) -> list[threading.Thread]:
        """Let its thread end; returns it, if there is one."""
        self._closed = True
        loop, self._loop = self._loop, None
        if loop is None:
            return []
        loop.wake()
        return [loop.thread]

    def _step(self) -> float | None:
        if self._closed:
            return None
        left = self._next_at - self._clock.monotonic()
        if left > 0:
            return left
        self.round()
        self._next_at = self._clock.monotonic() + self._pause
        return self._pause

    # ---- one round --------------------------------------------------------------------------------------------------

    def round(self) -> Round:
        """Do what is due now; what goes wrong in one partition stops no other."""
        with self._lock:
            done = Round()
            for partition in self._partitions() if self._seals else ():
                self._try(done, f"partition {partition}, sealing", partial(self._seal, partition, done))
            if self._policy.is_any:
                # After all sealing, which may take long: the checkpoints shall be as new as can be.
                self._try(done, "retention", partial(self._trim_all, done))
            self._say_who_holds(done)
            return done

    def _partitions(self) -> Iterator[int]:
        for partition in range(self._log.identity.partitions):
            if self._closed:
                return
            yield partition

    def _try(self, done: Round, what: str, action: Callable[[], None]) -> None:
        """An error is logged when it is new, not in every round."""
        try:
            action()
        except Exception as error:  # a full disk, a damaged partition, a registry that is away: the rest goes on
            if self._closed:
                return
            done.troubles[what] = str(error)
            self._note(what, f"{type(error).__name__}: {error}")
        else:
            self._noted.pop(what, None)

    def _note(self, what: str, text: str) -> None:
        if self._noted.get(what) != text:
            self._noted[what] = text
            logger.warning("%s: %s: %s", self._log.identity.name, what, text)

    # ---- sealing ----------------------------------------------------------------------------------------------------

    def _seal(self, partition: int, done: Round) -> None:
        end, now = self._log.bounds(partition)[1], self._clock.monotonic()
        if self._grown.get(partition, (None, 0.0))[0] != end:
            self._grown[partition] = (end, now + self._settings.seal_after_ms / 1000)
        if self._grown[partition][1] == inf:
            return
        made = self._log.seal(partition, self._settings.seal_after_ms)
        if now > self._grown[partition][1]:  # all that is full was old enough: nothing is to be done until it grows
            self._grown[partition] = (end, inf)
        done.sealed += made
        self._sealed += len(made)

    # ---- trimming ---------------------------------------------------------------------------------------------------

    def _trim_all(self, done: Round) -> None:
        why_not = self._belonging.why_not_trim()
        if why_not:
            raise Refused(why_not)
        needs = needs_of(self._store, self._settings.prefix, self._log)
        for partition in self._partitions():
            trim = partial(self._trim, partition, needs.get(partition), done)
            self._try(done, f"partition {partition}, retention", trim)

    def _trim(self, partition: int, need: Need | None, done: Round) -> None:
        now_us = int(self._clock.wall() * 1_000_000)
        checkpoint = None if need is None else need.checkpoint
        bounds = self._log.bounds(partition)
        known = self._judged.get(partition)
        if known is None or known[:2] != (bounds, checkpoint) or now_us >= known.due_us:
            verdict = self._judge(partition, bounds, checkpoint, now_us)
            if verdict.start > bounds[0]:
                self._delete(partition, bounds[0], verdict.start, done)
            if need is not None and verdict.wanted > verdict.start:
                done.held.setdefault(need.group, []).append(partition)
        self._sweep(partition)

    def _judge(self, partition: int, bounds: tuple[int, int], checkpoint: int | None, now_us: int) -> RetentionDecision:
        stored = [RetainedPart(c.start, c.end, c.bytes, c.last_us) for c in self._log.chunks(partition)]
        verdict = judge(stored, self._policy, checkpoint, now_us)
        oldest = stored[0].last_us if len(stored) > KEPT_CHUNKS and self._policy.age_ms else None
        due = float("inf") if oldest is None else oldest + self._policy.age_ms * 1_000
        self._judged[partition] = _Judged(bounds, checkpoint, 0 if verdict.wanted > bounds[0] else due)
        return verdict

    def _delete(self, partition: int, old: int, start: int, done: Round) -> None:
        start = self._log.trim(partition, start)
        done.trimmed[partition] = (old, start)
        self._trimmed += start - old
        self._sweep_at[partition] = self._clock.monotonic() + self._settings.delete_delay_ms / 1000

    def _sweep(self, partition: int) -> None:
        """Delete the files of trimmed messages, when jobs that were planned before no longer need them."""
        due = self._sweep_at.get(partition)
        if due is not None and self._clock.monotonic() >= due:
            del self._sweep_at[partition]
            self._log.trim(partition, self._log.bounds(partition)[0])

    def _say_who_holds(self, done: Round) -> None:
        for group in sorted(done.held.keys() - self._holders):
            logger.warning(
                "%s: group %r holds retention back: it has still to consume what would be deleted, as in partition %d",
                self._log.identity.name, group, done.held[group][0],
            )  # fmt: skip
        self._holders = set(done.held)

    # ---- what is measured -------------------------------------------------------------------------------------------

    def samples(self) -> Iterator[Sample]:
        labels = (self._log.identity.name,)
        yield Sample(metrics.SEALED_SEGMENTS, labels, self._sealed)
        yield Sample(metrics.TRIMMED_MESSAGES, labels, self._trimmed)


def needs_of(store: Store, prefix: str, log: Log) -> dict[int, Need]:
    """The messages that the groups of a queue have still to consume. A group that has stored nothing yet needs all.

    A group that has consumed another log of this name counts for nothing here, as everywhere.
    """
    base = f"{prefix}{log.identity.name}/"
    others: set[str] = set()
    found: list[tuple[str, int, int]] = []
    for row in store.scan(base):
        group, *rest = row.key.removeprefix(base).split("/")
        if rest == ["group"] and decode_group(group, row.value).log not in ("", log.identity.id):
            others.add(group)
        elif len(rest) == 2 and rest[0] == "partition":
            found.append((group, int(rest[1]), decode_partition(int(rest[1]), row.value).position))
    needs: dict[int, Need] = {}
    for group, partition, position in found:
        if group not in others:
            needs[partition] = min(needs.get(partition, Need(position, group)), Need(position, group))
    return needs


_all: weakref.WeakSet[Housekeeper] = weakref.WeakSet()


@at_exit(Stage.THREADS)
def _end_threads() -> list[threading.Thread]:
    return [thread for housekeeper in list(_all) for thread in housekeeper.end()]
