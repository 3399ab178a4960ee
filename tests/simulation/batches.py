"""Members that work in batches, simulated: the shipped batch loop, shares and commits on virtual time.

A process has two greenlets here, as it has two threads in reality: the member's loop, and the loop that runs batches.
The batch loop is the real one. It blocks in three places only: on its bell, in its pauses, and for the outcome of a
commit; all three are handed to it, so here they let virtual time go on instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import greenlet
import pyarrow as pa

from pxrs.errors import PxrsError, Unavailable
from pxrs.logs.base import SCHEMA, Chunk, Log, LogIdentity, Piece, Stamp
from pxrs.model import Batch, Message
from pxrs.runtime.batches.held_partitions import HeldPartitions
from pxrs.runtime.batches.loop import BatchLoop
from pxrs.runtime.batches.parts import BatchParts
from pxrs.runtime.delivery import Context
from pxrs.runtime.registry.registry import Changed, CommitRequest
from pxrs.settings import Settings
from pxrs.testing.faults.checker import Processed, Waived
from tests.simulation.cluster import GROUP, QUEUE, SETTINGS, Cluster, Nap, Process
from tests.simulation.sink import Place, SimulatedSink, Storage
from tests.simulation.timeline import CALM

BATCH_SETTINGS = SETTINGS.with_(progress_limit_ms=6_000, tries=2, target_batch_ms=1_500)


class VirtualEvent(threading.Event):
    """An event on which one greenlet of a process waits in virtual time."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._nap = Nap(process)

    def set(self) -> None:
        super().set()
        self._nap.end()

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            self._nap.take(timeout)
        return self.is_set()


class Awaited(Future[Changed]):
    """The outcome of a commit, awaited in virtual time."""

    def __init__(self, process: Process, outcome: Future[Changed]) -> None:
        super().__init__()
        self._outcome = outcome
        self._arrived = VirtualEvent(process)
        outcome.add_done_callback(lambda _: self._arrived.set())

    def result(self, timeout: float | None = None) -> Changed:
        self._arrived.wait(timeout)
        return self._outcome.result(0)


class SimulatedFailure(Exception):
    """What a user's function raises."""


class SimulatedLog(Log):
    """The log of a simulated queue: counts, and somebody to tell when they grow."""

    def __init__(self, cluster: BatchCluster) -> None:
        self.identity = LogIdentity(QUEUE, cluster.partitions, "xxh64-spark", "pmod", "simulated-log")
        self._cluster = cluster
        self._listeners: list[Callable[[], None]] = []

    def grown(self) -> None:
        for notify in list(self._listeners):
            notify()

    def bounds(self, partition: int) -> tuple[int, int]:
        if self._cluster.strikes("log_down"):
            raise Unavailable("simulated outage of the log")
        return 0, self._cluster.ends[partition]

    def read(self, partition: int, offset: int, max_rows: int = 1) -> pa.RecordBatch | None:
        _, end = self.bounds(partition)
        rows = [{"offset": o, "timestamp": 0, "value": b""} for o in range(offset, min(end, offset + max_rows))]
        return pa.RecordBatch.from_pylist(rows, schema=SCHEMA) if rows else None

    def subscribe(self, partition: int, notify: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(notify)
        return lambda: self._listeners.remove(notify)

    def append(
        self, batches: Mapping[int, pa.RecordBatch], stamps: Mapping[int, Stamp] | None = None
    ) -> dict[int, int]:
        raise NotImplementedError("the cluster sends")

    def offset_at(self, partition: int, timestamp_us: int) -> int:
        raise NotImplementedError("there are no times in this log")

    def pieces(self, partition: int, start: int, end: int) -> Sequence[Piece]:
        raise NotImplementedError("there are no files in this log")

    def chunks(self, partition: int) -> Sequence[Chunk]:
        raise NotImplementedError("nothing is stored in this log")

    def trim(self, partition: int, offset: int) -> int:
        raise NotImplementedError("nothing is deleted in this log")

    def sibling(self, name: str, partitions: int, create: bool) -> Log | None:
        raise NotImplementedError("dead letters are recorded in the history")

    def close(self) -> None:
        pass


class BatchProcess(Process):
    """One simulated life of a member that works in batches."""

    cluster: BatchCluster

    def __init__(self, cluster: BatchCluster, name: str) -> None:
        super().__init__(cluster, name)
        self.failure: PxrsError | None = None
        self.sink = SimulatedSink(self, cluster.storage)
        self._stopping = False
        self._rung = False
        self._driver = greenlet.greenlet(BatchLoop(self._assembly()).run, parent=cluster.hub)
        cluster.timeline.at(cluster.timeline.now, self._driver.switch)

    def _new_work(self, settings: Settings) -> HeldPartitions:
        self._settings = settings
        self.shares = HeldPartitions(settings, self.clock, wake_event=VirtualEvent(self))
        return self.shares

    def _assembly(self) -> BatchParts:
        return BatchParts(
            log=self.cluster.log, group=GROUP, owner=self.owner, shares=self.shares, settings=self._settings,
            clock=self.clock, execute=self._execute, is_fatal=lambda _: False, probe=lambda _: self.sleep(0.1),
            sink=self.sink if self.cluster.together else None, submit=self._submit, start_at=lambda _: 0,
            dead_letters=self, stop=self.leave, fail=self._fail, report=self.cluster.report,
            max_partitions=self.cluster.max_partitions, is_stopping=self._is_stopping, pause=VirtualEvent(self),
        )  # fmt: skip

    # ---- what a membership does -------------------------------------------------------------------------------------

    def _submit(self, request: CommitRequest) -> Future[Changed]:
        outcome = self.member.commits.submit(request)
        self._rung = True
        self.wake()
        return Awaited(self, outcome)

    def _rest(self, seconds: float) -> None:
        """What was handed in while the last round ran is carried out in the next, which follows at once."""
        super()._rest(0.001 if self._rung else seconds)
        self._rung = False

    def leave(self) -> None:
        self._stopping = True
        self.shares.wake_event.set()
        super().leave()

    def _fail(self, error: PxrsError) -> None:
        if self.alive:
            self.failure = error
            self.leave()

    def _is_stopping(self) -> bool:
        return self._stopping or self.member.finished or self.shares.is_halted

    def _exit(self) -> None:
        """The member has ended; the process has when its last batch has too."""
        self.shares.halt()
        while not self._driver.dead:
            self.sleep(0.1)
        super()._exit()

    def end(self) -> None:
        super().end()
        self._driver.throw()

    # ---- what a user's program does ---------------------------------------------------------------------------------

    def _execute(self, batch: Batch) -> list[Place]:
        chance = self.cluster.timeline.random
        longest = 0.1 if self.cluster.faults is CALM else 0.6
        self.sleep(chance.uniform(3, 9) if self.cluster.strikes("hanging") else chance.uniform(0.02, longest))
        places = [Place(r.partition, offset, r.epoch) for r in batch.ranges for offset in range(r.start, r.end)]
        if self.cluster.strikes("failing") or any(self.cluster.is_poisoned(place) for place in places):
            raise SimulatedFailure("simulated failure")
        for place in places:
            self._processed(place)
        return [place for place in places if not self._is_mute(place)]

    def _processed(self, place: Place) -> None:
        self.cluster.timeline.history.append(Processed(place.partition, place.offset, self.owner, place.epoch))

    def _is_mute(self, place: Place) -> bool:
        """Some messages have no output: where a batch has none at all, there is nothing to stage and to show."""
        mute = (place.partition + place.offset) % 5 == 0
        if mute:
            self.cluster.timeline.history.append(Waived(place.partition, place.offset))
        return mute

    def keep(self, message: Message, cause: BaseException | str, stack: str, tries: int, context: Context) -> None:
        """Only a message that really failed may stand in the dead letters: not one whose sink did, for example."""
        self._processed(Place(message.partition, message.offset, context.epoch))
        if SimulatedFailure.__name__ in f"{cause!r}":  # the loop of batches says it in words
            self.cluster.timeline.history.append(Waived(message.partition, message.offset))


@dataclass
class BatchCluster(Cluster):
    """A group whose members work in batches: with one fenced output for all partitions, or with none."""

    settings: Settings = BATCH_SETTINGS
    together: bool = True
    max_partitions: int = 128
    poison: int = 0
    """Every so many messages of a partition, one fails whenever it is tried; 0: none."""
    storage: Storage = field(default_factory=Storage)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.log = SimulatedLog(self)

    def _new_process(self, name: str) -> Process:
        return BatchProcess(self, name)

    def send(self, count: int) -> None:
        super().send(count)
        self.log.grown()

    def is_poisoned(self, place: Place) -> bool:
        return self.poison > 0 and (7 * place.partition + place.offset) % self.poison == self.poison - 1
