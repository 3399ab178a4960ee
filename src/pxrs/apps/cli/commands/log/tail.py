"""``pxrs log tail``: the newest messages, and those that come."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from pxrs.apps.cli.commands.log.show import chosen, first_offset
from pxrs.apps.cli.message_format import FORMAT_HELP, Shape, shape
from pxrs.apps.cli.options import OldMost, Partitions, RegistryUrl, Url, opened
from pxrs.apps.cli.output import note, until_asked_to_end
from pxrs.apps.cli.values import moment
from pxrs.errors import Expired

if TYPE_CHECKING:
    from pxrs.model import Message
    from pxrs.runtime.queue.queue import Queue

_ROWS = 1_000
_NEWEST = 10


def tail(
    url: Url,
    partitions: Partitions = None,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="PLACE", help="An offset; -N: the last N of each partition; earliest, latest, a time."
        ),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            "--max",
            "-n",
            min=0,
            metavar="N",
            help="The number of newest messages that come first (10); with --from: end after this many.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Wait for messages that come.")] = True,
    output: Annotated[str, typer.Option("--output", "-o", help=FORMAT_HELP)] = "%p %o %k %v",
    registry: RegistryUrl = None,
    old_most: OldMost = None,
) -> None:
    """Print the newest messages, then those that come, without consuming them. Ctrl-C ends it."""
    form, count = shape(output), old_most if most is None else most
    with opened(url, registry) as queue, until_asked_to_end():
        numbers = chosen(queue, partitions)
        if begin is None:
            positions = {partition: queue.log.bounds(partition)[1] for partition in numbers}
            _print(_newest(queue, positions, _NEWEST if count is None else count), form)
        else:
            positions = {partition: _place(queue, partition, begin) for partition in numbers}
        left = sys.maxsize if begin is None or count is None else count
        _print(_coming(queue, positions, left, follow), form)


def _print(messages: Iterable[Message], form: Shape) -> None:
    for message in messages:
        sys.stdout.buffer.write(form(message) + b"\n")
        sys.stdout.buffer.flush()


def _place(queue: Queue, partition: int, place: str) -> int:
    if place in ("earliest", "latest") or place.lstrip("-").isdigit():
        return first_offset(queue, partition, place)
    return queue.log.offset_at(partition, int(moment(place).timestamp() * 1_000_000))


def _newest(queue: Queue, ends: dict[int, int], count: int) -> list[Message]:
    """The newest messages of all these partitions together, in the order of their times."""
    found: list[Message] = []
    for partition, end in ends.items():
        start = max(queue.log.bounds(partition)[0], end - count)
        found += queue.read(partition, start, end - start)
    found.sort(key=lambda message: (message.timestamp_us, message.partition, message.offset))
    return found[len(found) - min(count, len(found)) :]


def _coming(queue: Queue, positions: dict[int, int], left: int, follow: bool) -> Iterator[Message]:
    """Yield the messages from these positions on; with ``follow`` also those that come later."""
    wake_event = threading.Event()
    with ExitStack() as cancelling:
        for partition in positions if follow else ():
            cancelling.callback(queue.log.subscribe(partition, wake_event.set))
        while left > 0:
            wake_event.clear()
            seen = 0
            for partition in positions:
                for message in _next(queue, partition, positions, min(left, _ROWS)):
                    yield message
                    left, seen = left - 1, seen + 1
            if not seen:
                if not follow:
                    return
                wake_event.wait(queue.settings.poll_ms / 1000)  # it may get lost


def _next(queue: Queue, partition: int, positions: dict[int, int], limit: int) -> list[Message]:
    try:
        found = queue.read(partition, positions[partition], limit)
    except Expired as error:  # retention was faster than the one who prints
        note(str(error))
        positions[partition] = queue.log.bounds(partition)[0]
        return []
    positions[partition] += len(found)
    return found
