"""The story that the demo tells, scene by scene. Everything that it prints is read from the queue or the files."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pxrs.apps.demo.consumers import MEMBERS, Consumers
from pxrs.apps.demo.member import GROUP
from pxrs.apps.demo.proof import Proof, Sent, prove
from pxrs.errors import Fenced, Unavailable
from pxrs.io.clock import SystemClock
from pxrs.model import MemberRow
from pxrs.rules.assignment import moves_by_assignor
from pxrs.rules.targets import Target
from pxrs.runtime.views.tables import Table, ranges

if TYPE_CHECKING:
    from pxrs.runtime.queue.queue import Queue
    from pxrs.runtime.views.group import GroupView, MemberLine

FIRST, SECOND, ACCOUNTS = 100, 50, 20
VICTIM = "A"
_HOLDER, _HOLD_MS = "stage", 60_000
_clock = SystemClock()


class Story:
    """Three consumers, 100 messages, a murder, 50 more messages, and a proof."""

    def __init__(self, queue: Queue, consumers: Consumers, engine: str) -> None:
        self._queue = queue
        self._consumers = consumers
        self._engine = engine
        self._group = queue.group(GROUP)
        self._sent: list[Sent] = []
        self._tail: dict[int, range] = {}

    def tell(self) -> Proof:
        self._gather()
        self._send(FIRST)
        self._show_progress()
        before = self._kill()
        self._show_takeover(before)
        self._send(SECOND)
        self._show_end(before)
        return self._prove()

    # ---- the scenes -------------------------------------------------------------------------------------------------

    def _gather(self) -> None:
        _scene(1, f"a queue with {self._queue.partitions} partitions; consumers A, B and C ({self._engine}) join")
        with _lead_held(self._queue, GROUP):
            for member in MEMBERS:
                self._consumers.start(member)
            # Impatient: who holds the lead never beats, and a patient look would watch it for a part of its minute.
            self._until("A, B and C have joined", lambda: self._consumers.joined(self._group.members(patient=False)))
        self._until("every partition has an owner", lambda: self._is_shared_by(MEMBERS))
        print("The first plan was made with all three present; each partition has one owner:")
        _print(_member_table(self._group.members()))

    def _send(self, count: int) -> None:
        scene = 2 if not self._sent else 5
        _scene(scene, f"{count} {'more ' if self._sent else ''}messages for {ACCOUNTS} accounts")
        with self._queue.producer() as producer:
            receipts = []
            for number in range(len(self._sent), len(self._sent) + count):
                key = f"acct-{number % ACCOUNTS:03d}"
                receipts.append((number, key, producer.send(key, json.dumps({"number": number}))))
            self._sent += [Sent(number, key, *receipt.result()) for number, key, receipt in receipts]
        everything = {message.number for message in self._sent}
        self._until(
            f"all {len(everything)} messages are handled",
            lambda: everything <= {call.number for call in self._consumers.handled()},
        )
        print(f"All {len(everything)} messages are handled.")

    def _show_progress(self) -> None:
        counts = Counter(call.member for call in self._consumers.handled())
        _print(Table(["CONSUMER", "HANDLED"], [[member, counts[member]] for member in MEMBERS]))
        print(f"\nCheckpoints as they are stored at this moment ({self._consumers.checkpoints}):")
        _print(_partition_table(self._group.describe()))

    def _kill(self) -> GroupView:
        before = self._group.describe()
        _scene(3, f"{VICTIM} is killed")
        print(self._consumers.kill(VICTIM))
        owned = [line.partition for line in before if line.owner == VICTIM]
        stored = {line.partition: line.checkpoint for line in self._group.describe()}
        done = [call for call in self._consumers.handled() if call.member == VICTIM]
        self._tail = {
            p: range(stored[p], max((c.offset + 1 for c in done if c.partition == p), default=0)) for p in owned
        }
        behind = sum(len(tail) for tail in self._tail.values())
        print(f"It owned partitions {ranges(owned)}, and had handled {behind} messages since its last checkpoints:")
        print("only these may be repeated." if behind else "nothing may be repeated.")
        return before

    def _show_takeover(self, before: GroupView) -> None:
        _scene(4, "B and C take over")
        killed, lease = _clock.monotonic(), self._queue.settings.lease_ms / 1000
        others = [member for member in MEMBERS if member != VICTIM]
        self._until("B and C own every partition", lambda: self._is_shared_by(others))
        led = f"; {VICTIM} led the group, so a new leader came first" if before.leader == VICTIM else ""
        print(f"{_clock.monotonic() - killed:.1f} s after the kill every partition has an owner again")
        print(f"(the lease of {lease:g} s counts from the last beat that was seen{led}).")
        previous = Target.from_owners(len(before), {line.partition: line.owner or "" for line in before}, MEMBERS)
        moves = moves_by_assignor(previous, others)
        print(f"Partitions that change hands: {moves['sticky']} with sticky (as here), {moves['range']} with range.")
        _print(Table(["CONSUMER", "PARTITIONS"], [[m.member, ranges(m.partitions)] for m in self._group.members()]))

    def _show_end(self, before: GroupView) -> None:
        self._until("every checkpoint is at the end", lambda: self._group.describe().total_lag == 0)
        after = self._group.describe()
        _print(_partition_table(after))
        kept = sum(old.epoch == new.epoch for old, new in zip(before, after, strict=True))
        print(f"\n{kept} partitions kept owner and epoch all the time: nobody touched them.")

    def _prove(self) -> Proof:
        _scene(6, f"the proof, from {self._consumers.evidence}")
        proof, table = prove(self._sent, self._consumers.handled(), self._tail), self._consumers.evidence_table()
        if table is not None:
            _print(table)
        print(f"handled:  {proof.handled} of {proof.sent} messages")
        print(f"order:    {'kept' if not any('order' in fault for fault in proof.faults) else 'broken'} for each of "
              f"{proof.keys} keys")  # fmt: skip
        print(f"repeated: {proof.repeated}, at most {sum(map(len, self._tail.values()))} were allowed")
        for fault in proof.faults:
            print(f"fault:    {fault}")
        print(f"PROVED: {self._consumers.verdict}." if proof.holds else "FAILED")
        return proof

    # ---- waiting --------------------------------------------------------------------------------------------------

    def _is_shared_by(self, members: list[str] | tuple[str, ...]) -> bool:
        view = self._group.describe()
        owners = {line.owner for line in view}
        fair = owners == set(members) or len(view) < len(members)
        return fair and owners <= set(members) and {m.member for m in view.members} == set(members)

    def _until(self, what: str, is_so: Callable[[], bool]) -> None:
        patience = self._consumers.patience_seconds
        deadline = _clock.monotonic() + patience
        while not is_so():
            trouble = f"{' and '.join(self._consumers.ended())} ended by itself" if self._consumers.ended() else ""
            if not trouble and _clock.monotonic() > deadline:
                trouble = f"waited {patience:g} s in vain until {what}"
            if trouble:
                raise Unavailable(f"{trouble}\n{self._consumers.complaint()}".strip())
            time.sleep(self._consumers.look_seconds)


def _member_table(members: list[MemberLine]) -> Table:
    columns = {"CONSUMER": "member", "PID": "pid", "JVM": "jvm", "PARTITIONS": "partitions", "LEADS": "leader"}
    if not any(member.is_spark for member in members):
        columns.pop("JVM")
    shown = [dict(member) | {"partitions": ranges(member.partitions)} for member in members]
    return Table(list(columns), [[line[name] for name in columns.values()] for line in shown])


def _partition_table(view: GroupView) -> Table:
    columns = ["PARTITION", "OWNER", "EPOCH", "CHECKPOINT", "END", "LAG"]
    return Table(columns, [[p.partition, p.owner, p.epoch, p.checkpoint, p.end, p.lag] for p in view])


def _scene(number: int, title: str) -> None:
    print(f"\n[{number}] {title}", flush=True)


def _print(table: Table) -> None:
    print(table.as_text(), flush=True)


@contextmanager
def _lead_held(queue: Queue, group: str) -> Iterator[None]:
    """Hold the lead of a new group without planning anything; at the end, leave it to its members.

    The first member would otherwise take all partitions and give them up again one by one. With all three present
    at the first plan, it is the picture that everybody draws: A 0-2, B 3-5, C 6-7.
    """
    registry = queue.make_group(group).registry
    created = registry.group()
    holder = MemberRow(_HOLDER, secrets.token_hex(16), lease_ms=_HOLD_MS)
    registry.register(holder)
    lead = registry.elect(holder.owner, created)
    try:
        yield
    finally:
        registry.deregister(holder.owner)
        with suppress(Fenced):  # a quick member leads already: it saw that the holder is gone
            registry.resign(lead)
