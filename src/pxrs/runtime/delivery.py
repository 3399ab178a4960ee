"""How messages reach a handler: one by one, as a list, or as an Arrow batch; and what a handler is told besides."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from pxrs.errors import BadSetting
from pxrs.model import Message

Deliver = Literal["message", "list", "arrow"]
Handler = Callable[..., Any]


class Context(NamedTuple):
    """Who calls the handler. The epoch is a fencing token: hand it to outputs that can refuse an older one."""

    member: str
    epoch: int
    attempt: int


class Parcel(NamedTuple):
    """What one call of a handler gets: the payload, and the offsets ``[start, end)`` that it covers."""

    payload: Any
    start: int
    end: int


def messages_of(batch: pa.RecordBatch, partition: int) -> Iterator[Message]:
    """The rows of a batch as messages; columns are converted whole, headers and times only when asked for."""
    column = batch.column
    headers, ids, tenants = column("headers"), column("id"), column("tenant")
    nothing = [None] * batch.num_rows
    return map(
        Message,
        [partition] * batch.num_rows,
        column("offset").to_pylist(),
        column("key").to_pylist(),
        column("value").to_pylist(),
        column("timestamp").view(pa.int64()).to_pylist(),
        ids.to_pylist(),
        headers.to_pylist() if headers.null_count < batch.num_rows else nothing,
        tenants.to_pylist() if tenants.null_count < batch.num_rows else nothing,
    )


def parcels(batch: pa.RecordBatch, partition: int, deliver: Deliver, rows: int) -> Iterator[Parcel]:
    """Cut a batch into what single calls of the handler get."""
    first: int = batch.column("offset")[0].as_py()
    if deliver == "message":
        for message in messages_of(batch, partition):
            yield Parcel(message, message.offset, message.offset + 1)
        return
    for start in range(0, batch.num_rows, rows):
        part = batch.slice(start, rows)
        payload = part if deliver == "arrow" else list(messages_of(part, partition))
        yield Parcel(payload, first + start, first + start + part.num_rows)


def singles(batch: pa.RecordBatch, parcel: Parcel, partition: int, deliver: Deliver) -> Iterator[Parcel]:
    """The same messages again, each alone: how one bad message is told from its neighbours."""
    first: int = batch.column("offset")[0].as_py()
    part = batch.slice(parcel.start - first, parcel.end - parcel.start)
    return parcels(part, partition, deliver, 1)


def message_at(batch: pa.RecordBatch, offset: int, partition: int) -> Message:
    first: int = batch.column("offset")[0].as_py()
    return next(messages_of(batch.slice(offset - first, 1), partition))


def check_deliver(deliver: str) -> None:
    if deliver not in ("message", "list", "arrow"):
        raise BadSetting(f"deliver = {deliver!r}: one of 'message', 'list', 'arrow'")


def taking(function: Callable[..., Any] | None, most: int) -> Callable[..., Any] | None:
    """The function, called with as many of ``most`` arguments as it accepts."""
    if function is None:
        return None
    accepted = _accepts(function, most)
    if accepted >= most:
        return function
    return lambda *arguments: function(*arguments[:accepted])


def _accepts(function: Callable[..., Any], most: int) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return most
    return min(most, sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters))
