"""Encodes and decodes the rows of the registry: JSON that a person can read, with a format version in each row.

A row of a higher version was written by a later PXRS: it is refused, because writing it back would lose
what this version does not understand. Every field is checked when a row is read: one that is not what it should be
makes the row ``Damaged``, so that nobody works with it, claims it or writes it back.
"""

from __future__ import annotations

import json
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any

from pxrs.errors import Damaged, NewerFormat
from pxrs.model import Cause, Group, MemberRow, MemberState, Owner, Partition, Tenure
from pxrs.rules.json_fields import (
    LIMIT,
    BadField,
    flag,
    items,
    mapping,
    moment,
    parse,
    shown,
    text,
    text_or_none,
    whole,
    whole_or_none,
)

FORMAT = 1


# Made once: json.dumps makes a new encoder for each call with separators, and rows are written all the time.
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


def _dump(fields: dict[str, Any]) -> bytes:
    return _encode({"v": FORMAT, **fields}).encode()


def load(what: str, data: bytes) -> dict[str, Any]:
    """The fields of any row with a format number, not yet checked. ``what`` names the row in errors."""
    try:
        fields = mapping("the row", parse(data))
        version = whole("v", fields.get("v"))
    except BadField as error:
        raise damaged(what, error) from None
    if version != FORMAT:
        raise NewerFormat(f"registry row {what} has format {version!r}; this version of PXRS knows {FORMAT}")
    return fields


def damaged(what: str, error: Exception) -> Damaged:
    """The error about a row of which a field is missing or wrong."""
    why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    return Damaged(f"registry row {what} is not readable: {why}")


def _owner(name: str, pair: Any) -> Owner | None:
    if pair is None:
        return None
    member, life = items(name, pair, 2)
    return Owner(text(name, member), text(name, life))


def encode_partition(row: Partition) -> bytes:
    _, owner, epoch, checkpoint, cause, paused, note, history = row
    before, between, after = _around_progress(owner, epoch, cause, paused, history)
    return f"{before}{'null' if checkpoint is None else checkpoint}{between}{_quoted(note)}{after}".encode()


@lru_cache(maxsize=8192)  # a commit changes the checkpoint and the note, and nothing else
def _around_progress(
    owner: Owner | None, epoch: int, cause: Cause, paused: bool, history: tuple[Tenure, ...]
) -> tuple[str, str, str]:
    before = _encode({"v": FORMAT, "owner": owner, "epoch": epoch, "checkpoint": 0})
    between = _encode({"cause": cause.value, "paused": paused, "note": ""})
    return before[:-2], f",{between[1:-3]}", f',"history":{_encode(history)}}}'


@lru_cache(maxsize=8192)  # rows are immutable and polled far more often than they change
def decode_partition(number: int, data: bytes) -> Partition:
    what = f"partition {number}"
    fields = load(what, data)
    try:
        return Partition(
            number,
            _owner("owner", fields["owner"]),
            whole("epoch", fields["epoch"]),
            whole_or_none("checkpoint", fields["checkpoint"]),
            _cause(fields["cause"]),
            flag("paused", fields["paused"]),
            text("note", fields["note"]),
            tuple([_tenure(line) for line in items("history", fields["history"])]),
        )
    except (KeyError, BadField) as error:
        raise damaged(what, error) from None


def _cause(word: Any) -> Cause:
    try:
        return Cause(word)
    except ValueError:
        raise BadField(f"cause is {shown(word)}, which is none of {', '.join(Cause)}") from None


def _tenure(line: Any) -> Tenure:
    name = "a line of history"
    owner, epoch, since, cause = items(name, line, 4)
    typed = type(owner) is type(cause) is str and type(epoch) is int and type(since) is float
    if typed and 0 <= epoch < LIMIT and 0 <= since < LIMIT:
        return Tenure(owner, epoch, since, cause)  # as nearly all are: eight of them are in each row
    return Tenure(text_or_none(name, owner), whole(name, epoch), moment(name, since), text(name, cause))


def encode_member(row: MemberRow) -> bytes:
    return _dump(
        {
            "inc": row.inc,
            "beat": row.beat,
            "state": row.state.value,
            "lease_ms": row.lease_ms,
            "grace_ms": row.grace_ms,
            "joined": row.joined,
            "info": dict(row.info),
            # Members of PXRS before 0.6 write none of these, and do not miss them.
            **({"seen": row.seen} if row.seen else {}),
            **({"parked": row.parked} if row.parked else {}),
            **({"blind": True} if row.blind else {}),
            **({"passed_over": row.passed_over} if row.passed_over else {}),
            **({"beat_ms": row.beat_ms} if row.beat_ms else {}),
        }
    )


@lru_cache(maxsize=1024)
def decode_member(name: str, data: bytes) -> MemberRow:
    what = f"member {name!r}"
    fields = load(what, data)
    try:
        return MemberRow(
            name,
            text("inc", fields["inc"]),
            whole("beat", fields["beat"]),
            MemberState(text("state", fields["state"])),
            whole("lease_ms", fields["lease_ms"]),
            whole("grace_ms", fields["grace_ms"]),
            moment("joined", fields["joined"]),
            tuple([(key, text(key, value)) for key, value in mapping("info", fields["info"]).items()]),
            moment("seen", fields.get("seen", 0.0)),
            tuple([_parked(pair) for pair in items("parked", fields.get("parked", []))]),
            flag("blind", fields.get("blind", False)),
            whole("passed_over", fields.get("passed_over", 0)),
            whole("beat_ms", fields.get("beat_ms", 0)),
        )
    except (KeyError, BadField) as error:
        raise damaged(what, error) from None


def _parked(pair: Any) -> tuple[int, str]:
    partition, reason = items("parked", pair, 2)
    return whole("parked", partition), text("parked", reason)


def encode_group(row: Group) -> bytes:
    return _dump(
        {
            "partitions": row.partitions,
            "hash": row.hash,
            "reduce": row.reduce,
            "assignor": row.assignor,
            "generation": row.generation,
            "members": row.members,
            "target": row.target,
            "reason": row.reason,
            "leader": row.leader,
            "leader_epoch": row.leader_epoch,
            "log": row.log,
            **({"born": row.born} if row.born else {}),
            **({"evicted": row.evicted} if row.evicted else {}),
        }
    )


@lru_cache(maxsize=256)
def decode_group(name: str, data: bytes) -> Group:
    what = f"group {name!r}"
    fields = load(what, data)
    try:
        return Group(
            whole("partitions", fields["partitions"]),
            text("hash", fields["hash"]),
            text("reduce", fields["reduce"]),
            text("assignor", fields["assignor"]),
            whole("generation", fields["generation"]),
            _texts("members", fields["members"]),
            text_or_none("target", fields["target"]),
            text("reason", fields["reason"]),
            _owner("leader", fields["leader"]),
            whole("leader_epoch", fields["leader_epoch"]),
            text("log", fields["log"]),
            text("born", fields.get("born", "")),  # groups of PXRS before 0.4 have none
            _texts("evicted", fields.get("evicted", [])),  # groups of PXRS before 0.6 have none
        )
    except (KeyError, BadField) as error:
        raise damaged(what, error) from None


def _texts(name: str, values: Any) -> tuple[str, ...]:
    return tuple([text(name, value) for value in items(name, values)])
