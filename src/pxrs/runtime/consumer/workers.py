"""All workers of one consumer, driven by its member."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping

from pxrs.errors import PxrsError
from pxrs.io.fork import after_fork
from pxrs.io.process_exit import Stage, at_exit
from pxrs.model import Grant
from pxrs.runtime.consumer.job import Job
from pxrs.runtime.consumer.sink_worker import SinkWorker
from pxrs.runtime.consumer.worker import Worker
from pxrs.runtime.ports.counters import Counters, total


class Workers:
    """All workers of one consumer: the ``Work`` that a member drives."""

    job: Job
    """The job of all workers: made when the member is there, so that it has the link."""

    def __init__(self) -> None:
        self.workers: dict[int, Worker] = {}
        self.unshown: dict[int, int] = {}
        """Partitions that were given up with output that is not shown, and under which epoch."""
        self._leaving: list[Worker] = []
        self._past: list[Counters] = []

    def take(self, job: Job) -> None:
        """Get to know the job, before anything starts."""
        self.job = job
        _all.add(self)

    def start(self, grant: Grant, checkpoint: int | None, paused: bool, note: str) -> None:
        """Work on a partition; what an earlier claim of it left running here ends first."""
        before = [w.thread for w in self._leaving if w.grant.partition == grant.partition and not w.finished]
        if self.job.sink is None:
            worker = Worker(self.job, grant, checkpoint, paused, before)
        else:
            worker = SinkWorker(self.job, grant, checkpoint, paused, before, note)
        self.workers[grant.partition] = worker
        self.unshown.pop(grant.partition, None)
        worker.begin()

    def start_all(self, grants: Mapping[Grant, int]) -> None:
        """Begin several partitions at once: none of them runs before all are known here."""
        for grant, offset in grants.items():
            self.workers[grant.partition] = Worker(self.job, grant, offset, paused=False)
        for worker in list(self.workers.values()):
            worker.begin()

    def position(self, partition: int) -> int | None:
        return self.workers[partition].committable

    def drain(self, partition: int) -> None:
        self.workers[partition].drain()

    def drained(self, partition: int) -> bool:
        return self.workers[partition].finished

    def stop(self, partition: int, lost: bool) -> None:
        worker = self.workers[partition]
        if worker.committable != worker.position:
            self.unshown[partition] = worker.grant.epoch
        if lost:
            worker.lose()
        for ended in [w for w in self._leaving if w.finished]:
            self._past = [total([*self._past, ended.tally])]
            self._leaving.remove(ended)
        self._leaving.append(worker)  # before it goes from the one list: a sum must not miss it
        del self.workers[partition]

    def where(self, partition: int) -> int | None:
        """The position of a partition, None also if it is not worked on here."""
        worker = self.workers.get(partition)
        return worker.position if worker else None

    def done(self, partition: int) -> int | None:
        """The offset up to which all is done, without output that waits for its sink; None if it is not begun here.

        The caller waits for the end: output that the policy would store later is stored soon.
        """
        worker = self.workers.get(partition)
        if isinstance(worker, SinkWorker) and worker.committable != worker.position:
            worker.hasten()
        return worker.committable if worker else None

    def troubles(self) -> dict[int, PxrsError]:
        """Partitions that wait for their log, their sink, their dead letters or a disk, with the reason."""
        return {p: w.trouble for p, w in list(self.workers.items()) if w.trouble is not None}

    def tally(self) -> Counters:
        """The counters of all workers, those of partitions that went away included."""
        return total([*self._past, *(worker.tally for worker in set(self._all()))])

    def pause(self, partition: int, paused: bool) -> None:
        self.workers[partition].pause(paused)

    def extend(self, until: float) -> None:
        old, self.job.alive_until = self.job.alive_until, until
        if (
            self.job.clock.monotonic() >= old
        ):  # compared after the new limit is set: a worker that saw the old one is woken
            for worker in self.workers.values():
                worker.nudge()

    def is_stalled(self, now: float) -> bool:
        limit = self.job.settings.progress_limit_ms / 1000
        if self.job.sight.blindness.is_lost(now):
            return True
        return any(w.busy_since is not None and now - w.busy_since > limit for w in self._all())

    def is_blind(self) -> bool:
        settings = self.job.settings
        if not self.workers:  # nobody reads: it must be known before partitions come whether they could be read
            self.job.sight.look(min(settings.poll_ms, settings.progress_limit_ms / 3) / 1000)
        return self.job.sight.blindness.is_blind

    def halt(self) -> None:
        """End as a crash would: nothing more is taken, nothing is flushed."""
        self.job.sight.end()
        for worker in self._all():
            worker.lose()

    def threads(self) -> list[threading.Thread]:
        """Those of all partitions, also of partitions that went away."""
        return [worker.thread for worker in self._all()]

    def _all(self) -> Iterator[Worker]:
        yield from list(self.workers.values())
        yield from list(self._leaving)


_all: weakref.WeakSet[Workers] = weakref.WeakSet()
after_fork(_all.clear)  # they are the parent's, and a thread of it may have held their locks


@at_exit(Stage.TAKE)
def _take_no_more() -> list[threading.Thread]:
    for workforce in list(_all):
        workforce.halt()
    return []


@at_exit(Stage.THREADS)
def _end_threads() -> list[threading.Thread]:
    return [thread for workforce in list(_all) for thread in workforce.threads()]
