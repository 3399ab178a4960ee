"""Encodes and decodes the rows of the registry: JSON that a person can read, with a format version in each row.

A row of a higher version was written by a later PXRS: it is refused, because writing it back would lose
what this version does not understand. Every field is checked when a row is read: one that is not what it should be
makes the row ``Damaged``, so that nobody works with it, claims it or writes it back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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


is_spliced = True
"""The switch of the short way of a partition's row (ADR 0043). The registry benchmark turns it off."""


def encode_partition(row: Partition) -> bytes:
    _, owner, epoch, checkpoint, cause, paused, note, history = row
    if not is_spliced:
        values = (owner, epoch, checkpoint, cause.value, paused, note, history)
        return _dump(dict(zip(_PARTITION, values, strict=True)))
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
    owner, epoch, checkpoint, cause, paused, note, history = _fields(f"partition {number}", data, _PARTITION)
    return Partition(number, owner, epoch, checkpoint, cause, paused, note, history)


def _cause(_name: str, word: Any) -> Cause:
    try:
        return Cause(word)
    except ValueError:
        raise BadField(f"cause is {shown(word)}, which is none of {', '.join(Cause)}") from None


def _history(name: str, lines: Any) -> tuple[Tenure, ...]:
    return tuple([_tenure(line) for line in items(name, lines)])


def _tenure(line: Any) -> Tenure:
    name = "a line of history"
    owner, epoch, since, cause = items(name, line, 4)
    typed = type(owner) is type(cause) is str and type(epoch) is int and type(since) is float
    if typed and 0 <= epoch < LIMIT and 0 <= since < LIMIT:
        return Tenure(owner, epoch, since, cause)  # as nearly all are: eight of them are in each row
    return Tenure(text_or_none(name, owner), whole(name, epoch), moment(name, since), text(name, cause))


def encode_member(row: MemberRow) -> bytes:
    return _dump(_written(row, _MEMBER) | {"info": dict(row.info)})


@lru_cache(maxsize=1024)
def decode_member(name: str, data: bytes) -> MemberRow:
    return MemberRow(name, *_fields(f"member {name!r}", data, _MEMBER))


def _state(name: str, word: Any) -> MemberState:
    return MemberState(text(name, word))


def _info(name: str, value: Any) -> tuple[tuple[str, str], ...]:
    return tuple([(key, text(key, word)) for key, word in mapping(name, value).items()])


def _parked(name: str, pairs: Any) -> tuple[tuple[int, str], ...]:
    found = [items(name, pair, 2) for pair in items(name, pairs)]
    return tuple([(whole(name, partition), text(name, reason)) for partition, reason in found])


def encode_group(row: Group) -> bytes:
    return _dump(_written(row, _GROUP))


@lru_cache(maxsize=256)
def decode_group(name: str, data: bytes) -> Group:
    return Group(*_fields(f"group {name!r}", data, _GROUP))


def _texts(name: str, values: Any) -> tuple[str, ...]:
    return tuple([text(name, value) for value in items(name, values)])


# ---- the fields of each kind of row, in the order of the row's own ---------------------------------------------------


_Check = Callable[[str, Any], Any]

_PARTITION: dict[str, _Check] = {
    "owner": _owner, "epoch": whole, "checkpoint": whole_or_none, "cause": _cause, "paused": flag, "note": text,
    "history": _history,
}  # fmt: skip
_MEMBER: dict[str, _Check] = {
    "inc": text, "beat": whole, "state": _state, "lease_ms": whole, "grace_ms": whole, "joined": moment, "info": _info,
    "seen": moment, "parked": _parked, "blind": flag, "passed_over": whole, "beat_ms": whole,
}  # fmt: skip
_GROUP: dict[str, _Check] = {
    "partitions": whole, "hash": text, "reduce": text, "assignor": text, "generation": whole, "members": _texts,
    "target": text_or_none, "reason": text, "leader": _owner, "leader_epoch": whole, "log": text, "born": text,
    "evicted": _texts,
}  # fmt: skip
_ABSENT: dict[str, Any] = {
    "seen": 0.0, "parked": [], "blind": False, "passed_over": 0, "beat_ms": 0, "born": "", "evicted": [],
}  # fmt: skip
"""The values of fields that earlier versions do not write: ``born`` came with 0.4, the others with 0.6."""


def _fields(what: str, data: bytes, checks: Mapping[str, _Check]) -> list[Any]:
    """The fields of a row in the order of these checks, each checked."""
    found, values = load(what, data), []
    try:
        for name, check in checks.items():
            value = found[name] if name in found or name not in _ABSENT else _ABSENT[name]
            values.append(value if check is text and type(value) is str else check(name, value))
        return values
    except (KeyError, BadField) as error:
        raise damaged(what, error) from None


def _written(row: MemberRow | Group, checks: Mapping[str, _Check]) -> dict[str, Any]:
    """The fields of a row as they are written. Earlier versions do not miss what they do not write themselves."""
    values = {name: getattr(row, name) for name in checks}
    return {name: value for name, value in values.items() if value or name not in _ABSENT}
