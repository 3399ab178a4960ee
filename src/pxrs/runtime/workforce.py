"""All workers of one consumer, driven by its member."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pxrs.model import Grant
from pxrs.runtime.worker import Job, Tally, Worker


class Workforce:
    """All workers of one consumer: the ``Work`` that a member drives."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.workers: dict[int, Worker] = {}
        self._leaving: list[Worker] = []
        self._past = Tally()

    def start(self, grant: Grant, checkpoint: int | None, paused: bool) -> None:
        worker = Worker(self.job, grant, checkpoint, paused)
        self.workers[grant.partition] = worker
        worker.begin()

    def position(self, partition: int) -> int | None:
        return self.workers[partition].position

    def drain(self, partition: int) -> None:
        self.workers[partition].drain()

    def drained(self, partition: int) -> bool:
        return self.workers[partition].finished

    def stop(self, partition: int, lost: bool) -> None:
        worker = self.workers.pop(partition)
        if lost:
            worker.lose()
        for ended in [w for w in self._leaving if w.finished]:
            self._past.add(ended.tally)
            self._leaving.remove(ended)
        self._leaving.append(worker)

    def tally(self) -> Tally:
        """What all workers have done, those of partitions that went away included."""
        total = replace(self._past)
        for worker in self._all():
            total.add(worker.tally)
        return total

    def pause(self, partition: int, paused: bool) -> None:
        self.workers[partition].pause(paused)

    def extend(self, until: float) -> None:
        late = self.job.clock.monotonic() >= self.job.alive_until
        self.job.alive_until = until
        if late:
            for worker in self.workers.values():
                worker.nudge()

    def is_stalled(self, now: float) -> bool:
        limit = self.job.settings.progress_limit_ms / 1000
        return any(w.busy_since is not None and now - w.busy_since > limit for w in self._all())

    def halt(self) -> None:
        """End as a crash would: nothing more is taken, nothing is flushed."""
        for worker in self._all():
            worker.lose()

    def _all(self) -> Iterator[Worker]:
        yield from list(self.workers.values())
        yield from list(self._leaving)
