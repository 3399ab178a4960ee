"""The record of the registry to which a stream belongs: the last message of a subject, by compare and set.

The metadata of the stream could hold it too, but the server does not compare what it replaces there.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from pxrs.errors import Damaged, NewerFormat
from pxrs.io.nats.client import ApiError, checked
from pxrs.logs.base import DEAD_LETTERS, OwnRegistry
from pxrs.logs.jetstream.names import RECORDED, stream_of, subject_of
from pxrs.logs.jetstream.stream import WRONG_LAST, Stream

FORMAT = 1
_SUBJECT = "registry"
_NO_STREAM = 10059


async def read_registry(stream: Stream) -> OwnRegistry | None:
    """Read the recorded registry; None for a stream that is older than the record, whose groups are unknown."""
    found, _ = await _last(stream)
    if found is not None:
        return found
    info = await stream.info() or {}
    return OwnRegistry() if RECORDED in (info.get("config", {}).get("metadata") or ()) else None


async def write_registry(stream: Stream, wanted: OwnRegistry, instead_of: str | None) -> OwnRegistry:
    """Record it, if the recorded id is ``instead_of`` (None: whatever it is); returns what is recorded then."""
    content = json.dumps({"format": FORMAT, **wanted._asdict()}).encode()
    while True:
        try:
            found, sequence = await _last(stream)
        except Damaged:
            if instead_of is not None:
                raise
            found, sequence = None, await _last_sequence(stream)
        if instead_of is not None and (found or OwnRegistry()).id != instead_of:
            return found or OwnRegistry()
        if await _published(stream, content, sequence):
            return wanted


async def groups_seen(stream: Stream, queue: str) -> list[str]:
    """Groups that have a stream of dead letters."""
    start = stream_of(queue, DEAD_LETTERS.rstrip("/"), "")
    return sorted(name.removeprefix(start).replace("~", ".") for name in await _names(stream) if name.startswith(start))


async def _names(stream: Stream) -> list[str]:
    """The names of all streams of the server, page by page."""
    names: list[str] = []
    while True:
        try:
            page = await stream.client.api("STREAM.NAMES", {"offset": len(names)})
        except ApiError as error:
            raise stream.refused(error) from None
        new = page.get("streams") or []
        names += new
        if not new or len(names) >= int(page["total"]):
            return names


async def _published(stream: Stream, content: bytes, after: int) -> bool:
    """Whether it was stored: not if somebody else has written since."""
    expected = {"Nats-Expected-Last-Subject-Sequence": str(after)}
    answer = await stream.client.request(subject_of(stream.name, _SUBJECT), content, expected)
    try:
        checked(answer.data)
    except ApiError as error:
        if error.number in WRONG_LAST:
            return False
        raise stream.refused(error) from None
    return True


async def _last(stream: Stream) -> tuple[OwnRegistry | None, int]:
    """The record and its sequence; None and 0 if there is none."""
    message = await _message(stream)
    if message is None:
        return None, 0
    sequence = int(message["seq"])
    try:
        values = json.loads(base64.b64decode(message.get("data", "")))
        form, fields = values["format"], [values[name] for name in ("id", "where", "before")]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(stream, sequence, repr(error)) from error
    if type(form) is int and form > FORMAT:
        raise NewerFormat(f"stream {stream.name!r}: its registry is recorded in format {form}, this knows {FORMAT}")
    if not all(isinstance(field, str) for field in fields) or not fields[0]:
        raise _damaged(stream, sequence, "it names no registry")
    return OwnRegistry(*fields), sequence


async def _last_sequence(stream: Stream) -> int:
    return int((await _message(stream) or {"seq": 0})["seq"])


async def _message(stream: Stream) -> dict[str, Any] | None:
    """The newest message of the subject; the leader of the stream is asked, which knows."""
    wanted = {"last_by_subj": subject_of(stream.name, _SUBJECT)}
    try:
        found: dict[str, Any] = (await stream.client.api(f"STREAM.MSG.GET.{stream.name}", wanted))["message"]
    except ApiError as error:
        if error.status == 404 and error.number != _NO_STREAM:
            return None
        raise stream.refused(error) from None
    return found


def _damaged(stream: Stream, sequence: int, why: str) -> Damaged:
    return Damaged(
        f"{stream.client.address}: stream {stream.name}, subject {subject_of(stream.name, _SUBJECT)}, sequence "
        f"{sequence}: no record of a registry: {why}; write it anew with `pxrs registry adopt`"
    )
