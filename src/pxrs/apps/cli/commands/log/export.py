"""``pxrs log export``: what is stored, as plain files that any program reads."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pxrs.apps.cli.commands.log.show import chosen
from pxrs.apps.cli.message_format import as_object, printable
from pxrs.apps.cli.options import Output, Partitions, RegistryUrl, Url, WrongUsage, opened
from pxrs.apps.cli.output import progress, show
from pxrs.apps.cli.values import timestamp
from pxrs.errors import Refused
from pxrs.runtime.views.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

    from pxrs.model import Message
    from pxrs.runtime.queue.queue import Queue

_ROWS = 100_000
_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers", "id", "tenant")

Kind = Literal["files", "parquet", "jsonl", "csv"]
Batches = Iterator["pa.RecordBatch"]
Writer = Callable[[Path, int, Batches], Path]


def export(
    url: Url,
    place: Annotated[str, typer.Argument(metavar="DIR", help="Where to; it must be empty, or not there yet.")],
    kind: Annotated[Kind, typer.Option("--as", help="files: one for each message, named by its offset.")] = "parquet",
    partitions: Partitions = None,
    output: Output = "table",
    registry: RegistryUrl = None,
) -> None:
    """Write stored messages into a new directory: a file for each partition, or for each message.

    csv shows bytes that are no UTF-8 escaped, jsonl as base64; files and parquet keep every byte.
    """
    directory = _directory(place)
    if directory.exists() and any(directory.iterdir()):
        raise Refused(f"{directory} is not empty: name a directory that is, or that is not there yet")
    with opened(url, registry) as queue:
        home = queue.log.directory
        if home is not None and directory.resolve().is_relative_to(Path(home).resolve()):  # strangers among its files
            raise Refused(f"{directory} is inside the queue's own directory {home}: export to another place")
        stretches = {partition: queue.log.bounds(partition) for partition in chosen(queue, partitions)}
        os.makedirs(directory, exist_ok=True)
        total = sum(end - start for start, end in stretches.values())
        with progress("exporting", total) as advance:
            rows = [
                [
                    partition,
                    end - start,
                    str(_WRITERS[kind](directory, partition, _batches(queue, partition, start, end, advance))),
                ]
                for partition, (start, end) in stretches.items()
            ]
    show(Table(["PARTITION", "MESSAGES", "FILE"], rows), output)


def _directory(place: str) -> Path:
    if not place:
        raise WrongUsage("DIR is empty: name a directory, as ./messages")
    if os.path.exists(place) and not os.path.isdir(place):
        raise Refused(f"{place} is a file: name a directory that is empty, or that is not there yet")
    return Path(place)


def _batches(queue: Queue, partition: int, start: int, end: int, advance: Callable[[int], None]) -> Batches:
    while start < end:
        batch = queue.log.read(partition, start, min(_ROWS, end - start))
        if batch is None:
            return
        yield batch
        start += batch.num_rows
        advance(batch.num_rows)


def _as_files(directory: Path, partition: int, batches: Batches) -> Path:
    """Write files in directories, from which a queue can be made: partition-0/00000000000000000001.msg."""
    place = directory / f"partition-{partition}"
    place.mkdir()
    for batch in batches:
        values = zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
        for offset, value in values:
            (place / f"{offset:020d}.msg").write_bytes(value)
    return place


def _as_parquet(directory: Path, partition: int, batches: Batches) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pxrs.logs.base import SCHEMA

    path = directory / f"partition-{partition}.parquet"
    schema = pa.schema([pa.field("partition", pa.int32(), nullable=False), *SCHEMA])
    with pq.ParquetWriter(path, schema) as writer:
        for batch in batches:
            number = pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows)
            writer.write_batch(pa.RecordBatch.from_arrays([number, *batch.columns], schema=schema))
    return path


def _as_jsonl(directory: Path, partition: int, batches: Batches) -> Path:
    path = directory / f"partition-{partition}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for message in _messages(batches, partition):
            file.write(json.dumps(as_object(message)) + "\n")
    return path


def _as_csv(directory: Path, partition: int, batches: Batches) -> Path:
    path = directory / f"partition-{partition}.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows(_cells(message) for message in _messages(batches, partition))
    return path


def _cells(message: Message) -> list[Any]:
    headers = json.dumps({name: printable(value) for name, value in message.headers.items()})
    time, key, value = timestamp(message.timestamp_us), printable(message.key), printable(message.value)
    return [message.partition, message.offset, time, key, value, headers, message.id, message.tenant]


def _messages(batches: Batches, partition: int) -> Iterator[Message]:
    from pxrs.runtime.delivery import messages_of

    for batch in batches:
        yield from messages_of(batch, partition)


_WRITERS: dict[Kind, Writer] = {"files": _as_files, "parquet": _as_parquet, "jsonl": _as_jsonl, "csv": _as_csv}
