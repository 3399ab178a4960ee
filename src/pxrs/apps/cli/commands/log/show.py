"""``pxrs log ...``: what is stored, without consuming it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from pxrs.apps.cli.commands.log.where import AsHex, key_of
from pxrs.apps.cli.message_format import FORMAT_HELP, printable, shape
from pxrs.apps.cli.options import Most, OldMost, Output, Partitions, RegistryUrl, Url, WrongUsage, opened
from pxrs.apps.cli.output import show
from pxrs.apps.cli.values import timestamp
from pxrs.errors import NotFound
from pxrs.runtime.views.tables import Table

if TYPE_CHECKING:
    from pxrs.logs.base import Chunk
    from pxrs.model import Message
    from pxrs.runtime.queue.queue import Queue

_ROWS = 10_000
LARGEST = 2**63
"""Offsets are less than this."""


def ls(url: Url, output: Output = "table", registry: RegistryUrl = None) -> None:
    """The partitions: which offsets and times they hold, in how many sealed files and segments, in how many bytes."""
    with opened(url, registry) as queue:
        rows = [_line(queue, partition) for partition in range(queue.partitions)]
    columns = ["PARTITION", "START", "END", "MESSAGES", "SEALED", "SEGMENTS", "BYTES", "OLDEST", "NEWEST"]
    show(Table(columns, rows), output)


def _line(queue: Queue, partition: int) -> list[int | str | None]:
    start, end = queue.log.bounds(partition)
    chunks = queue.log.chunks(partition)
    sealed = sum(chunk.kind == "parquet" for chunk in chunks)
    # The last segment may have been begun, and hold nothing yet.
    newest = next((chunk.last_us for chunk in reversed(chunks) if chunk.last_us is not None), None)
    times = (_oldest_us(queue, partition, chunks[0]), newest) if start < end else (None, None)
    shown = [None if at is None else timestamp(at) for at in times]
    size = sum(chunk.bytes for chunk in chunks)
    return [partition, start, end, end - start, sealed, len(chunks) - sealed, size, *shown]


def _oldest_us(queue: Queue, partition: int, chunk: Chunk) -> int:
    """The time of the first message; of a sealed file its own statistics tell, with no need to read the file."""
    if chunk.kind != "parquet":
        return queue.read(partition, chunk.start, limit=1)[0].timestamp_us
    from pyarrow.parquet import read_metadata

    first = read_metadata(chunk.path).row_group(0)
    columns = {first.column(number).path_in_schema: first.column(number) for number in range(first.num_columns)}
    oldest: int = columns["timestamp"].statistics.min_raw
    return oldest


def cat(
    url: Url,
    partitions: Partitions = None,
    offset: Annotated[
        str, typer.Option("--offset", metavar="N", help="First offset; -N: the last N; earliest, latest.")
    ] = "earliest",
    most: Most = None,
    output: Annotated[str, typer.Option("--output", "-o", help="table, csv, " + FORMAT_HELP)] = "value",
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Only the messages of this key, in its partition.")
    ] = None,
    hex: AsHex = False,
    registry: RegistryUrl = None,
    limit: OldMost = None,
) -> None:
    """Print stored messages without consuming them, partition by partition."""
    form = None if output in ("table", "csv") else shape(output, "table", "csv")
    if key is not None and partitions:
        raise WrongUsage("--key has one partition, its own: leave --partition out")
    if hex and key is None:
        raise WrongUsage("--hex says how --key is written: give a --key")
    wanted, limit = None if key is None else key_of(key, hex), limit if most is None else most
    with opened(url, registry) as queue:
        found = _messages(queue, partitions, offset, limit) if wanted is None else _of_key(queue, wanted, offset, limit)
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
    for partition in chosen(queue, partitions):
        position = first_offset(queue, partition, offset)
        while left > 0 and (found := queue.read(partition, position, min(left, _ROWS))):
            yield from found
            left -= len(found)
            position += len(found)


def _of_key(queue: Queue, key: bytes, offset: str, limit: int | None) -> Iterator[Message]:
    found = _messages(queue, [queue.partitioner.partition(key)], offset, None)
    return islice((message for message in found if message.key == key), limit)


def chosen(queue: Queue, partitions: list[int] | None) -> list[int]:
    """These partitions, or all."""
    for number in partitions or []:
        if not 0 <= number < queue.partitions:
            raise NotFound(f"queue {queue.name!r} has no partition {number}: 0 to {queue.partitions - 1}")
    return partitions or list(range(queue.partitions))


def first_offset(queue: Queue, partition: int, offset: str) -> int:
    """The offset that ``earliest``, ``latest``, a number or -N means now."""
    start, end = queue.log.bounds(partition)
    if offset in ("earliest", "latest"):
        return start if offset == "earliest" else end
    try:
        number = int(offset)
    except ValueError:
        raise WrongUsage(f"--offset {offset!r}: a number, earliest or latest") from None
    if number >= LARGEST:
        raise WrongUsage(f"{offset} is too large: an offset is less than {LARGEST}")
    return max(start, end + number) if number < 0 else number
