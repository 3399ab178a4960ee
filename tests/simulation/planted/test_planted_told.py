"""Planted bugs that random histories find only by luck: each has a story of its own, with the interleaving forced."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import pytest

from pxrs.model import Grant, Owner
from pxrs.runtime.registry.rows import raise_first
from pxrs.stores.base import Swap
from pxrs.stores.memory import MemoryStore
from pxrs.testing.faults.checker import Processed, check
from tests.runtime.support import RecordingStore, Site, eventually, is_partition
from tests.simulation.planted.bugs import BUGS, plant

A = Owner("A", "life-of-A")


def promises_broken_by_a_claim_that_another_owner_comes_before() -> set[str]:
    """B reads a free row. Before it claims, A has the partition, works off three messages, and hands it over.

    B's claim meets a row that has changed, decides again, and gets the partition with the checkpoint of A.
    """
    with Site(partitions=1) as site:
        site.send(4)
        site.queue.make_group("g")
        store = RecordingStore(MemoryStore(site.table), site.history, site._lock)
        store.owner = A
        registry = site.open(store).group("g").registry

        def come_before(swaps: Sequence[Swap]) -> None:
            if any(map(is_partition, swaps)) and not store.writes:
                raise_first(registry.claim([0], A))
                grant = Grant(0, A, registry.partition(0).epoch)
                site.history += [Processed(0, offset, A, grant.epoch) for offset in range(3)]
                raise_first(registry.release({grant: 3}))

        def prepare(its_store: RecordingStore) -> None:
            its_store.before = come_before

        consumer = site.member("B", site.recorder(), prepare=prepare)
        eventually(lambda: site.lag() == 0, "B has worked off what was left")
        assert consumer.tally.handled >= 1 and store.writes
        return {violation.promise for violation in check(site.history)}


@pytest.mark.parametrize("planted", [False, True])
def test_bug_12_a_checkpoint_that_was_read_before_the_claim_is_found(planted: bool) -> None:
    [bug] = [bug for bug in BUGS if bug.number == 12]
    spoilt: AbstractContextManager[None] = plant(bug) if planted else nullcontext()
    with spoilt:
        broken = promises_broken_by_a_claim_that_another_owner_comes_before()
    assert bool(broken & bug.breaks) is planted
    assert broken <= bug.breaks
