"""The assignors compute which member should own which partition, from the members and (``sticky``) the last target.

Both assignors are deterministic, do not depend on the order in which members are named, and are fair: shares
differ by at most one. From nothing both give the same contiguous layout (8 over A, B, C: 0-2, 3-5, 6-7).

- ``range`` lays out anew each time: sorted ids, contiguous runs, the first ones get one more.
- ``sticky`` (the default) moves as little as fairness allows. Proof: a member that left gives up everything; one that
  stays must give up what exceeds its quota, and gives up no more. Only the choice of who gets the larger
  quota is free; it saves one move at a member that holds more than the smaller one, and none elsewhere. The
  fullest members get the larger quotas, so it is saved as often as it can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from pxrs.errors import BadSetting, Mismatch
from pxrs.rules.targets import NOBODY, Target, held_by, sorted_members

__all__ = ["NOBODY", "Target", "check_assignor", "moves", "moves_by_assignor", "plan", "revocations"]


def plan(assignor: str, partitions: int, members: Iterable[str], previous: Target | None = None) -> Target:
    """The next target. ``previous`` is the last one; a member in it that is not in ``members`` has left."""
    check_assignor(assignor)
    if previous is not None and previous.partitions != partitions:
        raise Mismatch(f"the last target has {previous.partitions} partitions, the group has {partitions}")
    return _ASSIGNORS[assignor](partitions, sorted_members(members), previous)


def check_assignor(assignor: object) -> None:
    """Refuse a name that no assignor has."""
    if not isinstance(assignor, str) or assignor not in _ASSIGNORS:
        raise BadSetting(f"assignor {assignor!r} is not known; known are {', '.join(_ASSIGNORS)}")


def _range(partitions: int, members: tuple[str, ...], _previous: Target | None) -> Target:
    if not members:
        return Target((), (NOBODY,) * partitions)
    base, larger = divmod(partitions, len(members))
    sizes = (base + (place < larger) for place in range(len(members)))
    return Target(members, tuple(place for place, size in enumerate(sizes) for _ in range(size)))


def _sticky(partitions: int, members: tuple[str, ...], previous: Target | None) -> Target:
    if not members or previous is None:
        return _range(partitions, members, None)
    held = held_by(previous, members)
    quotas = _quotas(partitions, [len(parts) for parts in held])
    owners = [NOBODY] * partitions
    for place, parts in enumerate(held):
        for partition in parts[: quotas[place]]:  # an over-full member gives up its highest numbers
            owners[partition] = place
    _fill(owners, [quota - len(parts) for quota, parts in zip(quotas, held, strict=True)])
    return Target(members, tuple(owners))


def _quotas(partitions: int, held: list[int]) -> list[int]:
    """The number of partitions for each member: the fullest get the larger quotas, among equals the first."""
    base, larger = divmod(partitions, len(held))
    fullest_first = sorted(range(len(held)), key=lambda place: (-held[place], place))
    quotas = [base] * len(held)
    for place in fullest_first[:larger]:
        quotas[place] += 1
    return quotas


def _fill(owners: list[int], missing: list[int]) -> None:
    """Give the free partitions, ascending, to the members that miss some, in their order."""
    takers = (place for place, count in enumerate(missing) for _ in range(count))
    for partition, owner in enumerate(owners):
        if owner == NOBODY:
            owners[partition] = next(takers)


def moves(previous: Target, target: Target) -> int:
    """Count the partitions that change hands, whether their last owner is still a member or not.

    A partition that nobody had does not count: nothing is taken from anyone.
    """
    return sum(_changes(previous, target).values())


def revocations(previous: Target, target: Target) -> int:
    """Count the partitions that are taken from members that stay: each of them pauses for a hand-over."""
    staying = set(target.members)
    return sum(count for (old, _), count in _changes(previous, target).items() if old in staying)


def _changes(previous: Target, target: Target) -> Counter[tuple[str, str | None]]:
    pairs = Counter(zip(previous.owners, target.owners, strict=True))
    named: Counter[tuple[str, str | None]] = Counter()
    for (old, new), count in pairs.items():
        before = None if old == NOBODY else previous.members[old]
        after = None if new == NOBODY else target.members[new]
        if before is not None and before != after:
            named[before, after] += count
    return named


def moves_by_assignor(previous: Target, members: Iterable[str]) -> dict[str, int]:
    """The number of partitions that each assignor would move from here: ``{"sticky": 3, "range": 5}``."""
    names = tuple(members)
    return {name: moves(previous, plan(name, previous.partitions, names, previous)) for name in _ASSIGNORS}


_ASSIGNORS: dict[str, Callable[[int, tuple[str, ...], Target | None], Target]] = {
    "sticky": _sticky,
    "range": _range,
}
