"""The leader of a group: it watches who lives, plans who should own what, and frees what nobody can give up.

Any member can lead. Leadership is an epoch in the group row: the plan of a deposed leader is refused. Without a
leader nothing stops; members go on with what they own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pxrs.errors import Conflict, Fenced, Unknown
from pxrs.io.clock import Clock
from pxrs.model import Grant, Group, MemberRow, Owner, Partition
from pxrs.rules import assignment, rebalance
from pxrs.rules.liveness import Watch
from pxrs.rules.targets import Target
from pxrs.runtime.ports.events import Report
from pxrs.runtime.registry.registry import Registry
from pxrs.settings import Settings

_AT_EASE = 0.4
"""Parts of a lease after which the other members look at the leader, in case that its watcher dies with it."""


class Leader:
    """The part of a member that may lead. ``round`` does what is due and never blocks for long."""

    def __init__(
        self, registry: Registry, me: Owner, settings: Settings, clock: Clock, nonce: Callable[[], str], report: Report
    ) -> None:
        self._registry = registry
        self._me = me
        self._settings = settings
        self._clock = clock
        self._nonce = nonce
        self._report = report
        self._lead: Grant | None = None
        self._watch = Watch(settings.beat_ms / settings.lease_ms)
        self._looks_closely = False
        self._lives: frozenset[tuple[str, str]] = frozenset()
        self._buried: frozenset[str] = frozenset()
        self._overdue: dict[int, tuple[Owner, float]] = {}
        self.is_busy = False
        """Whether a rebalance is under way that this leader has to follow closely."""
        self._planned_at = self._freed_at = 0.0
        self._plan: dict[str, Any] | None = None

    @property
    def leads(self) -> bool:
        return self._lead is not None

    @property
    def is_alone(self) -> bool:
        """Whether this leader has nobody to watch: then only a wake-up or a poll can bring news."""
        return self._lead is not None and len(self._lives) <= 1

    def next_watch(self, now: float) -> float:
        """The time to look at the others again: the next beat is due, or a lease may run out."""
        verdict = self._watch.next_verdict(now)
        look = self._watch.next_look(now) if self._looks_closely else now + self._watch.shortest_lease() * _AT_EASE
        if look is None or look == float("inf"):  # there is nobody to look at
            look = now + self._settings.beat_ms / 1000
        return look if verdict is None else min(look, verdict + 0.001)

    def round(self, group: Group, polled: bool) -> bool:
        """Do what is due; ``polled``: the rows may have changed since the last round. True if the group row changed."""
        if self._lead is not None and not self._still_leads(group, self._lead):
            self._lose_lead()
        self._looks_closely = self._lead is not None or rebalance.watches_leader(group, self._me)
        if self._lead is None:
            return self._stand(group)
        if self.is_alone and not polled and not self.is_busy:
            return False
        return self._govern(group, self._lead, polled)

    def leave(self, group: Group, now: float) -> None:
        """Hand the lead on: plan without this member and resign, in one swap."""
        if self._lead is None:
            return
        if not self._still_leads(group, self._lead):
            self._lose_lead()
            return
        members = {m.id: m for m in self._registry.members()}
        live = tuple(
            name for name in rebalance.eligible(members.values(), self._dead(members, now)) if name != self._me.id
        )
        with suppress(Fenced, Conflict):  # somebody leads already: there is nothing to hand on
            if live:
                self._publish(group, self._lead, live, f"{self._me.id} left", now, stay=False)
                self._report_end("handed on", now)
            else:
                self._registry.resign(self._lead)
        self._lead, self.is_busy = None, False

    # ---- becoming and staying leader ----------------------------------------------------------------------

    def _still_leads(self, group: Group, lead: Grant) -> bool:
        return group.leader == lead.owner and group.leader_epoch == lead.epoch

    def _lose_lead(self) -> None:
        self._report_end("handed on", self._clock.monotonic())
        self._lead = None
        self._lives = frozenset()
        self._overdue = {}
        self.is_busy, self._plan = False, None
        self._report("deposed", {"member": self._me.id})

    def _stand(self, group: Group) -> bool:
        now = self._clock.monotonic()  # not when the round began: a slow store may have held it up since
        leader = self._registry.member(group.leader.id).row if group.leader else None
        self._watch.see([leader] if leader else [], self._clock.monotonic())
        silent = leader is not None and self._watch.is_silent(leader, now)
        if not rebalance.may_elect(group, self._me, self.leads, leader, silent):
            return False
        try:
            self._lead = self._registry.elect(self._me, group)
        except Conflict:
            return True
        self._report("elected", {"member": self._me.id, "leader_epoch": self._lead.epoch})
        return True

    # ---- leading --------------------------------------------------------------------------------------------

    def _is_old(self, group: Group) -> bool:
        """Whether the row has changed since. A row that is gone is the member's to notice, when it looks again."""
        found = self._registry.find_group()
        return found is None or found.target != group.target

    def _govern(self, group: Group, lead: Grant, polled: bool) -> bool:
        now = self._clock.monotonic()  # silence is counted from after one reading to before another
        members = {m.id: m for m in self._registry.members()}
        others = [member for member in members.values() if member.id != self._me.id]
        self._watch.see(others, self._clock.monotonic())
        dead = self._dead(members, now)
        live = rebalance.eligible(members.values(), dead, group.members)
        lives = frozenset([(m.id, m.inc) for m in members.values()])
        if not polled and live == group.members and self._is_at_rest(lives, dead):
            self._clear_away(group, members, dead)  # there is nothing to ask the target; a poll sees that it is there
            return False
        target = self._registry.target(group.target) if group.target else None
        if group.target and target is None and self._is_old(group):
            return True  # to plan on it would move partitions for nothing
        if live and (live != group.members or target is None):
            reason = rebalance.explain(group.members, live, members, dead)
            changed = self._publish(group, lead, live, reason, now, target)
            for name in set(group.members) - members.keys():  # expired in the store: nobody else clears up behind it
                self._registry.remove_wake_row(name)
            return changed
        self.is_busy = polled or not self._is_at_rest(lives, dead)
        self._lives, self._buried = lives, dead
        if self.is_busy and target is not None:
            self._settle(group, target, members, dead, now)
        self._clear_away(group, members, dead)
        return False

    def _is_at_rest(self, lives: frozenset[tuple[str, str]], dead: frozenset[str]) -> bool:
        """Whether nobody came, went or died since everything was found where it belongs."""
        return not self.is_busy and (lives, dead) == (self._lives, self._buried)

    def _dead(self, members: dict[str, MemberRow], now: float) -> frozenset[str]:
        """Judged on this process's own clock, and never this member itself."""
        return frozenset([m.id for m in members.values() if m.id != self._me.id and self._watch.is_dead(m, now)])

    def _publish(
        self,
        group: Group,
        lead: Grant,
        live: tuple[str, ...],
        reason: str,
        now: float,
        previous: Target | None = None,
        stay: bool = True,
    ) -> bool:
        previous = previous or (self._registry.target(group.target) if group.target else None)
        target = assignment.plan(group.assignor, group.partitions, live, previous)
        try:
            planned = self._registry.publish(lead, target, self._nonce(), reason, stay)
        except Fenced:
            self._lose_lead()
            return True
        except Conflict:
            return True
        self._report_end("overtaken", now)
        self.is_busy, self._planned_at, self._freed_at = True, now, now
        self._plan = self._facts(planned, target, _changed(previous, target))
        self._report("planned", self._plan)
        return True

    def _facts(self, group: Group, target: Target, moved: list[int]) -> dict[str, Any]:
        return {
            "member": self._me.id,
            "generation": group.generation,
            "reason": group.reason,
            "members": target.members,
            "idle": target.idle,
            "moved": moved,
        }

    def _settle(
        self, group: Group, target: Target, members: dict[str, MemberRow], dead: frozenset[str], now: float
    ) -> None:
        """Free what its owner cannot or does not give up; notice when everything is where it belongs."""
        waiting: list[int] = []
        forced: dict[int, Owner] = {}
        owners = target.names()
        for row in self._registry.readable_partitions():  # a damaged one is nobody's until it is mended
            wanted = owners[row.number]
            if rebalance.is_settled(row, wanted, members):
                self._overdue.pop(row.number, None)
                continue
            waiting.append(row.number)
            if row.owner is not None:
                self._freed_at = now
                if rebalance.is_orphan(row, members, dead, wanted) or self._is_overdue(row, row.owner, wanted, now):
                    forced[row.number] = row.owner
        if forced:
            self._registry.force_release(forced)
            self._report("forced", {"member": self._me.id, "partitions": sorted(forced)})
        if waiting:
            self._take_over_plan(group, target, waiting, now)
        else:
            self._settled(now)

    def _take_over_plan(self, group: Group, target: Target, waiting: list[int], now: float) -> None:
        """A leader that finds a rebalance under way, planned by one that is gone, sees it to its end."""
        if self._plan is None:
            self._plan = self._facts(group, target, waiting)
            self._planned_at = self._freed_at = now

    def _is_overdue(self, row: Partition, owner: Owner, wanted: str | None, now: float) -> bool:
        """Whether a live owner has had its time to give up what the target gives to another."""
        if owner.id == wanted:
            return False
        since = self._overdue.get(row.number)
        if since is None or since[0] != owner:
            self._overdue[row.number] = (owner, now)
            return False
        return (now - since[1]) * 1000 >= self._settings.revoke_timeout_ms

    def _settled(self, now: float) -> None:
        self._report_end("done", now)
        self.is_busy = False
        self._overdue = {}

    def _report_end(self, how: str, now: float) -> None:
        """Every plan ends once: done, overtaken by the next one, or handed on by a leader that leaves."""
        plan, self._plan = self._plan, None
        if plan is not None:
            took = {"revoke_s": self._freed_at - self._planned_at, "total_s": now - self._planned_at}
            self._report("settled", plan | took | {"how": how})

    def _clear_away(self, group: Group, members: dict[str, MemberRow], dead: frozenset[str]) -> None:
        for name in sorted(dead):
            if name not in group.members:
                try:
                    self._registry.remove_member(members[name])
                except (Conflict, Unknown):
                    continue


def _changed(previous: Target | None, target: Target) -> list[int]:
    before = [None] * target.partitions if previous is None else previous.names()
    return [p for p, name in enumerate(target.names()) if previous is None or before[p] != name]
