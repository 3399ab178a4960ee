"""Moments that last no longer than a step: each is made by hand, with a clock that stands still or a store that waits."""

from __future__ import annotations

from typing import Any

from tests.runtime.support import PATIENT, Site
from tests.simulation.stories_by_hand import HandClock

from pxrs.model import Grant, Message, Owner
from pxrs.runtime.delivery import Context
from pxrs.runtime.job import Job
from pxrs.runtime.registry import Registry
from pxrs.runtime.rows import Held
from pxrs.runtime.worker import Worker
from pxrs.stores.memory import MemoryStore

ME = Owner("A", "life-1")


def registry_of_one() -> tuple[Registry, Grant]:
    """A group with one partition, which this life owns."""
    registry = Registry(MemoryStore(), "orders", "g", HandClock())
    registry.initialize(1, "xxh64-spark", "pmod")
    [claimed] = registry.claim([0], ME).values()
    assert isinstance(claimed, Held)
    return registry, Grant(0, ME, claimed.row.epoch)


def worker_of(site: Site, handler: Any, clock: HandClock) -> Worker:
    job = Job(site.queue.log, PATIENT, clock, handler, "message", lambda _: 0, site.queue.group("g").dead_letters)
    job.alive_until = clock.now + 10
    return Worker(job, Grant(0, ME, 1), 0, paused=False)


def test_no_further_message_of_a_batch_is_taken_when_the_time_of_the_member_is_over() -> None:
    """Others may have taken the partition over by then, however many messages were read in one go."""
    clock, seen = HandClock(), []

    def handle(message: Message, _: Context) -> None:
        seen.append(message.offset)
        clock.now += 4

    with Site(partitions=1) as site:
        site.send(20)
        worker = worker_of(site, handle, clock)
        batch = worker._next_batch()
        assert batch is not None
        worker._handle_batch(batch)
        assert seen == [0, 1, 2] and worker.position == 3


def test_a_commit_that_was_decided_on_an_old_row_is_decided_anew_at_once() -> None:
    registry, grant = registry_of_one()
    old = registry.read_partitions([0])
    registry.pause([0], True)
    [stored] = registry.commit({grant: 7}, old).values()
    assert isinstance(stored, Held) and stored.row.checkpoint == 7 and stored.row.paused
