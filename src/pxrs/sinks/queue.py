"""Appends the output of a batch to another queue: once, by any process and however often it is tried."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import xxhash

from pxrs.errors import BadSetting, Damaged, Refused
from pxrs.io.clock import SystemClock
from pxrs.logs.base import ENTRY_SCHEMA, Stamp
from pxrs.model import Batch
from pxrs.rules.addressing import without_mark
from pxrs.runtime.ports.sink import Sink
from pxrs.runtime.producer.append_once import AppendOnce, part_stamp
from pxrs.runtime.producer.packing import Packer, TableParcel
from pxrs.runtime.producer.retry import patiently
from pxrs.runtime.producer.table_input import body_parts
from pxrs.runtime.queue.queue import Queue
from pxrs.settings import check_patience
from pxrs.sinks.local_files import staging_in
from pxrs.sinks.output import tables_in, write_frame
from pxrs.sinks.staged import Note, StagedSink
from pxrs.sinks.staging import Staging

T = TypeVar("T")

CHUNK = 10_000
"""The most rows that are appended at a time."""

_OF_THE_SOURCE = ("topic", "partition", "offset", "timestampType", "id", "epoch")
"""Columns that say where a message came from; they are left out, so that messages can be passed on as they are."""


class ChunkPart(NamedTuple):
    """Rows of one chunk for one partition, and the partition's end before any of them can be in it."""

    partition: int
    after: int
    stamp: Stamp
    rows: pa.RecordBatch

    @property
    def about(self) -> dict[str, str]:
        """The facts that are staged beside the rows."""
        place = {"partition": f"{self.partition}", "after": f"{self.after}"}
        return {**place, "producer": self.stamp.producer, "sequence": f"{self.stamp.sequence}"}


class QueueSink(StagedSink):
    """Output as messages of another queue: ``value`` and, if given, ``key, headers, timestamp, tenant``.

    Routed by the queue's partitioner when staged; ids and stamps derive from the batch. ``staging`` is a directory
    for output that is not committed yet; by default the file log's own. ``instead_of`` is the sink that the group used
    before: it shows what it may have committed last. ``patience``: how many seconds a queue that does not answer is
    waited for.
    """

    kind = "queue"

    def __init__(
        self,
        queue: Queue,
        staging: str | os.PathLike[str] | None = None,
        instead_of: Sink | None = None,
        patience: float = 30.0,
    ) -> None:
        if not isinstance(queue, Queue):
            raise BadSetting(f"queue = {queue!r}: must be an open queue, as pxrs.open({queue!r}) is")
        directory = queue.log.directory if staging is None else staging
        if directory is None:
            raise BadSetting(
                f"the log of queue {queue.name!r} has no directory; say where output can wait for its commit: "
                "QueueSink(queue, staging=DIR), a directory that all members reach"
            )
        check_patience(patience)
        super().__init__(queue.log.identity.id, staging_in(directory), instead_of)
        self._queue = queue
        self._patience = patience

    def __repr__(self) -> str:
        return f"QueueSink({self._queue!r})"

    def _write(self, batch: Batch, output: Any, data: str) -> None:
        os.mkdir(data)
        path = os.path.join(data, f"part-{batch.name}-00000.arrow")
        with pa.ipc.new_stream(path, ENTRY_SCHEMA) as writer:
            for part in self._parts(batch, output, data):
                writer.write_batch(part.rows, custom_metadata=part.about)
        if not writer.stats.num_record_batches:
            os.unlink(path)

    def _check_empty(self, output: pa.Table) -> None:
        for number, field in enumerate(output.schema):
            if field.name in ("key", "value") and pa.types.is_null(field.type):
                output = output.set_column(number, field.name, pa.nulls(0, pa.binary()))
        list(self._bodies([output]))

    def _bodies(self, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        """Checked here and not when they are appended: by then the batch is committed."""
        queue, now_us = self._queue, round(SystemClock().wall() * 1e6)
        for table in tables:
            table = table.drop_columns([name for name in table.column_names if name in _OF_THE_SOURCE])
            if "headers" in table.column_names:  # what was for one group of the source is for all groups here
                at, theirs = table.schema.get_field_index("headers"), without_mark(table.column("headers"))
                table = table.set_column(at, "headers", theirs)
            if "key" not in table.column_names:
                table = table.append_column("key", pa.nulls(table.num_rows, pa.binary()))
            try:
                most = queue.log.largest_message
                parts = body_parts(table, queue.partitions, now_us, queue.settings.buffer_bytes, most)
            except Refused as error:
                raise Refused(f"the output for queue {queue.name!r}: {error}") from error
            yield from (body for body, _, _ in parts)

    def _parts(self, batch: Batch, output: Any, data: str) -> Iterator[ChunkPart]:
        """The staged rows, chunk by chunk, in the order in which they are appended."""
        packer = Packer(self._queue.partitioner, self._queue.partitions, xxhash.xxh3_64_digest(batch.name.encode()))
        for chunk, body in enumerate(self._bodies(_tables(output, data))):
            stamp = stamp_of(batch, chunk)
            for partition, rows in packer.pack([TableParcel(lambda _: None, body, None)]).batches.items():
                bounds = self._wait(partial(self._queue.log.bounds, partition))
                yield ChunkPart(partition, bounds[1], stamp, rows)

    def _wait(self, work: Callable[[], T]) -> T:
        """Repeat work with the log, which may be away for a while."""
        return patiently(work, self._queue.settings, SystemClock(), self._patience)

    def _can_show(self, note: Note) -> bool:
        return super()._can_show(note) and note.target == self.target

    def _show(self, staging: Staging, note: Note) -> None:
        once = AppendOnce(self._queue.log, lambda: staging.holds(note.batch))
        for path in staging.files(note.batch):
            try:
                parts = _read_parts(path)
            except FileNotFoundError:  # somebody else has just finished
                return
            for stamp, found in groupby(parts, key=lambda part: part.stamp):
                chunk = list(found)
                rows = {part.partition: part.rows for part in chunk}
                after = {part.partition: part.after for part in chunk}
                if not self._wait(partial(once.append, rows, stamp, after)):
                    return


def stamp_of(batch: Batch, chunk: int) -> Stamp:
    """The stamp under which a chunk of a batch's output is appended, by any process."""
    producer = f"{batch.group}-{batch.owner.inc[:12]}.{batch.attempt}/{min(batch.partitions, default=0)}"
    return part_stamp(producer, batch.number, chunk)


def _tables(output: Any, data: str) -> Iterator[pa.Table]:
    """The rows of a table or a Spark DataFrame, a chunk at a time."""
    if isinstance(output, pa.Table):
        yield from (output.slice(start, CHUNK) for start in range(0, output.num_rows, CHUNK))
        return
    aside = os.path.join(data, "_frame")
    write_frame(output, aside, "none")
    yield from tables_in(aside, CHUNK)  # its columns are checked, though no row be there
    shutil.rmtree(aside, ignore_errors=True)


def _read_parts(path: str) -> list[ChunkPart]:
    """Read the staged rows, mapped."""
    try:
        with pa.memory_map(path) as file, pa.ipc.open_stream(file) as reader:
            return [_part(rows, about) for rows, about in reader.iter_batches_with_custom_metadata()]
    except (pa.ArrowInvalid, KeyError, ValueError) as error:
        raise Damaged(f"{path}, which is committed and not shown yet, cannot be read: {error}") from error


def _part(rows: pa.RecordBatch, about: Mapping[bytes, bytes]) -> ChunkPart:
    stamp = Stamp(about[b"producer"].decode(), int(about[b"sequence"]))
    return ChunkPart(int(about[b"partition"]), int(about[b"after"]), stamp, rows)


__all__ = ["ChunkPart", "QueueSink", "stamp_of"]
