"""Checks whether a log and a registry belong together: both have the same random id, written with the first group.

Under another registry a group would begin anew, and housekeeping would delete what the real groups have still to read.
So consumers are refused there, and nothing is deleted. The id is one row for each queue, so that it goes where
the queue's groups go: into a dump, and to another store.
"""

from __future__ import annotations

import json
import logging
import secrets
from typing import NamedTuple

from pxrs.errors import FORBIDDEN, Damaged, Mismatch, NewerFormat, NotFound, Unavailable, Unknown
from pxrs.logs.base import Log, OwnRegistry
from pxrs.model import Group
from pxrs.rules.row_format import decode_group
from pxrs.runtime.registry.registry import Registry
from pxrs.stores.base import ABSENT, Guarantee, Row, Store, Swap, Verdict

logger = logging.getLogger("pxrs.registry")

FORMAT = 1
MANUAL = "_manual"
"""The name of the dead letters of subscriptions. It is no group, and has no rows."""
_NAME_IT = "Name that registry: registry=... in Python, --registry URL in the shell, or PXRS_REGISTRY"


def id_key(prefix: str, queue: str) -> str:
    """The key under which a registry keeps the id of a queue's log. No group's rows are there."""
    return f"{prefix}{queue}/_registry/id"


class IdRow(NamedTuple):
    """The row of the id. ``copied``: another registry has the same id. The first with a consumer takes the id ``next``
    instead: the log learns it first.
    """

    id: str
    copied: bool = False
    next: str = ""

    @property
    def ids(self) -> set[str]:
        """Under which ids a log may know this registry."""
        return {self.id, self.next} - {""}


class Adopted(NamedTuple):
    """The registry that a log belongs to now, and the one that it has belonged to; None if that is not known."""

    now: OwnRegistry
    before: OwnRegistry | None


class LogRegistry:
    """One log and the registry that it was opened with."""

    def __init__(self, log: Log, store: Store, prefix: str, where: str = "") -> None:
        self._log = log
        self._store = store
        self._base = f"{prefix}{log.identity.name}/"
        self._key = id_key(prefix, log.identity.name)
        self._where = where or "the registry that was given"
        # A registry that ends with its process is never recorded in a log that goes on.
        self._is_passing = log.outlives_process and Guarantee.ACROSS_PROCESSES not in store.guarantees

    # ---- what is refused ------------------------------------------------------------------------------------------

    def check(self) -> OwnRegistry | None:
        """Raise Mismatch if the log belongs to another registry. Writes nothing. Returns what the log has recorded."""
        recorded = self._log.registry()
        if recorded is not None and recorded.id:
            self._check_same(recorded)
        elif not self._is_passing:
            self._refuse_new_beside_old()
        return recorded

    def _check_same(self, recorded: OwnRegistry) -> None:
        own = None if self._is_passing else self._own()
        if own is None or recorded.id not in own.ids:
            raise Mismatch(self._difference(recorded, own and own.id))

    def _difference(self, recorded: OwnRegistry, own: str | None) -> str:
        queue = self._log.identity.name
        if self._is_passing:
            return (
                f"queue {queue!r} belongs to {_named(recorded)}, and is opened with a registry in memory. {_NAME_IT}; "
                "to read without a group use queue.subscribe"
            )
        if own is None and recorded.where == self._where:
            return (
                f"queue {queue!r} belongs to {_named(recorded)}, which has no id for this queue now: it was wiped, "
                "replaced, or moved (with `pxrs registry copy --move`: name the one that it was moved to). Put its "
                "rows back (from a copy, or with `pxrs registry load`); or begin anew with "
                "`pxrs registry adopt`, and set the checkpoints with `pxrs group seek`"
            )
        has = f"has the id {own}" if own else "has never had a group of this queue"
        return (
            f"queue {queue!r} belongs to {_named(recorded)}, and is opened with {self._where}, which {has}. "
            f"{_NAME_IT}. To let the log belong to this one from now on: `pxrs registry adopt`"
        )

    def _refuse_new_beside_old(self) -> None:
        """Refuse a log without a record: it is new, or its groups were of version 0.5, and their files show it."""
        if self._has_group():
            return
        seen = [group for group in self._log.groups_seen() if group != MANUAL]
        if seen:
            raise Mismatch(
                f"queue {self._log.identity.name!r} was consumed before, by group {seen[0]!r} (its files are still "
                f"beside the log), and {self._where} has no group of this queue. {_NAME_IT}. If it is lost, begin anew "
                "with `pxrs registry adopt`, and set the checkpoints with `pxrs group seek`"
            )

    def _has_group(self) -> bool:
        """Whether this registry has a group of this very log."""
        keys = ((row.key.removeprefix(self._base).split("/"), row.value) for row in self._store.scan(self._base))
        logs = {decode_group(key[0], value).log for key, value in keys if key[1:] == ["group"]}
        return bool(logs & {"", self._log.identity.id})

    def warn_of_other(self) -> None:
        """Say that what is shown here is not of the log's own registry, if that is so."""
        try:
            recorded = self._log.registry()
            if recorded is not None and recorded.id:
                self._check_same(recorded)
        except Mismatch as error:
            logger.warning("%s", error)
        except (Unavailable, Damaged, NotFound):  # looking goes on: what is asked for next tells
            return

    def why_not_trim(self) -> str:
        """Why nothing may be deleted under this registry; "" if it may."""
        queue = self._log.identity.name
        if self._is_passing:
            return f"nothing is deleted: a registry in memory does not know what other groups of {queue!r} need"
        recorded = self._log.registry()
        # A group without an id is one of 0.5, which records nothing: there may be others, in another registry.
        if recorded is None or (not recorded.id and self._has_group()):
            return (
                "nothing is deleted: it is not recorded yet which registry has the groups of this log. The next "
                "consumer that starts records its own, and `pxrs registry adopt` does"
            )
        own = self._own() if recorded.id else None
        if own is not None and own.copied and recorded.id in own.ids:
            return (
                "nothing is deleted: another registry is a copy of this one. The first consumer that starts, here or "
                "there, says which of the two goes on, and `pxrs registry adopt` does"
            )
        if not recorded.id or (own is not None and own.id == recorded.id):
            return ""
        return f"nothing is deleted: {self._difference(recorded, own and own.id)}"

    # ---- what is recorded -----------------------------------------------------------------------------------------

    def record(self) -> OwnRegistry:
        """Check, and write the id to both where it is not there yet, and where the registry is if it was moved.

        A registry that has its id in common with a copy takes a new one, so that the other one is refused from now on.
        Returns what the log has recorded.
        """
        recorded = self.check() or OwnRegistry()
        own = None if self._is_passing or not recorded.id else self._own()
        if self._is_passing or (own is not None and not own.copied and recorded.where == self._where):
            return recorded
        winner = self._write(recorded, self._wanted(recorded, own))
        if own is not None and own.copied:
            self._settle(recorded, winner)
        return winner

    def _wanted(self, recorded: OwnRegistry, own: IdRow | None) -> OwnRegistry:
        if own is None:
            return OwnRegistry(self._made_id(), self._where)
        new = self._next_id() if own.copied else own.id
        return recorded._replace(id=new, where=self._where)

    def _write(self, recorded: OwnRegistry, mine: OwnRegistry) -> OwnRegistry:
        try:
            winner = self._log.set_registry(mine, recorded.id)
        except Unavailable as error:
            if getattr(error.__cause__, "errno", None) not in FORBIDDEN:
                raise
            if not recorded.id:
                text = "%s: its registry is not recorded, and nothing is deleted: %s"
                logger.warning(text, self._log.identity.name, error)
            return recorded
        if winner.id != mine.id:
            raise Mismatch(self._difference(winner, mine.id))
        return winner

    def _settle(self, recorded: OwnRegistry, winner: OwnRegistry) -> None:
        """The log has the new id: from now on it is the only one here. If this is not written, the next start does."""
        row = self._store.read([self._key])[0]
        if row is None or _decode(row).next != winner.id:
            return
        self._store.swap_each([Swap(self._key, row.version, _encode(IdRow(winner.id)))])
        if recorded.where != self._where:
            logger.warning(
                "queue %r belongs to %s from now on: it is a copy of %s, whose groups are refused",
                self._log.identity.name, self._where, recorded.where,
            )  # fmt: skip

    def adopt(self) -> Adopted:
        """Let the log belong to this registry from now on, whatever it has belonged to."""
        if self._is_passing:
            raise Mismatch("a registry in memory ends with its process: a log cannot belong to it")
        try:
            before = self._log.registry()
        except NewerFormat:
            raise
        except Damaged:
            before = None
        own = self._made_id(mend=True)
        now = OwnRegistry(own, self._where, before.id if before is not None else "")
        if before is not None and before.id == own:  # the same one, and perhaps at another place
            now = before._replace(where=self._where)
        return Adopted(before if now == before else self._log.set_registry(now, None), before)

    # ---- the row --------------------------------------------------------------------------------------------------

    def _own(self) -> IdRow | None:
        row = self._store.read([self._key])[0]
        return None if row is None else _decode(row)

    def _made_id(self, mend: bool = False) -> str:
        """The id of this registry, made now if it has none; of two who make it, the first one's counts. ``mend``: made
        anew too where it is damaged, or where a copy of this registry has it."""
        while True:
            row = self._store.read([self._key])[0]
            try:
                if row is not None and not (mend and _decode(row).copied):
                    return _decode(row).id
            except NewerFormat:
                raise
            except Damaged:
                if not mend:
                    raise
            self._write_row(row, IdRow(secrets.token_hex(8)))

    def _next_id(self) -> str:
        """The id that this registry takes instead of the one that it has in common with a copy."""
        while True:
            row = self._store.read([self._key])[0]
            own = _decode(row) if row is not None else IdRow("")
            if own.next or not own.copied:  # another member was quicker
                return own.next or own.id
            self._write_row(row, own._replace(next=secrets.token_hex(8)))

    def _write_row(self, row: Row | None, wanted: IdRow) -> None:
        outcome = self._store.swap_each([Swap(self._key, ABSENT if row is None else row.version, _encode(wanted))])[0]
        if outcome.verdict is Verdict.UNKNOWN and self._store.read([self._key])[0] is None:
            raise Unknown(f"no answer to the write of {self._key}: {outcome.reason}")


def as_copied(value: bytes, copied: bool = True) -> bytes:
    """The row of an id, saying that another registry has it too, or not saying so. A damaged one stays so."""
    try:
        own = _decode(Row("", value, 0))
    except Damaged:
        return value
    return _encode(IdRow(own.id, copied))


def _named(registry: OwnRegistry) -> str:
    return f"{registry.where} (id {registry.id})"


def _encode(own: IdRow) -> bytes:
    said = {"copied": True} if own.copied else {}
    return json.dumps({"format": FORMAT, "id": own.id, **said, **({"next": own.next} if own.next else {})}).encode()


def _decode(row: Row) -> IdRow:
    try:
        values = json.loads(row.value)
        form, found, copied, new = values["format"], values["id"], values.get("copied"), values.get("next", "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"row {row.key} is damaged: {error!r}; `pxrs registry adopt` writes it anew") from error
    if type(form) is int and form > FORMAT:
        raise NewerFormat(f"row {row.key} has format {form}; this version of PXRS knows up to {FORMAT}")
    if not isinstance(found, str) or not found or not isinstance(new, str):
        raise Damaged(f"row {row.key} is damaged: id = {found!r}; `pxrs registry adopt` writes it anew")
    return IdRow(found, copied is True, new)


# ---- how a group is made --------------------------------------------------------------------------------------------


def group_over(log: Log, assignor: str | None) -> Group:
    """The identity with which a group over this log is recorded; without an assignor, that of the group."""
    known = log.identity
    return Group(known.partitions, known.hash, known.reduce, assignor or "", log=known.id)


def make_group(belonging: LogRegistry, registry: Registry, log: Log, assignor: str | None) -> str | None:
    """Make the group if there is none. Returns what is then to be reported; None if it was there.

    That it was there before, and its registry is lost, is only said where something shows it.
    """
    own, born, known = belonging.record(), secrets.token_hex(16), log.identity
    found = registry.initialize(known.partitions, known.hash, known.reduce, assignor, known.id, born)
    if found.born != born:
        return None
    had_one = bool(own.before) or registry.group_name in log.groups_seen()
    return "created_behind" if had_one and message_count(log) else "created"


def message_count(log: Log) -> int:
    """The number of messages that the log has had so far."""
    return sum(log.bounds(partition)[1] for partition in range(log.identity.partitions))
