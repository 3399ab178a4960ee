"""The task side of a write: rows are routed, sorted by partition and written aside, a group of batches at a time.

A file is an Arrow stream; each batch in it belongs to one partition, which its metadata names. It holds the columns
that were given, nothing else: ids, offsets and the time of messages that have none come with the commit. Rows of one
partition are in the order in which they came.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pxrs.drivers import hashes_of_other_packages
from pxrs.errors import Refused
from pxrs.io.durable import make_directories, sync_path
from pxrs.logs.base import ENTRY_SCHEMA
from pxrs.logs.message_size import refuse_large
from pxrs.rules.addressing import refuse_marked, without_mark
from pxrs.rules.routing.hashes import known_hashes, register_hash
from pxrs.rules.routing.partitioner import NULL_KEY, Partitioner, round_robin
from pxrs.rules.texts import refuse_bad_text
from pxrs.spark.write.paths import WritePaths

GROUP_BYTES = 16 << 20
"""The rows that are sorted at a time: large enough for large batches in the log, small enough for a worker's memory."""
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
"""The compression of staged rows: a byte costs more to write than to compress, twice over where it must be on disk."""


class Routing(NamedTuple):
    """The partitions and the hash with which the queue routes its keys."""

    queue: str
    partitions: int
    hash: str
    reduce: str

    def partitioner(self) -> Partitioner:
        """Raises BadSetting for a hash that this process does not know."""
        if self.hash not in known_hashes():
            for function in hashes_of_other_packages(self.hash)[:1]:
                register_hash(self.hash, function)
        return Partitioner(self.partitions, self.hash, self.reduce)


class WriteJob(NamedTuple):
    """The facts that every task of a write gets.

    ``passes_on``: a stream stores messages as they came, and leaves out the mark of a retry for one group. A batch
    write refuses it. ``largest``: the largest message that the log takes.
    """

    routing: Routing
    columns: tuple[str, ...]
    is_durable: bool
    passes_on: bool = False
    largest: int | None = None


class File(NamedTuple):
    """The file that a task has written, or none if there were no rows."""

    name: str
    rows: int
    bytes: int


def stage(batches: Iterable[pa.RecordBatch], job: WriteJob, place: WritePaths) -> File:
    """Write the rows of a task aside. If that fails, nothing of them stays."""
    name = f"{secrets.token_hex(12)}.arrow"
    path = os.path.join(place.staged, name)
    rows = 0
    try:
        writer: pa.ipc.RecordBatchStreamWriter | None = None
        router = Router(job.routing, int(name[:12], 16))
        for group in grouped(batch.select(job.columns) for batch in batches):
            body = to_body(group, job)
            if writer is None:
                make_directories(place.staged)
                writer = pa.ipc.new_stream(path, body.schema, options=_OPTIONS)
            for partition, part in router.split(body, group):
                writer.write_batch(part, custom_metadata={"partition": str(partition)})
            rows += body.num_rows
        if writer is None:
            return File("", 0, 0)
        writer.close()
        if job.is_durable:
            sync_path(path)
            sync_path(os.path.dirname(path))
        return File(name, rows, os.path.getsize(path))
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise


def grouped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of a good size."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if waiting and size + batch.nbytes > GROUP_BYTES:
            yield _joined(waiting)
            waiting, size = [], 0
        if batch.num_rows:
            waiting.append(batch)
            size += batch.nbytes
    if waiting:
        yield _joined(waiting)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    arrays = [pa.concat_arrays([batch.column(at) for batch in batches]) for at in range(batches[0].num_columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=batches[0].schema)


def to_body(group: pa.RecordBatch, job: WriteJob) -> pa.RecordBatch:
    """The columns that are stored, in the log's types; refused where the log would not take a row."""
    body = _in_types_of_log(group)
    for name in {"headers", "tenant"} & set(body.schema.names):
        refuse_bad_text(name, body.column(name))
    if "headers" in body.schema.names:
        body = _without_mark(body) if job.passes_on else body
        refuse_marked(body.column("headers"))
    refuse_large(body, job.largest)
    return body


def _without_mark(body: pa.RecordBatch) -> pa.RecordBatch:
    headers = without_mark(pa.chunked_array([body.column("headers")])).combine_chunks()
    return body.set_column(body.schema.get_field_index("headers"), body.schema.field("headers"), headers)


def _in_types_of_log(group: pa.RecordBatch) -> pa.RecordBatch:
    names = [name for name in group.schema.names if name != "partition"]
    schema = pa.schema([ENTRY_SCHEMA.field(name).with_nullable(name != "value") for name in names])
    return pa.RecordBatch.from_arrays([_cast(group.column(name), schema.field(name)) for name in names], schema=schema)


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    if not field.nullable and array.null_count:
        raise Refused("column 'value' holds a null, which no message can have: add .where('value IS NOT NULL')")
    if array.type.equals(field.type):
        return array
    try:
        return array.cast(field.type)
    except pa.ArrowException as error:
        raise Refused(f"column {field.name!r} cannot become {field.type}: {error}") from error


class Router:
    """Sends rows to partitions: where the frame says so, else by their keys, else in turns."""

    def __init__(self, routing: Routing, turn: int) -> None:
        self._routing = routing
        self._partitioner: Partitioner | None = None
        self._turn = turn % routing.partitions

    def split(self, body: pa.RecordBatch, group: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of each partition, in their order; ``group`` has the rows' own partitions, if there are any."""
        found = self.partitions_of(group)
        counts = np.bincount(found, minlength=self._routing.partitions)
        numbers = np.flatnonzero(counts)
        if len(numbers) > 1 and np.any(found[1:] < found[:-1]):
            body = body.take(pa.array(_order(found, self._routing.partitions)))
        start = 0
        for number in numbers.tolist():
            yield number, body.slice(start, int(counts[number]))
            start += int(counts[number])

    def partitions_of(self, group: pa.RecordBatch) -> NDArray[np.int32]:
        names = group.schema.names
        found = self._given(group.column("partition")) if "partition" in names else _unknown(group.num_rows)
        missing = np.flatnonzero(found == NULL_KEY)
        if len(missing) and "key" in names:
            keys = group.column("key")
            found[missing] = self._by_key(keys if len(missing) == len(found) else keys.take(pa.array(missing)))
            missing = np.flatnonzero(found == NULL_KEY)
        if len(missing):
            found[missing] = round_robin(self._turn, len(missing), self._routing.partitions)
            self._turn = (self._turn + len(missing)) % self._routing.partitions
        return found

    def _given(self, column: pa.Array) -> NDArray[np.int32]:
        count = self._routing.partitions
        found = column.cast(pa.int64()).fill_null(NULL_KEY).to_numpy(zero_copy_only=False)
        wrong = (found >= count) | ((found < 0) & column.is_valid().to_numpy(zero_copy_only=False))
        if wrong.any():
            raise Refused(
                f"column 'partition' holds {found[wrong][0]}; queue {self._routing.queue!r} has the partitions 0 to "
                f"{count - 1}"
            )
        return np.asarray(found, np.int32).copy()

    def _by_key(self, keys: pa.Array) -> NDArray[np.int32]:
        if keys.null_count == len(keys):  # and no hash is needed, which may not be known here
            return _unknown(len(keys))
        if self._partitioner is None:
            self._partitioner = self._routing.partitioner()
        return self._partitioner.partitions_of(keys)


def _unknown(rows: int) -> NDArray[np.int32]:
    return np.full(rows, NULL_KEY, np.int32)


def _order(partitions: NDArray[np.int32], count: int) -> NDArray[np.intp]:
    # numpy sorts 16-bit numbers by radix, several times faster than wider ones.
    return np.argsort(partitions.astype(np.int16) if count <= 32_767 else partitions, kind="stable")
