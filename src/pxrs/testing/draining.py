"""``drain``: what a user's own test calls to let a group process all that is in a queue."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal

from pxrs.errors import BadSetting, HandlerFailed
from pxrs.io.clock import SystemClock
from pxrs.runtime.consumer.consumer import Consumer
from pxrs.runtime.group.until_end import FinishLine
from pxrs.runtime.ports.counters import Counters
from pxrs.runtime.ports.sink import Sink
from pxrs.runtime.queue.queue import Queue
from pxrs.settings import Settings


def drain(
    queue: Queue,
    group: str,
    handler: Callable[..., Any],
    *,
    deliver: Literal["message", "list", "arrow"] = "message",
    start: str | datetime = "earliest",
    sink: Sink | None = None,
    on_failure: Literal["stop", "dead-letter", "skip"] = "stop",
    tries: int = 1,
    timeout: float = 30.0,
    settings: Settings | None = None,
) -> Counters:
    """Process all that is in the queue now as a member of the group, leave, and return what was done, in numbers.

    An error of the handler is raised here as it is, after the first try; its message stays unprocessed. With
    ``on_failure`` and ``tries`` the failure goes where it would go in production. TimeoutError: it took too long.
    """
    if not isinstance(queue, Queue):
        raise BadSetting(f"queue = {queue!r}: must be an open queue, as pxrs.open({queue!r}) is")
    settings = (settings or queue.settings).with_(on_failure=on_failure, tries=tries)
    consumer = queue.consumer(group, handler, deliver=deliver, start=start, sink=sink, settings=settings)
    line = FinishLine(queue.group(group), SystemClock())
    with consumer:
        is_through = line.wait(consumer, timeout)
        left_early = consumer.wait(0)
        waited_for = "" if is_through or left_early else line.describe(line.left(consumer), consumer)
    _raise_error_of(consumer)
    if waited_for:
        raise TimeoutError(f"group {group!r} is not through after {timeout} s; it waits for {waited_for}")
    if is_through:
        line.confirm(consumer.unshown)
    return consumer.tally


def _raise_error_of(consumer: Consumer) -> None:
    error = consumer.error
    if isinstance(error, HandlerFailed) and error.__cause__ is not None:
        raise error.__cause__
    consumer.check()
