"""Histories of members that work in batches, most of them with one fenced output for all their partitions.

python -m tests.simulation.batch_histories --count 500     run many, print the totals
python -m tests.simulation.batch_histories --seed 4711     replay one, with everything that happened
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pxrs.testing.faults.checker import Violation
from tests.simulation.batches import BATCH_SETTINGS, BatchCluster, BatchProcess
from tests.simulation.cluster import Cluster
from tests.simulation.histories import LEASE, Outcome, Story, main
from tests.simulation.timeline import Faults

LEAST_BATCHES = 10


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Refused and failing batches are what these stories are about: no lines in the log for each."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


class BatchStory(Story):
    """One history. In one of four nobody has a sink: then each partition of a batch is committed alone."""

    quiet_seconds = 8 * LEASE
    """Long enough for a batch that hangs, and to narrow down to the messages that always fail."""
    cluster: BatchCluster

    def _new_cluster(self) -> Cluster:
        chance = self.timeline.random
        return BatchCluster(
            self.timeline,
            partitions=chance.randint(8, 10),
            settings=BATCH_SETTINGS.with_(max_batch_rows=chance.choice((3, 6, 12))),
            together=chance.random() < 0.75,
            max_partitions=chance.choice((2, 128, 128)),
            poison=chance.choice((0, 9, 4)),
        )

    def run(self) -> Outcome:
        with _silent("pxrs.pipeline"):
            return super().run()

    def _processes(self) -> list[BatchProcess]:
        return [process for process in self.cluster.processes if isinstance(process, BatchProcess)]

    def _begin(self) -> None:
        """In most histories things go wrong from the first moment, while no partition has a checkpoint yet."""
        if self.timeline.random.random() < 0.75:
            self.cluster.faults = self._faults()
        super()._begin()

    def _faults(self) -> Faults:
        chance = self.timeline.random
        return replace(
            super()._faults(),
            lost_reply=chance.choice((0, 0.05, 0.15)),
            failing=chance.choice((0, 0.05, 0.3)),
            hanging=chance.choice((0, 0, 0.05)),
            log_down=chance.choice((0, 0, 0.01)),
            sink_down=chance.choice((0, 0, 0.01)),
            torn=chance.choice((0, 0.005, 0.02)),
        )

    def _actions(self) -> Sequence[tuple[int, Callable[[], bool]]]:
        """More of what hits one partition in the middle of a batch that has several."""
        return *super()._actions(), (5, self._seek), (3, self._hold)

    def _shows(self) -> bool:
        return self.cluster.together

    def _batches(self) -> int:
        return sum(kind == "batch" and facts["outcome"] == "committed" for _, kind, facts in self.cluster.events)

    def _misbehaved(self) -> list[Violation]:
        """Also loops that ended although their sink was there."""
        ended = [p for p in self._processes() if p.failure is not None and not p.sink.failed]
        return [
            *super()._misbehaved(),
            *(Violation("convergence", f"{p.owner.id} failed: {p.failure!r}") for p in ended),
        ]


class FailingStory(BatchStory):
    """Large batches fail often and are narrowed down, while somebody moves the checkpoints."""

    def _new_cluster(self) -> Cluster:
        settings = BATCH_SETTINGS.with_(max_batch_rows=24)
        return BatchCluster(self.timeline, partitions=8, settings=settings, poison=4)

    def _faults(self) -> Faults:
        return replace(super()._faults(), failing=0.3, log_down=0, sink_down=0.01)

    def _actions(self) -> Sequence[tuple[int, Callable[[], bool]]]:
        return *super()._actions(), (30, self._seek)


if __name__ == "__main__":
    sys.exit(main(name="batch_stories", kind=BatchStory))
