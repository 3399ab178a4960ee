"""Decides the next step of a rebalance: a member's for one partition, the leader's for its group. Pure functions.

A member never acts on "the row says it is mine": without a handle of its own claim it claims again. That one
rule covers lost replies, stale reads, restarts and two processes with one id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from pxrs.model import Grant, Group, MemberRow, MemberState, Owner, Partition
from pxrs.rules import ownership


class Mode(Enum):
    """A member's mode for a partition that it holds. A mode never goes back to an earlier one."""

    ACTIVE = "taking messages"
    DRAINING = "taking no more, finishing what runs"
    RELEASING = "a release was sent; never takes again"


class Step(Enum):
    """The next step of a member for one partition."""

    KEEP = "go on"
    DROP = "lost: stop at once, write nothing"
    DRAIN = "stop taking"
    RELEASE = "give up with the final checkpoint"
    CLAIM = "claim, then start at the checkpoint of the claimed row"
    GIVE_BACK = "free what a late claim won"
    WAIT = "not mine"


def next_step(row: Partition, me: Owner, grant: Grant | None, mode: Mode | None, wanted: bool, drained: bool) -> Step:
    """``wanted``: the target gives it to me and I am not leaving. ``drained``: all that was taken is finished.

    An active partition that is drained has nobody who works on it any more: it is given up, and claimed anew.
    """
    if grant is None:
        return _step_without_handle(row, me, wanted)
    if not ownership.is_mine(row, grant):
        return Step.DROP
    if mode is Mode.RELEASING:
        return Step.RELEASE
    if mode is Mode.ACTIVE and wanted and not drained:
        return Step.KEEP
    return Step.RELEASE if drained else Step.DRAIN


def _step_without_handle(row: Partition, me: Owner, wanted: bool) -> Step:
    if wanted and ownership.may_claim(row, me):
        return Step.CLAIM
    return Step.GIVE_BACK if row.owner == me else Step.WAIT


def may_elect(group: Group, me: Owner, leads: bool, leader: MemberRow | None, silent: bool) -> bool:
    """Whether to try to become leader, because no leader works. ``leads``: I hold the leadership handle."""
    if group.leader is None:
        return True
    if group.leader == me:
        return not leads
    return leader is None or leader.inc != group.leader.inc or leader.state is MemberState.LEAVING or silent


def watches_leader(group: Group, me: Owner) -> bool:
    """Whether this member is the one that looks at the leader closely: if all did, a large group would ask a lot."""
    others = (name for name in group.members if group.leader is None or name != group.leader.id)
    return next(others, None) == me.id


def eligible(members: Iterable[MemberRow], dead: frozenset[str], planned: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The members that share the partitions. Stalled members get some only where no other member can work.

    Where nobody can read the log, to move partitions would help nobody: a stalled member stays in the present plan
    (``planned``). One that is not in it any more, because it could not read, comes back when it can.
    One in a state that this version does not know is alive, and gets none.
    """
    alive = {m.id: m for m in members if m.id not in dead and m.state in (MemberState.ACTIVE, MemberState.STALLED)}
    able = [name for name, m in alive.items() if m.state is MemberState.ACTIVE]
    if all(alive[name].blind for name in able):
        stalled = alive.keys() - able
        able += [name for name in stalled if name in planned or not alive[name].blind]
    return tuple(sorted(able or alive))


def explain(
    before: tuple[str, ...], after: tuple[str, ...], members: Mapping[str, MemberRow], dead: frozenset[str]
) -> str:
    """Why a new plan was made, in the words of the log line."""
    words = [f"{name} joined" for name in after if name not in before]
    for name in (name for name in before if name not in after):
        row = members.get(name)
        if name in dead:
            words.append(f"{name} expired")
        else:
            words.append(f"{name} stalled" if row and row.state is MemberState.STALLED else f"{name} left")
    return ", ".join(words) or "the target was missing"


def is_orphan(row: Partition, members: Mapping[str, MemberRow], dead: frozenset[str], target: str | None) -> bool:
    """Whether the owner can no longer give the partition up itself: it is gone, judged dead, or an earlier life.

    An earlier life of the very member that shall have it is left alone: its new life claims over it.
    """
    if row.owner is None:
        return False
    member = members.get(row.owner.id)
    if member is None or row.owner.id in dead:
        return True
    return member.inc != row.owner.inc and target != row.owner.id


def is_settled(row: Partition, target: str | None, members: Mapping[str, MemberRow]) -> bool:
    """Whether the partition is where the target wants it, in the hands of the present life of that member."""
    if target is None:
        return row.owner is None
    member = members.get(target)
    return row.owner is not None and member is not None and row.owner == (member.id, member.inc)
