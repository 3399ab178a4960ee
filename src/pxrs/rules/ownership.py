"""The rules of ownership: each takes a row and returns the row to store, or refuses. Written once, for every store.

A rule never decides on a row that it was not given, never looks at a clock (``at`` is only written down for
people) and never changes a row in place. The runtime swaps the result against the version of the row that the
rule has seen; that, and nothing else, makes it safe.

Epochs grow by one with every claim and every release, so a late write of an earlier owner never fits.
"""

from __future__ import annotations

from dataclasses import replace

from pxrs.errors import BadCheckpoint, Conflict, Fenced, WentBack
from pxrs.model import EVICTED_LENGTH, Cause, Grant, Group, MemberRow, MemberState, Owner, Partition, with_history

# ---- partition rows -------------------------------------------------------------------------------------


def is_mine(row: Partition, grant: Grant) -> bool:
    """Both must fit: the epoch alone protects sinks, the incarnation protects against two lives of one id."""
    return row.owner == grant.owner and row.epoch == grant.epoch


def may_claim(row: Partition, me: Owner) -> bool:
    """A free partition, or one that an earlier life of this same member id still holds."""
    return row.owner is None or row.owner.id == me.id


def claim(row: Partition, me: Owner, at: float) -> Partition:
    """Become the owner, under a new epoch. The checkpoint of the returned row is where to start."""
    if not may_claim(row, me):
        assert row.owner is not None
        raise Conflict(f"partition {row.number} is owned by {row.owner.id!r} (epoch {row.epoch})")
    return _pass_to(row, me, Cause.CLAIM, at)


def advance(row: Partition, grant: Grant, position: int, end: int | None = None, note: str | None = None) -> Partition:
    """Move the checkpoint forward to ``position``; ``end`` is the log's end, if the caller knows it.

    Without a note the old one stays: what it names may still have to be published, by an owner with a sink.
    """
    require_mine(row, grant)
    check_position(row.number, position, end)
    if row.checkpoint is not None and position < row.checkpoint:
        raise BadCheckpoint(
            f"partition {row.number}: checkpoint {position} is before the stored {row.checkpoint}; use seek to go back"
        )
    number, owner, epoch, _, cause, paused, kept, history = row  # each by hand: _replace is a tenth of a large commit
    return Partition(number, owner, epoch, position, cause, paused, kept if note is None else note, history)


def release(row: Partition, grant: Grant, position: int | None, at: float) -> Partition:
    """Give the partition up together with its final checkpoint: one write, so nothing can come between."""
    require_mine(row, grant)
    return _pass_to(_not_before(row, position), None, Cause.RELEASE, at)


def abandon(row: Partition, grant: Grant, position: int | None, at: float) -> Partition:
    """Give up a partition whose handler is still running: recorded as forced, since that message may repeat."""
    require_mine(row, grant)
    return _pass_to(_not_before(row, position), None, Cause.FORCED, at)


def give_back(row: Partition, me: Owner, at: float) -> Partition:
    """Free a partition that a late claim of this very life has won, but that it never worked on."""
    if row.owner != me:
        raise Conflict(f"partition {row.number} is not held by {me.id!r} any more")
    return _pass_to(row, None, Cause.RELEASE, at)


def force_release(row: Partition, owner: Owner, at: float) -> Partition:
    """Take the partition from ``owner``, which is dead or late. Its checkpoint stays; its next write is fenced."""
    if row.owner != owner:
        raise Conflict(f"partition {row.number} is not held by {owner.id!r} any more")
    return _pass_to(row, None, Cause.FORCED, at)


def seek(row: Partition, position: int, end: int | None, at: float) -> Partition:
    """Set the checkpoint anywhere, back or forth. The owner loses its epoch, claims again and goes on there.

    The note stays: an output that was committed and not yet published is still to be published.
    """
    check_position(row.number, position, end)
    return _pass_to(row._replace(checkpoint=position), None, Cause.SEEK, at)


def pause(row: Partition, paused: bool) -> Partition:
    """Hold the partition (or let it go on) where it is, without changing its owner."""
    return row._replace(paused=paused)


def require_mine(row: Partition, grant: Grant) -> None:
    if is_mine(row, grant):
        return
    if row.epoch < grant.epoch:
        raise WentBack(
            f"partition {row.number} shows epoch {row.epoch}, but epoch {grant.epoch} was granted before: "
            "the registry store lost writes or was restored from a copy"
        )
    holder = row.owner.id if row.owner else "nobody"
    fenced = Fenced(
        f"partition {row.number}: {grant.owner.id!r} wrote with epoch {grant.epoch}, "
        f"but it is at epoch {row.epoch}, owned by {holder!r}"
    )
    fenced.by_seek = row.cause is Cause.SEEK
    raise fenced


def check_position(partition: int, position: object, end: int | None = None) -> None:
    if type(position) is not int or position < 0 or position >= 1 << 63:
        raise BadCheckpoint(f"partition {partition}: {position!r} is not an offset (a whole number from 0)")
    if end is not None and position > end:
        raise BadCheckpoint(f"partition {partition}: checkpoint {position} is beyond the log's end {end}")


def _not_before(row: Partition, position: int | None) -> Partition:
    if position is None or position <= (row.checkpoint if row.checkpoint is not None else -1):
        return row
    return row._replace(checkpoint=position)


def _pass_to(row: Partition, owner: Owner | None, cause: Cause, at: float) -> Partition:
    return with_history(row._replace(owner=owner, epoch=row.epoch + 1, cause=cause), at)


# ---- member rows ----------------------------------------------------------------------------------------


def beat(row: MemberRow | None, mine: MemberRow) -> MemberRow:
    """Show life, and say what a person wants to know. A row that is gone (it expired natively) is made again.

    Another life in the row means: stop.
    """
    if row is None:
        return mine
    require_my_life(row, mine.owner)
    return replace(
        row,
        beat=row.beat + 1,
        seen=mine.seen,
        parked=mine.parked,
        blind=mine.blind,
        passed_over=mine.passed_over,
    )


def set_state(row: MemberRow | None, me: Owner, state: MemberState) -> MemberRow:
    if row is None:
        raise Conflict(f"member {me.id!r} is not registered any more")
    require_my_life(row, me)
    return replace(row, state=state, beat=row.beat + 1)


def evict(row: MemberRow, tombstone: str) -> MemberRow:
    """Replace a member's incarnation by one that no process has: its process is fenced at its next heartbeat."""
    return replace(row, inc=tombstone, state=MemberState.LEAVING)


def require_my_life(row: MemberRow, me: Owner) -> None:
    if row.inc != me.inc:
        raise Fenced(f"member {me.id!r} was replaced by a newer process or evicted")


# ---- the group row --------------------------------------------------------------------------------------


def elect(group: Group, me: Owner) -> Group:
    """Become the leader, under a new leader epoch. Whether it is time to is ``rebalance.may_elect``'s decision."""
    return replace(group, leader=me, leader_epoch=group.leader_epoch + 1)


def publish(group: Group, lead: Grant, members: tuple[str, ...], target: str, reason: str) -> Group:
    """Point the group at a new target. Only the leader of this very epoch may: a deposed one is refused."""
    require_lead(group, lead)
    return replace(group, generation=group.generation + 1, members=members, target=target, reason=reason)


def put_out(group: Group, life: str) -> Group:
    """Write down that this life of a member was put out: should it wake up later, it finds itself here, and stops."""
    return replace(group, evicted=(*(one for one in group.evicted if one != life), life)[-EVICTED_LENGTH:])


def require_not_put_out(group: Group, me: Owner) -> None:
    if me.inc in group.evicted:
        raise Fenced(f"member {me.id!r} was evicted")


def resign(group: Group, lead: Grant) -> Group:
    require_lead(group, lead)
    return replace(group, leader=None)


def require_lead(group: Group, lead: Grant) -> None:
    if group.leader_epoch < lead.epoch:
        raise WentBack(f"the group shows leader epoch {group.leader_epoch}, but {lead.epoch} was granted before")
    if group.leader != lead.owner or group.leader_epoch != lead.epoch:
        raise Fenced(f"{lead.owner.id!r} led under epoch {lead.epoch}; the group is at {group.leader_epoch}")
