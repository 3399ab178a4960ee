"""``pxrs log ...``: what is stored, without consuming it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from pxrs.cli.messages import FORMAT_HELP, printable, shape
from pxrs.cli.options import Output, Partitions, RegistryUrl, Url, opened
from pxrs.cli.output import note, progress, show
from pxrs.cli.words import timestamp
from pxrs.errors import NotFound, PxrsError, Refused
from pxrs.views.tables import Table

if TYPE_CHECKING:
    from pxrs.model import Message
    from pxrs.runtime.queue import Queue

_ROWS = 10_000


def ls(url: Url, output: Output = "table", registry: RegistryUrl = None) -> None:
    """The partitions: which offsets they hold, in how many segments and bytes."""
    with opened(url, registry) as queue:
        rows = [_line(queue, partition) for partition in range(queue.partitions)]
    show(Table(["PARTITION", "START", "END", "MESSAGES", "SEGMENTS", "BYTES"], rows), output)


def _line(queue: Queue, partition: int) -> list[int]:
    start, end = queue.log.bounds(partition)
    sizes = {piece.path: _size(piece.path, piece.length) for piece in queue.log.pieces(partition, start, end)}
    return [partition, start, end, end - start, len(sizes), sum(sizes.values())]


def _size(path: str, length: int) -> int:
    """A whole file; where pieces are no files, what the piece says of itself."""
    return os.path.getsize(path) if os.path.exists(path) else length


def cat(
    url: Url,
    partitions: Partitions = None,
    offset: Annotated[
        str, typer.Option("--offset", metavar="N", help="First offset; -N: the last N; earliest, latest.")
    ] = "earliest",
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0, help="At most this many messages.")] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="table, csv, " + FORMAT_HELP)] = "value",
    registry: RegistryUrl = None,
) -> None:
    """Print stored messages without consuming them, partition by partition."""
    form = None if output in ("table", "csv") else shape(output)
    with opened(url, registry) as queue:
        found = _messages(queue, partitions, offset, limit)
        if form is None:
            rows = [[m.partition, m.offset, timestamp(m.timestamp_us), printable(m.key), printable(m.value)]
                    for m in found]  # fmt: skip
            table = Table(["PARTITION", "OFFSET", "TIME", "KEY", "VALUE"], rows)
            show(table, "csv" if output == "csv" else "table")
            return
        for message in found:
            sys.stdout.buffer.write(form(message) + b"\n")


def _messages(queue: Queue, partitions: list[int] | None, offset: str, limit: int | None) -> Iterator[Message]:
    left = sys.maxsize if limit is None else limit
    for partition in _check(queue, partitions):
        position = _first(queue, partition, offset)
        while left > 0 and (found := queue.read(partition, position, min(left, _ROWS))):
            yield from found
            left -= len(found)
            position += len(found)


def _check(queue: Queue, partitions: list[int] | None) -> list[int]:
    for number in partitions or []:
        if not 0 <= number < queue.partitions:
            raise NotFound(f"queue {queue.name!r} has no partition {number}: 0 to {queue.partitions - 1}")
    return partitions or list(range(queue.partitions))


def _first(queue: Queue, partition: int, offset: str) -> int:
    start, end = queue.log.bounds(partition)
    if offset in ("earliest", "latest"):
        return start if offset == "earliest" else end
    try:
        number = int(offset)
    except ValueError:
        raise Refused(f"--offset {offset!r}: a number, earliest or latest") from None
    return max(start, end + number) if number < 0 else number


def verify(url: Url, output: Output = "table", registry: RegistryUrl = None) -> None:
    """Read everything and check every checksum and offset. Exit code 1 if something is damaged."""
    with opened(url, registry) as queue:
        total = sum(_known_length(queue, partition) for partition in range(queue.partitions))
        with progress("verifying", total) as advance:
            results = [_verified(queue, partition, advance) for partition in range(queue.partitions)]
    rows = [[p, count, "damaged" if problem else "ok"] for p, (count, problem) in enumerate(results)]
    show(Table(["PARTITION", "MESSAGES", "STATUS"], rows), output)
    problems = [f"partition {p}: {problem}" for p, (_, problem) in enumerate(results) if problem]
    for problem in problems:
        note(problem)
    if problems:
        raise typer.Exit(1)


def _known_length(queue: Queue, partition: int) -> int:
    try:
        start, end = queue.log.bounds(partition)
    except PxrsError:
        return 0
    return end - start


def _verified(queue: Queue, partition: int, advance: Callable[[int], None]) -> tuple[int, str | None]:
    """How many messages of a partition are whole, and what is wrong with the next one."""
    count = 0
    try:
        position, end = queue.log.bounds(partition)
        while position < end:
            batch = queue.log.read(partition, position, _ROWS)
            if batch is None or batch.column("offset").to_pylist() != list(range(position, position + batch.num_rows)):
                return count, f"the offsets after {position} are not those of a whole log"
            position, count = position + batch.num_rows, count + batch.num_rows
            advance(batch.num_rows)
    except PxrsError as error:
        return count, str(error)
    return count, None
