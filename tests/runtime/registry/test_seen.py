"""A registry that goes back is noticed by whoever has seen it further on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pxrs.errors import WentBack
from pxrs.model import EVICTED, Group, MemberRow, Partition
from pxrs.rules.row_format import encode_group, encode_partition
from pxrs.runtime.registry.schema import GroupRow, Keys, PartitionRows
from pxrs.stores.base import Outcome, Swap
from pxrs.stores.memory import MemoryStore
from pxrs.testing.stores.ownership import registry_over

KEYS = Keys("/pxrs/", "orders", "billing")
GROUP = Group(8, "xxh64-spark", "pmod", generation=3, leader_epoch=5, born="first")


def test_b50_a_lower_epoch_than_seen_is_refused() -> None:
    seen = PartitionRows(KEYS)
    for epoch in (0, 4, 4, 5):
        seen.decode(3, encode_partition(Partition(3, epoch=epoch)))
    seen.decode(4, encode_partition(Partition(4, epoch=1)))
    with pytest.raises(WentBack, match=r"partition 3 of group 'billing' went back from epoch 5 to 4"):
        seen.decode(3, encode_partition(Partition(3, epoch=4)))


@pytest.mark.parametrize(
    ("older", "words"),
    [(replace(GROUP, generation=2), "generation 3 to 2"), (replace(GROUP, leader_epoch=2), "leader epoch 5 to 2")],
)
def test_b50_a_group_row_that_goes_back_is_refused(older: Group, words: str) -> None:
    seen = GroupRow(KEYS)
    seen.decode("billing", encode_group(GROUP))
    with pytest.raises(WentBack, match=words):
        seen.decode("billing", encode_group(older))


def test_b59_a_group_made_anew_after_a_wipe_is_another_one() -> None:
    seen = GroupRow(KEYS)
    seen.decode("billing", encode_group(GROUP))
    seen.decode("billing", encode_group(replace(GROUP, generation=4)))
    with pytest.raises(WentBack, match="made anew"):
        seen.decode("billing", encode_group(replace(GROUP, generation=9, born="second")))


def test_that_a_member_was_put_out_does_not_expire() -> None:
    written: list[Swap] = []

    class Watched(MemoryStore):
        """Remembers what is written."""

        def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
            written.extend(swaps)
            return super().swap_each(swaps)

    registry = registry_over(Watched())
    registry.register(MemberRow("A", "life-1", lease_ms=1_000, grace_ms=5_000))
    registry.evict("A", f"{EVICTED}1")
    of_members = [swap.ttl_ms for swap in written if "/member/" in swap.key]
    assert of_members == [5_000, None]


def test_a_group_without_a_name_of_its_birth_is_no_other_one() -> None:
    seen = GroupRow(KEYS)
    seen.decode("billing", encode_group(GROUP))
    assert seen.decode("billing", encode_group(replace(GROUP, born=""))).born == ""
