"""``pxrs import``: bring an existing queue's messages in, and its global checkpoint with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pxrs.apps.cli import message_sources as sources
from pxrs.apps.cli.message_sources import LineFormat
from pxrs.apps.cli.options import (
    HashName,
    KeySeparator,
    PartitionCount,
    ReduceName,
    RegistryUrl,
    Url,
    WrongUsage,
    opened,
)
from pxrs.apps.cli.output import progress
from pxrs.errors import Refused
from pxrs.model import check_name
from pxrs.runtime.views.tables import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pxrs.runtime.producer.producer import BatchReceipt
    from pxrs.runtime.queue.queue import Queue

SourceForm = Literal["lines", "json", "arrow", "parquet"]
_IN_FLIGHT = 8


def import_(
    url: Url,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The file with the messages; '-' is stdin.")],
    format: Annotated[SourceForm, typer.Option("--format", "-f", help="What the source holds.")] = "lines",
    key_field: Annotated[
        str | None, typer.Option("--key-field", metavar="NAME", help="The field or column that is the key.")
    ] = None,
    key_separator: KeySeparator = None,
    from_checkpoint: Annotated[
        int | None,
        typer.Option("--from-checkpoint", min=0, metavar="N", help="The first N messages count as processed."),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="GROUP", help="For which new group; with --from-checkpoint.")
    ] = None,
    partitions: PartitionCount = None,
    hash: HashName = None,
    reduce: ReduceName = None,
    registry: RegistryUrl = None,
) -> None:
    """Adopt the messages of another queue, in their order; creates the queue if there is none.

    With --from-checkpoint N --group G the old global checkpoint is taken over: G will process exactly the messages
    from number N (counted from 0) on.
    """
    if (from_checkpoint is None) != (group is None):
        raise WrongUsage("--from-checkpoint and --group belong together")
    if group is not None:
        check_name("group", group)  # a queue that was made for a name that cannot be would stay behind
    _check_source(source, format, from_checkpoint, key_separator)
    reading = None if format in ("arrow", "parquet") else LineFormat(format == "json", None, key_field, key_separator)

    def tables() -> Iterator[Any]:
        if reading is None:
            return sources.tables(source, format, key_field)
        return sources.packed(sources.entries([source], reading))

    if source != sources.STDIN:
        _check_all(tables(), from_checkpoint or 0)
    with opened(url, registry, create=True, partitions=partitions, hash=hash, reduce=reduce) as queue:
        if group is not None:
            _check_new(queue, group)
        places = _ImportedRanges(queue.partitions, from_checkpoint)
        with progress("importing", None) as advance:
            for count in places.send(queue, tables()):
                advance(count)
        print(f"imported {counted(places.count, 'message')} into {queue.name!r}")
        if group is not None:
            _take_over(queue, group, places)


def _check_source(source: str, format: str, from_checkpoint: int | None, key_separator: str | None) -> None:
    if source == sources.STDIN:
        if from_checkpoint is not None or format in ("arrow", "parquet"):
            raise WrongUsage("stdin can be read once and in order only: this needs a file")
        return
    if key_separator is not None and format != "lines":
        raise WrongUsage("--key-separator splits lines: use --key-field with the other formats")
    sources.check_readable([source])


def _check_all(tables: Iterable[Any], checkpoint: int) -> None:
    """Read it all once before anything is written: a wrong checkpoint or a bad line must leave nothing behind."""
    count = sum(table.num_rows for table in tables)
    if checkpoint > count:
        raise Refused(
            f"checkpoint {checkpoint} is beyond the {counted(count, 'message')} of the source; nothing was imported"
        )


def _check_new(queue: Queue, group: str) -> None:
    queue.check_registry()
    if queue.group(group).registry.find_group() is not None:
        raise Refused(f"group {group!r} exists already: a checkpoint is taken over by a new group")
    if any(queue.ends().values()):
        raise Refused(
            f"queue {queue.name!r} holds messages already: a checkpoint is taken over with the first import only"
        )


class _ImportedRanges:
    """The partitions and offsets of the imported messages, and from which offset on they are unprocessed."""

    def __init__(self, partitions: int, checkpoint: int | None) -> None:
        self.count = 0
        self.ends = dict.fromkeys(range(partitions), 0)
        self.unprocessed: dict[int, int] = {}
        self._checkpoint = checkpoint

    def send(self, queue: Queue, tables: Iterable[Any]) -> Iterator[int]:
        """Send all; yields how many are durable, batch by batch. One producer, so offsets follow source order."""
        waiting: deque[BatchReceipt] = deque()
        with queue.producer() as producer:
            for table in tables:
                waiting.append(producer.send_batch(table))
                if len(waiting) > _IN_FLIGHT:
                    yield self._note(*waiting.popleft().result())
            while waiting:
                yield self._note(*waiting.popleft().result())

    def _note(self, partitions: NDArray[np.int32], offsets: NDArray[np.int64]) -> int:
        import numpy as np

        first_open = max(0, (self._checkpoint or 0) - self.count)
        for partition in np.unique(partitions).tolist():
            of_partition = partitions == partition
            self.ends[partition] = int(offsets[of_partition][-1]) + 1
            still_open = offsets[first_open:][of_partition[first_open:]]
            if len(still_open):
                self.unprocessed.setdefault(partition, int(still_open[0]))
        self.count += len(partitions)
        return len(partitions)


def _take_over(queue: Queue, group: str, places: _ImportedRanges) -> None:
    """Per partition the old global checkpoint is the first unprocessed offset; where there is none, the end."""
    queue.group(group).create(places.ends | places.unprocessed)
    left = sum(end - places.unprocessed.get(p, end) for p, end in places.ends.items())
    print(
        f"group {group!r} starts with {counted(left, 'unprocessed message')}; {places.count - left} count as processed"
    )
