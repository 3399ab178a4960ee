"""A fenced sink for the simulation: what real ones keep in files stands on a storage that survives every process.

Each step takes time and is one moment in it, as the renaming of a file is: the process may die or sleep between any
two, and others may work on the same batch meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pxrs.errors import Fenced, Unavailable
from pxrs.model import Batch, Grant
from pxrs.testing.faults.checker import Shown, Withdrawn
from tests.simulation.timeline import CALM, Weather


class Writer(Protocol):
    """The process that a sink serves: its steps take its time, and it may die between any two."""

    @property
    def cluster(self) -> Weather: ...

    def sleep(self, seconds: float) -> None: ...

    def crash(self) -> None: ...


class Place(NamedTuple):
    """One message, and the epoch under which its output was made."""

    partition: int
    offset: int
    epoch: int


@dataclass
class Storage:
    """All that is durable of the output. Plans say whose it is; staged parts wait for their commit, by partition."""

    plans: dict[str, Batch] = field(default_factory=dict)
    staged: dict[str, dict[int, list[Place]]] = field(default_factory=dict)

    def clear(self, name: str) -> None:
        self.staged.pop(name, None)
        self.plans.pop(name, None)


class SimulatedSink:
    """The sink of one process. Like the shipped ones: a plan before the data, parts shown one after the other."""

    def __init__(self, process: Writer, storage: Storage) -> None:
        self.failed = False
        """Whether this process has seen an outage of its sink: that ends it, and is nobody's fault."""
        self._process = process
        self._storage = storage
        self._written = ""

    def stage(self, batch: Batch, output: list[Place]) -> str:
        if not output:
            self._written = batch.name
            return ""
        self._take_time()
        self._storage.plans[batch.name] = batch
        for place in output:
            if place.partition not in self._storage.staged.get(batch.name, {}):
                self._take_time()
            self._storage.staged.setdefault(batch.name, {}).setdefault(place.partition, []).append(place)
        self._take_time()
        if batch.name not in self._storage.plans and self._process.cluster.timeline.random.random() < 0.5:
            # Whether a sink notices or not: such a batch can never be committed.
            raise Fenced(f"batch {batch.name} was cleared away: one of its partitions has a new owner")
        self._written = batch.name
        return f"show {batch.name}"

    def publish(self, note: str) -> None:
        name = note.removeprefix("show ")
        for partition in list(self._storage.staged.get(name, ())):
            self._take_time()
            for place in self._storage.staged.get(name, {}).pop(partition, ()):
                self._process.cluster.timeline.history.append(Shown(*place))
        self._take_time()
        self._storage.clear(name)

    def discard(self, batch: Batch) -> None:
        failed = self._written != batch.name
        self._process.cluster.timeline.history.append(Withdrawn(batch.ranges, failed))
        self._take_time()
        self._storage.clear(batch.name)

    def recover(self, queue: str, log: str, group: str, grant: Grant, note: str) -> None:
        self.publish(note)
        for name, batch in list(self._storage.plans.items()):
            epoch = {part.partition: part.epoch for part in batch.ranges}.get(grant.partition, grant.epoch)
            if epoch < grant.epoch and f"show {name}" != note:
                self._take_time()
                self._storage.clear(name)
        self._sweep()

    def _sweep(self) -> None:
        """Data without a plan belongs to nobody: somebody wrote on after it was cleared away."""
        for name in [name for name in self._storage.staged if name not in self._storage.plans]:
            del self._storage.staged[name]

    def _take_time(self, *outages: type[Exception]) -> None:
        """``outages``: what is raised when the sink is not there: as the shipped ones do, or as a user's own may."""
        cluster = self._process.cluster
        if cluster.strikes("torn"):
            self._process.crash()
        self._process.sleep(0.001 if cluster.faults is CALM else cluster.timeline.random.choice((0.001, 0.02, 0.3)))
        if cluster.strikes("sink_down"):
            self.failed = True
            raise cluster.timeline.random.choice(outages or (Unavailable, OSError))("simulated outage of the sink")
