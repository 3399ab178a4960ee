"""Assignment: the seeds' tables, fairness, least movement, and the stored form of a target."""

from __future__ import annotations

import json
import random
import zlib
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pxrs.errors import BadSetting, Damaged, Mismatch, NewerFormat
from pxrs.rules.assignment import NOBODY, Target, moves, moves_by_assignor, plan, revocations
from pxrs.rules.targets import MAX_MEMBERS

ASSIGNORS = ["sticky", "range"]
SCENARIOS = Path(__file__).parents[3] / "shared" / "vectors" / "kafka_assignors.json"


def sizes(target: Target) -> list[int]:
    return [len(share) for share in target.shares().values()]


def least_moves(previous: Target, members: list[str]) -> int:
    """The bound: what the gone held, and what stays above its quota under the best choice of larger quotas."""
    base, larger = divmod(previous.partitions, len(members))
    held = {name: len(previous.of(name)) for name in members}
    orphaned = sum(len(previous.of(name)) for name in previous.members if name not in held)
    above = [max(0, count - base) for count in held.values()]
    saved = min(larger, sum(count > 0 for count in above))
    return orphaned + sum(above) - saved


def fewest_by_trying_all(previous: Target, members: list[str]) -> int:
    """The fewest moves of any fair assignment at all."""
    return min(
        moves(previous, candidate)
        for owners in product(range(len(members)), repeat=previous.partitions)
        if _fair(sizes(candidate := Target(tuple(members), owners)))
    )


def _fair(counts: list[int]) -> bool:
    return max(counts) - min(counts) <= 1


@pytest.mark.parametrize("assignor", ASSIGNORS)
@pytest.mark.parametrize(
    ("members", "layout"),
    [
        ("A", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("AB", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("ABC", [[0, 1, 2], [3, 4, 5], [6, 7]]),
        ("ABCD", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("ABCDE", [[0, 1], [2, 3], [4, 5], [6], [7]]),
    ],
)
def test_the_seeds_table_of_8_partitions(assignor: str, members: str, layout: list[list[int]]) -> None:
    for order in (members, members[::-1]):
        assert list(plan(assignor, 8, order).shares().values()) == layout


def test_after_a_leaves() -> None:
    before = plan("sticky", 8, "ABC")
    assert plan("range", 8, "BC", before).shares() == {"B": [0, 1, 2, 3], "C": [4, 5, 6, 7]}
    assert plan("sticky", 8, "BC", before).shares() == {"B": [0, 3, 4, 5], "C": [1, 2, 6, 7]}
    assert moves_by_assignor(before, "BC") == {"sticky": 3, "range": 5}


def test_the_first_seeds_crash_story() -> None:
    """B crashes. The seed draws 3 and 5 partitions and revokes P2; its own rule, and ours, say 4 and 4."""
    checkpoints = {2: 210, 3: 180, 4: 95, 5: 140}
    before = plan("sticky", 8, ["consumer-A", "consumer-B", "consumer-C"])
    after = plan("sticky", 8, ["consumer-C", "consumer-A"], before)
    assert after.shares() == {"consumer-A": [0, 1, 2, 3], "consumer-C": [4, 5, 6, 7]}
    assert after.owner(2) == "consumer-A" == before.owner(2)
    assert revocations(before, after) == 0
    resumed = {p: at for p, at in checkpoints.items() if before.owner(p) != after.owner(p)}
    assert resumed == {3: 180, 4: 95, 5: 140}


def test_64_partitions_from_10_to_11_members() -> None:
    members = [f"m{number:02}" for number in range(11)]
    moved = [
        moves_by_assignor(plan("sticky", 64, [name for name in members if name != newcomer]), members)
        for newcomer in members
    ]
    assert {count["sticky"] for count in moved} == {5}
    assert (moved[0]["range"], moved[-1]["range"]) == (29, 35)  # as the first id, and as the last
    assert min(count["range"] for count in moved) == 20


memberships = st.lists(st.integers(0, 11).map(lambda number: f"m{number}"), max_size=9)


@given(partitions=st.integers(0, 40), history=st.lists(memberships, min_size=1, max_size=6))
def test_sticky_is_fair_least_moving_and_restful(partitions: int, history: list[list[str]]) -> None:
    target = plan("sticky", partitions, [])
    for members in history:
        previous, target = target, plan("sticky", partitions, members, target)
        if not members:
            assert set(target.owners) <= {NOBODY}
            continue
        assert sorted(p for share in target.shares().values() for p in share) == list(range(partitions))
        assert _fair(sizes(target))
        assert moves(previous, target) == least_moves(previous, sorted(set(members)))
        assert plan("sticky", partitions, members, target) == target
        assert plan("sticky", partitions, members[::-1], previous) == target


@given(
    owners=st.lists(st.sampled_from(["A", "B", "C", "D", None]), min_size=1, max_size=6),
    members=st.sets(st.sampled_from("ABCE"), min_size=1, max_size=3),
)
def test_sticky_moves_the_fewest_of_all_fair_assignments(owners: list[str | None], members: set[str]) -> None:
    """From any state at all, also an unfair one, against every fair assignment that there is."""
    owned = {p: name for p, name in enumerate(owners) if name is not None}
    previous = Target.from_owners(len(owners), owned)
    target = plan("sticky", len(owners), members, previous)
    assert moves(previous, target) == fewest_by_trying_all(previous, sorted(members))


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_b19_ten_thousand_random_clusters_come_to_rest(assignor: str) -> None:
    chance = random.Random(19)
    for _ in range(10_000):
        partitions, names = chance.randint(1, 32), [f"m{n}" for n in range(chance.randint(1, 8))]
        owners = {p: chance.choice([*names, "gone"]) for p in range(partitions) if chance.random() < 0.9}
        target = Target.from_owners(partitions, owners)
        live = chance.sample(names, chance.randint(1, len(names)))
        target = plan(assignor, partitions, live, target)
        again = plan(assignor, partitions, chance.sample(live, len(live)), target)
        assert moves(target, again) == 0 and again == target
        assert _fair(sizes(target))


@pytest.mark.parametrize("assignor", ASSIGNORS)
@pytest.mark.parametrize(
    ("partitions", "members", "counts", "idle"),
    [
        (8, [], [], ()),
        (0, [], [], ()),
        (0, ["a", "b"], [0, 0], ("a", "b")),
        (1, ["a"], [1], ()),
        (2, ["d", "c", "b", "a"], [1, 1, 0, 0], ("c", "d")),
        (3, ["a"], [3], ()),
        (7, ["c", "a", "b", "a"], [3, 2, 2], ()),
    ],
)
def test_b22_odd_clusters(
    assignor: str, partitions: int, members: list[str], counts: list[int], idle: tuple[str, ...]
) -> None:
    for previous in (None, plan("range", partitions, []), plan("range", partitions, ["x", "y"])):
        target = plan(assignor, partitions, members, previous)
        assert sizes(target) == counts
        assert target.idle == idle
        assert target.partitions == partitions
        if not members:
            assert [target.owner(p) for p in range(partitions)] == target.names() == [None] * partitions


# apache/kafka RangeAssignorTest and AbstractStickyAssignorTest, those of one topic:
# (test, partitions, members with what they own, most moves allowed or None, expected shares or None)
KAFKA: list[tuple[str, str, int, dict[str, list[int]], int | None, dict[str, int] | None]] = [
    ("range", "testOneConsumerOneTopic", 3, {"consumer1": []}, None, {"consumer1": 3}),
    ("range", "testTwoConsumersOneTopicTwoPartitions", 2, {"consumer1": [], "consumer2": []}, None,
     {"consumer1": 1, "consumer2": 1}),
    ("sticky", "testAddRemoveConsumerOneTopic", 3, {"consumer2": [2]}, 0, {"consumer2": 3}),
    ("sticky", "testAllConsumersReachExpectedQuota", 4,
     {"consumer1": [0, 1], "consumer2": [2], "consumer3": []}, 0,
     {"consumer1": 2, "consumer2": 1, "consumer3": 1}),
]  # fmt: skip


def kafka_scenarios() -> list[Any]:
    """All published scenarios of one topic, or those restated above where the files are not there."""
    if not SCENARIOS.exists():
        return KAFKA
    found = json.loads(SCENARIOS.read_text())["scenarios"]
    return [*KAFKA, *(_one_topic(s) for s in found if _fits(s))]


def _fits(scenario: dict[str, Any]) -> bool:
    owned = [tuple(p) for member in scenario["members"].values() for p in member.get("owned", [])]
    one = len(scenario["topics"]) == 1 and len(owned) == len(set(owned))  # a double claim is no state of ours
    return one and scenario["assignor"] in ASSIGNORS


def _one_topic(scenario: dict[str, Any]) -> tuple[Any, ...]:
    ((topic, partitions),) = scenario["topics"].items()
    members = {
        name: [number for where, number in member.get("owned", []) if where == topic]
        for name, member in scenario["members"].items()
    }
    counts = {name: len(share) for name, share in scenario["expected"].items()}
    return scenario["assignor"], scenario["test"], partitions, members, scenario.get("max_moves"), counts


@pytest.mark.parametrize("scenario", kafka_scenarios(), ids=lambda scenario: str(scenario[1]))
def test_b22_kafkas_scenarios(scenario: Any) -> None:
    assignor, _, partitions, members, most, counts = scenario
    owned = {p: name for name, parts in members.items() for p in parts}
    previous = Target.from_owners(partitions, owned, members)
    target = plan(assignor, partitions, members, previous)
    assert {name: len(share) for name, share in target.shares().items()} == counts
    assert moves(previous, target) <= (0 if most is None else most)


def test_kafkas_stickiness_with_an_idle_member() -> None:
    # testStickiness: 3 partitions, 4 members; when a busy one leaves, the idle one takes over and nobody else moves
    before = plan("sticky", 3, ["c1", "c2", "c3", "c4"])
    assert before.idle == ("c4",)
    after = plan("sticky", 3, ["c2", "c3", "c4"], before)
    assert after.shares() == {"c2": [1], "c3": [2], "c4": [0]}


def test_moves_and_revocations() -> None:
    before = Target.from_owners(5, {0: "A", 1: "A", 2: "B", 3: "C"}, ["D"])
    after = Target.from_owners(5, {0: "A", 1: "B", 3: "D", 4: "D"}, ["A", "B", "D"])
    assert before.members == ("A", "B", "C", "D")
    assert moves(before, after) == 3  # 1: A to B, 2: B to nobody, 3: C (gone) to D; 4 was nobody's
    assert revocations(before, after) == 2


def test_a_target_answers() -> None:
    target = plan("range", 5, ["b", "a", "c"])
    assert target.of("a") == [0, 1] and target.of("c") == [4] and target.of("nobody") == []
    assert [target.owner(p) for p in range(5)] == target.names() == ["a", "a", "b", "b", "c"]


def test_a_large_group_is_planned_whole() -> None:
    members = [f"m{number:04}" for number in range(1000)]
    before = plan("sticky", 65_536, members[:-1])
    after = plan("sticky", 65_536, members, before)
    assert moves(before, after) == len(after.of("m0999")) == 65
    assert Target.decode(after.encode()) == after


def test_unknown_assignor_and_other_count() -> None:
    with pytest.raises(BadSetting, match="'fair' is not known; known are sticky, range"):
        plan("fair", 8, ["a"])
    with pytest.raises(Mismatch, match="8 partitions, the group has 16"):
        plan("sticky", 16, ["a"], plan("sticky", 8, ["a"]))


def test_too_many_members() -> None:
    with pytest.raises(BadSetting, match="65536 members are too many"):
        plan("range", 1, map(str, range(MAX_MEMBERS + 1)))


@given(partitions=st.integers(0, 50), members=memberships)
def test_a_target_comes_back_from_its_bytes(partitions: int, members: list[str]) -> None:
    target = plan("sticky", partitions, members)
    assert Target.decode(target.encode()) == target


def stored(head: object, owners: bytes = b"\0\0", packed: bytes | None = None) -> bytes:
    line = head if isinstance(head, bytes) else json.dumps(head).encode()
    return line + b"\n" + (zlib.compress(owners) if packed is None else packed)


GOOD = {"format": 1, "partitions": 1, "members": ["a"]}


def test_the_stored_form_is_fixed() -> None:
    assert Target.decode(stored(GOOD)) == Target(("a",), (0,))
    assert Target.decode(stored(GOOD, b"\xff\xff")) == Target(("a",), (NOBODY,))
    assert Target.decode(stored({**GOOD, "added": "later"})) == Target(("a",), (0,))
    assert Target(("a",), (0,)).encode().startswith(b'{"format":1,"partitions":1,"members":["a"]}\n')


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no head line"),
        (b"garbage", "no head line"),
        (stored(b"garbage"), "head line"),
        (stored(b"\xff\xff"), "head line"),
        (stored([1]), "head line"),
        (stored("text"), "head line"),
        (stored({}), "head line"),
        (stored({**GOOD, "format": "1"}), "format '1'"),
        (stored({**GOOD, "format": 0}), "format 0"),
        (stored({**GOOD, "partitions": -1}), "-1 partitions"),
        (stored({**GOOD, "partitions": 65_537}), "65537 partitions"),
        (stored({**GOOD, "partitions": True}), "True partitions"),
        (stored({**GOOD, "members": "a"}), "no list"),
        (stored({**GOOD, "members": [1]}), "no list"),
        (stored({**GOOD, "members": ["b", "a"]}), "not in order"),
        (stored({**GOOD, "members": ["a", "a"]}), "not in order"),
        (stored(GOOD, packed=b"garbage"), "unpacked"),
        (stored(GOOD, packed=b""), "one for each"),
        (stored(GOOD, b"\0\0\0\0"), "one for each"),
        (stored(GOOD, b"\0"), "one for each"),
        (stored(GOOD, packed=zlib.compress(b"\0\0")[:-1]), "one for each"),
        (stored(GOOD, packed=zlib.compress(b"\0\0") + b"more"), "one for each"),
        (stored(GOOD, b"\1\0"), "no member"),
    ],
)
def test_damaged_targets_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(Damaged, match=why):
        Target.decode(data)


def test_a_later_format_is_recognised() -> None:
    with pytest.raises(NewerFormat, match="format 2"):
        Target.decode(stored({"format": 2, "whatever": "follows"}))
