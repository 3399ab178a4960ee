"""The crash story of the first document, with its own checkpoints, on the real member and coordinator code.

Its drawing ends with 3 and 5 partitions and takes P2 from a healthy consumer; that breaks the document's own rule of
fair shares. Ours ends with 4 and 4, P2 stays where it is, and the new owners resume at 180, 95 and 140.
"""

from __future__ import annotations

import pytest

from pxrs.io.clock import SystemClock
from pxrs.model import Grant, Owner
from pxrs.rules.assignment import plan
from pxrs.runtime.registry.registry import Registry
from pxrs.runtime.registry.rows import Held
from tests.simulation.cluster import GROUP, QUEUE, Cluster, DirectStore
from tests.simulation.timeline import Timeline

CHECKPOINTS = {0: 340, 1: 285, 2: 210, 3: 180, 4: 95, 5: 140, 6: 73, 7: 58}


def test_the_crash_of_consumer_b() -> None:
    timeline = Timeline(seed=1)
    cluster = Cluster(timeline, partitions=8)
    names = ["consumer-A", "consumer-B", "consumer-C"]
    _begin_as_drawn(Registry(DirectStore(cluster), QUEUE, GROUP, SystemClock()), names)
    cluster.ends = [CHECKPOINTS[p] for p in range(8)]
    members = {name: cluster.start(name) for name in names}
    timeline.run_until(timeline.now + 8)
    assert {n: sorted(p.member.handles) for n, p in members.items()} == {
        "consumer-A": [0, 1, 2], "consumer-B": [3, 4, 5], "consumer-C": [6, 7],
    }  # fmt: skip

    members["consumer-B"].crash()
    seen = len(cluster.events)
    timeline.run_until(timeline.now + 30)

    claims = {f["partition"]: f["checkpoint"] for _, kind, f in cluster.events[seen:] if kind == "claimed"}
    assert claims == {3: 180, 4: 95, 5: 140}, "only what the dead consumer held moves, and resumes at its checkpoints"
    left, right = (set(members[name].member.handles) for name in ("consumer-A", "consumer-C"))
    assert (len(left), len(right)) == (4, 4)
    assert {0, 1, 2} <= left and {6, 7} <= right
    assert not [
        kind for _, kind, f in cluster.events[seen:] if kind in ("draining", "lost") and f["member"] != "consumer-B"
    ]


def _begin_as_drawn(registry: Registry, names: list[str]) -> None:
    """The steady state of the drawing: its layout as the target, its numbers as the checkpoints."""
    registry.initialize(8, "xxh64-spark", "pmod")
    operator = Owner("operator", "-")
    for number, changed in registry.claim(range(8), operator).items():
        assert isinstance(changed, Held)
        registry.release({Grant(number, operator, changed.row.epoch): CHECKPOINTS[number]})
    lead = registry.elect(operator, registry.group())
    registry.publish(lead, plan("sticky", 8, names), "drawn", "as drawn", stay=False)


@pytest.mark.parametrize("assignor", ["range", "sticky"])
def test_the_layout_of_the_seeds(assignor: str) -> None:
    target = plan(assignor, 8, ["A", "B", "C"])
    assert target.shares() == {"A": [0, 1, 2], "B": [3, 4, 5], "C": [6, 7]}
    after = plan(assignor, 8, ["B", "C"], target).shares()
    if assignor == "range":
        assert after == {"B": [0, 1, 2, 3], "C": [4, 5, 6, 7]}
    else:
        assert {3, 4, 5} <= set(after["B"]) and {6, 7} <= set(after["C"])
        assert len(after["B"]) == len(after["C"]) == 4
