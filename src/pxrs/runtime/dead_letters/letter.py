"""A dead letter: what is kept of a message that could not be processed, and how it is written into the box's log.

Our facts are headers named ``pxrs.*``. The user's own headers are beside them; one whose name begins with ``pxrs.``
or ``~`` gets a ``~`` before it, so that the two are never mistaken for each other. A message that is too large to be
kept at all is kept by reference: the letter says where it is in the queue's log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from pxrs.logs.base import ENTRY_SCHEMA
from pxrs.logs.message_size import row_bytes
from pxrs.model import Message
from pxrs.runtime.delivery import Context
from pxrs.runtime.failures.error_summary import beginning, ending, error_text

_OURS, _ESCAPE = "pxrs.", "~"
_FORMAT = "2"
_FACTS_OF_FORMAT_1 = frozenset({"cause", "stack", "tries", "member", "epoch", "partition", "offset", "timestamp"})
_SHORT = 200


class DeadLetter(NamedTuple):
    """One kept message: its number in the box, its origin, its cause, and whether it was sent again.

    ``by_reference``: the message was too large to be kept with its cause, and is read from the queue's log. If it is
    no longer there, ``missing`` says why, and key, value, headers and tenant are empty.
    ``log`` and ``id`` tell which message of which log it is; letters of PXRS before 0.6 do not name the log.
    """

    number: int
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    headers: dict[str, bytes]
    tenant: str | None
    cause: str
    stack: str
    tries: int
    member: str
    timestamp_us: int
    retried: bool
    by_reference: bool = False
    missing: str = ""
    log: str = ""
    id: str = ""


class Failure(NamedTuple):
    """Why a message is put aside, as text that can be stored."""

    cause: str
    stack: str
    tries: int
    context: Context

    @classmethod
    def of(cls, cause: BaseException | str, stack: str, tries: int, context: Context) -> Failure:
        text = beginning(cause) if isinstance(cause, str) else error_text(cause)
        return cls(text, ending(stack), tries, context)


def letter_of(message: Message, failure: Failure, log_id: str, now_us: int, most: int | None) -> pa.RecordBatch:
    """The letter as one row, not larger than ``most``: with less of the stack if need be, then by reference.

    The message comes before its stack: retention may delete what a letter refers to.
    """
    facts = _facts(message, failure, log_id)
    found = _entry(message, facts, now_us)
    if most is None or (size := _size(found)) <= most:
        return found
    empty = message._replace(key=None, value=b"", raw_headers=None, tenant=None)
    for kept, more in ((message, {}), (empty, {"by-reference": str(size)})):
        # The stack keeps its end, where it says what was raised, and only then the cause keeps its beginning.
        for shorter in (facts, facts | {"cause": failure.cause[:_SHORT]}):
            found = _entry(kept, shorter | more, now_us)
            excess, stack = max(0, _size(found) - most), shorter["stack"].encode()
            if excess <= len(stack):
                return _entry(kept, shorter | more | {"stack": stack[excess:].decode(errors="ignore")}, now_us)
    return _entry(empty, shorter | more | {"stack": ""}, now_us)


def _facts(message: Message, failure: Failure, log_id: str) -> dict[str, str]:
    return {
        "format": _FORMAT,
        "cause": failure.cause,
        "stack": failure.stack,
        "tries": str(failure.tries),
        "member": failure.context.member,
        "epoch": str(failure.context.epoch),
        "partition": str(message.partition),
        "offset": str(message.offset),
        "timestamp": str(message.timestamp_us),
        "log": log_id,
        "message": message.id,
    }


def _entry(message: Message, facts: Mapping[str, str], now_us: int) -> pa.RecordBatch:
    theirs = [{"key": _escaped(pair["key"]), "value": pair["value"]} for pair in message.raw_headers or ()]
    ours = [{"key": f"{_OURS}{name}", "value": text.encode()} for name, text in facts.items()]
    fields: dict[str, Any] = {
        "timestamp": now_us,
        "key": message.key,
        "value": message.value,
        "headers": [*theirs, *ours],
        "id": message.raw_id,
        "tenant": message.tenant,
    }
    arrays = [pa.array([fields[field.name]], field.type) for field in ENTRY_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)


def _size(batch: pa.RecordBatch) -> int:
    return int(row_bytes(batch)[0])


def _escaped(name: str) -> str:
    return f"{_ESCAPE}{name}" if name.startswith((_OURS, _ESCAPE)) else name


# ---- the way back ----------------------------------------------------------------------------------------------------


def letter_in(stored: Message, retried: bool) -> DeadLetter:
    """The letter that a message of the box's log is. Also one of PXRS before 0.6, and one that somebody has spoilt."""
    ours, theirs = _split(stored.headers)
    return DeadLetter(
        number=stored.offset,
        partition=_number(ours, "partition", -1),
        offset=_number(ours, "offset", -1),
        key=stored.key,
        value=stored.value,
        headers=theirs,
        tenant=stored.tenant,
        cause=ours.get("cause", ""),
        stack=ours.get("stack", ""),
        tries=_number(ours, "tries", 0),
        member=ours.get("member", ""),
        timestamp_us=stored.timestamp_us,
        retried=retried,
        by_reference="by-reference" in ours,
        log=ours.get("log", ""),
        id=ours.get("message", stored.id),
    )


def _split(headers: Mapping[str, bytes]) -> tuple[dict[str, str], dict[str, bytes]]:
    """Our facts, and the user's headers. Before 0.6 other names that begin so were the user's."""
    is_new = f"{_OURS}format" in headers and f"{_OURS}log" in headers
    ours: dict[str, str] = {}
    theirs: dict[str, bytes] = {}
    for name, value in headers.items():
        fact = name.removeprefix(_OURS)
        if name.startswith(_OURS) and (is_new or fact in _FACTS_OF_FORMAT_1):
            ours[fact] = (value or b"").decode(errors="backslashreplace")
        else:
            theirs[name.removeprefix(_ESCAPE) if is_new else name] = value
    return ours, theirs


def _number(facts: Mapping[str, str], name: str, otherwise: int) -> int:
    try:
        return int(facts[name])
    except (KeyError, ValueError):
        return otherwise
