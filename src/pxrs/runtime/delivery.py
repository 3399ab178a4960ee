"""Delivers messages to a handler: one by one, as a list, or as an Arrow batch; with a context if it asks for one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, repeat
from typing import Any, Literal, NamedTuple, Protocol, cast

import numpy as np
import pyarrow as pa

from pxrs.errors import BadSetting, NotFound
from pxrs.logs.base import Row
from pxrs.logs.batches import numbers
from pxrs.model import Message
from pxrs.rules.texts import values_of

Deliver = Literal["message", "list", "arrow"]
Handler = Callable[..., Any]


class Context(NamedTuple):
    """The context of a call. The epoch is a fencing token: hand it to outputs that can refuse an older one."""

    member: str
    epoch: int
    attempt: int


class DeadLetterBox(Protocol):
    """The place for messages that a handler could not process."""

    def keep(self, message: Message, cause: BaseException | str, stack: str, tries: int, context: Context) -> None: ...


class HandlerCall(NamedTuple):
    """The arguments of one call of a handler: the payload, and the offsets ``[start, end)`` that it covers."""

    payload: Any
    start: int
    end: int


as_message: Callable[[Iterable[Any]], Message] = partial(tuple.__new__, Message)
"""Makes a message of its fields in half of the time that ``Message._make`` takes: without a call of Python."""
_ID = np.dtype("V16")
CONVERTED_ROWS = 1_024
"""This many rows become messages at a time: they are still in the processor's cache when they are handled."""


def messages_of(batch: pa.RecordBatch | list[Row], partition: int) -> Iterator[Message]:
    """The rows of a batch, which follow one another, as messages; headers and times are made only when asked for."""
    if isinstance(batch, list):
        return map(as_message, batch)
    if not batch.num_rows:
        return iter(())
    if batch.num_rows <= CONVERTED_ROWS:
        return _messages(batch, partition)
    starts = range(0, batch.num_rows, CONVERTED_ROWS)
    return chain.from_iterable(_messages(batch.slice(start, CONVERTED_ROWS), partition) for start in starts)


def _messages(batch: pa.RecordBatch, partition: int) -> Iterator[Message]:
    """Columns are converted whole."""
    offset, timestamp, key, value, headers, identity, tenant = batch.columns
    rows, first = len(offset), int(numbers(offset)[0])
    fields = zip(
        repeat(partition, rows),
        range(first, first + rows),
        key.to_pylist(),
        value.to_pylist(),
        numbers(timestamp).tolist(),
        _ids(identity),
        _sparse(headers),
        _sparse(tenant),
        strict=True,
    )
    return map(as_message, fields)


def _ids(array: pa.Array) -> Iterable[bytes | None]:
    if array.null_count:
        return cast("list[bytes | None]", array.to_pylist())
    ids = np.frombuffer(array.buffers()[1], _ID, len(array), _ID.itemsize * array.offset)
    return cast("list[bytes | None]", ids.tolist())


def _sparse(array: pa.Array) -> Iterable[Any]:
    """A column that is mostly empty: nothing is converted where there is nothing."""
    return repeat(None, len(array)) if array.null_count == len(array) else values_of(array)


def calls(batch: pa.RecordBatch, partition: int, deliver: Deliver, rows: int) -> Iterator[HandlerCall]:
    """Cut a batch into what single calls of a handler of lists or Arrow batches get."""
    if not batch.num_rows:
        return
    first: int = batch.column("offset")[0].as_py()
    for start in range(0, batch.num_rows, rows):
        part = batch.slice(start, rows)
        payload = part if deliver == "arrow" else list(messages_of(part, partition))
        yield HandlerCall(payload, first + start, first + start + part.num_rows)


def singles(batch: pa.RecordBatch, call: HandlerCall, partition: int, deliver: Deliver) -> Iterator[HandlerCall]:
    """The same messages again, each alone: so one bad message is found among its neighbours."""
    first: int = batch.column("offset")[0].as_py()
    part = batch.slice(call.start - first, call.end - call.start)
    return calls(part, partition, deliver, 1)


def message_at(batch: pa.RecordBatch, offset: int, partition: int) -> Message:
    first: int = batch.column("offset")[0].as_py()
    return next(messages_of(batch.slice(offset - first, 1), partition))


def message_of(batch: pa.RecordBatch, call: HandlerCall, partition: int) -> Message:
    """The message of a call with a single message, however it is delivered."""
    found = call.payload
    return found if isinstance(found, Message) else message_at(batch, call.start, partition)


def check_deliver(deliver: str) -> None:
    if deliver not in ("message", "list", "arrow"):
        raise BadSetting(f"deliver = {deliver!r}: one of 'message', 'list', 'arrow'")


_KNOWN_WORDS = frozenset({"context", "checkpoint", "position", "epoch"})


def check_handler(handler: object) -> None:
    """Refuse what could not be called with a message, or would return before its work is done."""
    if not callable(handler):
        raise BadSetting(f"handler = {handler!r}: must be a function of (message) or (message, context)")
    for function in (handler, getattr(handler, "__call__", None)):  # noqa: B004 - it is looked into, not called
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise BadSetting(f"handler {_name(handler)} is async: it would return before its work is done; use def")
        if inspect.isgeneratorfunction(function):
            raise BadSetting(f"handler {_name(handler)} is a generator: it would do nothing when called; use no yield")
    if not 1 <= _wanted(handler, 2) <= 2:
        raise BadSetting(f"handler {_name(handler)} must take (message) or (message, context)")


def check_called(name: str, function: object, arguments: str) -> None:
    """Refuse what could not be called when the time has come; None means that nothing is."""
    if function is not None and not callable(function):
        raise BadSetting(f"{name} = {function!r}: must be a function of ({arguments})")


def check_reading(queue: str, partitions: int, partition: object, limit: object) -> None:
    """Refuse a partition that a queue does not have, and a number of messages that is none."""
    if type(partition) is not int or not 0 <= partition < partitions:
        raise NotFound(f"queue {queue!r} has no partition {partition!r}: they are 0 to {partitions - 1}")
    if type(limit) is not int or limit < 0:
        raise BadSetting(f"limit = {limit!r}: must be a number of messages, a whole number from 0")


def _name(handler: object) -> str:
    return getattr(handler, "__qualname__", repr(handler))


class WithoutContext:
    """A handler that asks for messages alone."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, payload: Any, _context: Context) -> Any:
        return self.function(payload)


def bound(handler: Callable[..., Any], context: Context) -> Callable[[Any], Any]:
    """The handler of (message, context) as a function of the message: every single one goes this way."""
    if isinstance(handler, WithoutContext):
        return handler.function
    return lambda payload: handler(payload, context)


def taking(function: Callable[..., Any] | None, most: int) -> Callable[..., Any] | None:
    """The function, called with as many of ``most`` arguments as it asks for."""
    if function is None:
        return None
    wanted = _wanted(function, most)
    if wanted >= most:
        return function
    if (most, wanted) == (2, 1):
        return WithoutContext(function)
    return lambda *arguments: function(*arguments[:wanted])


def _wanted(function: Callable[..., Any], most: int) -> int:
    """The number of positional arguments. One with a default is the user's own, unless its name is known."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return 1  # a built-in that does not say: print, list.append
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return most
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    asked = [p for number, p in enumerate(places) if p.default is p.empty or number == 0 or p.name in _KNOWN_WORDS]
    return len(asked)
