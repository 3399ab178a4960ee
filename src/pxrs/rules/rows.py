"""How the registry's rows look as bytes: JSON that a person can read, with a format version in each row.

A row of a higher version was written by a later PXRS: it is refused, because writing it back would lose
what this version does not understand.
"""

from __future__ import annotations

import json
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any

from pxrs.errors import Damaged, NewerFormat
from pxrs.model import Cause, Group, MemberRow, MemberState, Owner, Partition, Tenure

FORMAT = 1


# Made once: json.dumps makes a new encoder for each call with separators, and rows are written all the time.
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


def _dump(fields: dict[str, Any]) -> bytes:
    return _encode({"v": FORMAT, **fields}).encode()


def _load(what: str, data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
        version = fields["v"]
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"registry row {what} is not readable: {data[:60]!r}") from error
    if version != FORMAT:
        raise NewerFormat(f"registry row {what} has format {version!r}; this version of PXRS knows {FORMAT}")
    return dict(fields)


def _owner(pair: Any) -> Owner | None:
    return None if pair is None else Owner(*pair)


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
    fields = _load(what, data)
    try:
        return Partition(
            number,
            _owner(fields["owner"]),
            fields["epoch"],
            fields["checkpoint"],
            Cause(fields["cause"]),
            fields["paused"],
            fields["note"],
            tuple(Tenure(*line) for line in fields["history"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"registry row {what} has a bad field: {error}") from error


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
        }
    )


@lru_cache(maxsize=1024)
def decode_member(name: str, data: bytes) -> MemberRow:
    what = f"member {name!r}"
    fields = _load(what, data)
    try:
        return MemberRow(
            name,
            fields["inc"],
            fields["beat"],
            MemberState(fields["state"]),
            fields["lease_ms"],
            fields["grace_ms"],
            fields["joined"],
            tuple(fields["info"].items()),
            fields.get("seen", 0.0),
            tuple((partition, reason) for partition, reason in fields.get("parked", ())),
            fields.get("blind", False),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(f"registry row {what} has a bad field: {error}") from error


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
        }
    )


@lru_cache(maxsize=256)
def decode_group(name: str, data: bytes) -> Group:
    what = f"group {name!r}"
    fields = _load(what, data)
    try:
        return Group(
            fields["partitions"],
            fields["hash"],
            fields["reduce"],
            fields["assignor"],
            fields["generation"],
            tuple(fields["members"]),
            fields["target"],
            fields["reason"],
            _owner(fields["leader"]),
            fields["leader_epoch"],
            fields["log"],
            fields.get("born", ""),  # groups of PXRS before 0.4 have none
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"registry row {what} has a bad field: {error}") from error
