"""The metrics of all groups of a queue, from outside: read from the registry's rows and the log."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

from pxrs.errors import PxrsError
from pxrs.runtime.group.admin import GroupHandle
from pxrs.runtime.queue.queue import Queue
from pxrs.runtime.telemetry import metric_names as metrics
from pxrs.runtime.telemetry.metric_names import Sample
from pxrs.runtime.views.group import GroupView

_MEMBER_STATES = ("alive", "dead")
_PARTITION_STATES = ("owned", "free", "paused", "parked", "damaged")


class Exporter:
    """Looks at every group when it is asked. Kept between looks, it need not wait to know which members are dead.

    ``patient``: the look waits for a beat before it calls a member dead, as ``describe`` does. Else the next one tells.
    """

    def __init__(self, queue: Queue, patient: bool) -> None:
        self._queue = queue
        self._patient = patient
        self._groups: dict[str, GroupHandle] = {}
        self._lock = threading.Lock()

    def samples(self) -> Iterator[Sample]:
        """Everything as it is now. What cannot be read is missing, and pxrs_up or pxrs_group_up is 0."""
        with self._lock:  # two may ask at the same time, and a handle remembers what it has seen
            yield from list(self._all())

    def _all(self) -> Iterator[Sample]:
        queue = (self._queue.name,)
        try:
            names = self._queue.groups()
        except PxrsError:
            yield Sample(metrics.UP, queue, 0)
            return
        yield Sample(metrics.UP, queue, 1)
        self._groups = {name: self._groups.get(name) or self._queue.group(name) for name in names}
        for group in self._groups.values():
            yield from self._begin(group)
        for group in self._groups.values():
            yield from self._of_group(group)

    def _begin(self, group: GroupHandle) -> Iterator[Sample]:
        try:
            group.begin_to_watch()
        except PxrsError:
            yield Sample(metrics.GROUP_UP, (self._queue.name, group.name), 0)

    def _of_group(self, group: GroupHandle) -> Iterator[Sample]:
        labels = (self._queue.name, group.name)
        try:
            view = group.describe(self._patient)
        except PxrsError:
            yield Sample(metrics.GROUP_UP, labels, 0)
            return
        yield Sample(metrics.GROUP_UP, labels, all(not line.error for line in view))
        yield from _states(view, labels)
        if view.dead_letters is not None:
            yield Sample(metrics.GROUP_DEAD_LETTERS, labels, view.dead_letters)
            yield Sample(metrics.GROUP_OLDEST_DEAD_LETTER, labels, view.oldest_letter_seconds or 0.0)
        yield from _partitions(view, labels)


def _states(view: GroupView, labels: tuple[str, ...]) -> Iterator[Sample]:
    members = {"alive": len(view.living), "dead": len(view.dead)}
    for state in _MEMBER_STATES:
        yield Sample(metrics.GROUP_MEMBERS, (*labels, state), members[state])
    partitions = Counter(line.state for line in view)
    for state in _PARTITION_STATES:
        yield Sample(metrics.GROUP_PARTITIONS, (*labels, state), partitions[state])


def _partitions(view: GroupView, labels: tuple[str, ...]) -> Iterator[Sample]:
    for line in view:
        where = (*labels, str(line.partition))
        if line.lag is not None:
            yield Sample(metrics.GROUP_LAG_MESSAGES, where, line.lag)
        if line.lag_seconds is not None:
            yield Sample(metrics.GROUP_LAG_SECONDS, where, line.lag_seconds)
        if not line.is_damaged:
            yield Sample(metrics.GROUP_CHECKPOINT, where, line.checkpoint)
