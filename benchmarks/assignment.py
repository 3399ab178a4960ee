"""How much a membership change moves, and how fast it is planned."""

from __future__ import annotations

from benchmarks.harness import Result, require_equal, seconds
from pxrs.rules.assignment import NOBODY, Target, moves, moves_by_assignor, plan

SUMMARY = "partitions moved by sticky against the seeds' range layout; planning time against a plain O(P*M) planner"


def run(quick: bool) -> Result:
    figures: dict[str, float] = {}
    peers: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for partitions, before, after in ((8, 3, 2), (64, 10, 11), (256, 16, 15), (1024, 50, 51)):
        last = plan("sticky", partitions, _members(before))
        counts = moves_by_assignor(last, _members(after))
        what = f"moves, {partitions} partitions, {before} to {after} members"
        figures[what], peers[f"{what} (range)"] = counts["sticky"], counts["range"]
        ratios[what] = counts["range"] / counts["sticky"]
    _plan_times(quick, figures, peers, ratios)
    return Result("assignment", figures, peers, ratios)


def _members(count: int) -> list[str]:
    return [f"member-{number:04}" for number in range(count)]


def _plan_times(quick: bool, figures: dict[str, float], peers: dict[str, float], ratios: dict[str, float]) -> None:
    """Half of 1,000 members leave: the hardest case, since half of the partitions need a new owner."""
    members = _members(1000)
    staying = members[::2]
    sizes = (8_192, 16_384, 32_768, 65_536)
    for partitions in sizes:
        last = plan("sticky", partitions, members)
        figures[f"plan ms, {partitions} over 1,000, half leave"] = 1000 * seconds(
            lambda: plan("sticky", partitions, staying, last)  # noqa: B023 - called before the loop goes on
        )
    times = list(figures.values())[-len(sizes) :]
    figures["growth of the time per doubling (2 = linear)"] = (times[-1] / times[0]) ** (1 / 3)
    compared = sizes[1] if quick else sizes[-1]
    last = plan("sticky", compared, members)
    theirs = _plain_sticky(last, staying)
    require_equal("moves", moves(last, plan("sticky", compared, staying, last)), moves(last, theirs))
    what = f"plan ms, {compared} over 1,000, half leave"
    peers[f"{what} (plain)"] = 1000 * seconds(lambda: _plain_sticky(last, staying), 1)
    ratios[what] = peers[f"{what} (plain)"] / figures[what]


def _plain_sticky(last: Target, members: list[str]) -> Target:
    """Keep what fits, then give each free partition to the member that has least: a search for each one."""
    names = tuple(sorted(members))
    base, larger = divmod(last.partitions, len(names))
    load = dict.fromkeys(range(len(names)), 0)
    place = {name: number for number, name in enumerate(names)}
    owners = [NOBODY] * last.partitions
    for partition, old in enumerate(last.owners):
        mine = place.get(last.members[old], NOBODY)
        if mine != NOBODY and load[mine] < base + (larger > 0):
            owners[partition] = mine
            load[mine] += 1
    for partition, owner in enumerate(owners):
        if owner == NOBODY:
            least = min(load, key=load.__getitem__)
            owners[partition] = least
            load[least] += 1
    return Target(names, tuple(owners))
