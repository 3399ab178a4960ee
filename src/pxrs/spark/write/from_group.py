"""From a group into a queue: the batches of a stream that reads with ``pxrs.group.id`` and writes with this format.

Such a batch is not Spark's alone. Its ranges have owners, so its output is staged, the checkpoints are committed under
the epochs of the batch, and by that it is published, as a ``QueueSink`` does it. A batch that has lost a partition
stores nothing; who dies between commit and publish has left a note, and the next owner publishes.
"""

from __future__ import annotations

import json
import os
from contextlib import closing
from typing import Any, NamedTuple

import pyarrow as pa

from pxrs.drivers import find_driver
from pxrs.errors import Mismatch, Refused, Unexpected
from pxrs.io.clock import SystemClock
from pxrs.logs.base import ENTRY_SCHEMA, Log, Stamp
from pxrs.model import Batch
from pxrs.rules.routing.partitioner import Partitioner
from pxrs.runtime.queue.queue import Queue, open_queue
from pxrs.runtime.queue.settings_file import load_settings
from pxrs.settings import Settings
from pxrs.sinks.queue import ChunkPart, QueueSink
from pxrs.spark.stream.commit import Fencing
from pxrs.spark.stream.offsets import MEMBER, Planned, decode, is_of_group
from pxrs.spark.stream.side_files import SideFiles, SourceConfig
from pxrs.spark.write.append import shipments
from pxrs.spark.write.decisions import Decision

_VERSION = "v1"
_NOTHING = "-"
"""Stands in Spark's offset log for a source that has no offset yet."""


def planned_in(checkpoint: str, batch: int) -> Planned | None:
    """What a member of a group has planned for this batch; None if the stream has no such source, or nothing new."""
    offsets = _offsets_in(checkpoint, batch)
    of_groups = [offset for offset in offsets if is_of_group(offset)]
    if not of_groups:
        return None
    if len(offsets) > 1:
        raise Refused(
            "a stream that reads with pxrs.group.id, joined with other streams, cannot be written by format('pxrs'): a "
            "batch that has lost a partition would lose the others' rows. Write each by a query of its own"
        )
    before = _offsets_in(checkpoint, batch - 1) if batch else []
    return None if offsets == before else decode(of_groups[0])


def _offsets_in(checkpoint: str, batch: int) -> list[Any]:
    """Spark's offset log: the version, a line about the batch, and a line for each source."""
    path = os.path.join(checkpoint, "offsets", str(batch))
    try:
        with open(path, encoding="utf-8") as file:
            version, *lines = file.read().splitlines()
    except (OSError, ValueError) as error:
        raise Unexpected(f"Spark's offset log has no entry for batch {batch}, which is running: {error}") from error
    if version != _VERSION and MEMBER in "".join(lines):
        raise Unexpected(f"{path} is in the form {version!r}, which this version of PXRS does not know")
    return [_parsed(line) for line in lines[1:] if line != _NOTHING]


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):  # of another source, which may write what it likes
        return line


class StagedFiles(NamedTuple):
    """What the tasks of a batch have written aside: these files of a folder."""

    decision: Decision
    folder: str


def commit_fenced(
    log: Log, settings: Settings, staging: str, planned: Planned, batch: int, output: StagedFiles
) -> None:
    """Store the output of a batch together with the checkpoints of its source, or not at all."""
    files = SideFiles.of_ancestor(planned)
    places = files.places() if files is not None else None
    if files is None or places is None:
        if not planned.ranges and not output.decision.rows:
            return  # a replayed batch without messages, for which the source did not even join
        raise Unexpected(
            f"batch {batch}: the file that the source of this query, member {planned.member!r}, writes for its writer "
            "is missing: source and writer must run under the same JVM, with the same temporary directory"
        )
    with closing(_source_of(places, planned)) as source:
        sink = FilesSink(_target(log, settings), staging)
        registry = source.group(planned.group).registry
        Fencing(sink).carry_out(registry, files, planned, batch, lambda _: output)


def _source_of(places: SourceConfig, planned: Planned) -> Queue:
    settings = load_settings(**places.settings)
    if places.registry is None:
        queue = open_queue(places.log, settings=settings, create=False)
    else:
        queue = open_queue(log=places.log, registry=places.registry, settings=settings, create=False)
    if queue.log.identity.id != planned.log:
        queue.close()
        raise Mismatch(f"the queue of this stream was created anew while it ran: {queue!r}")
    return queue


def _target(log: Log, settings: Settings) -> Queue:
    """The queue to write to, for a ``QueueSink``, which needs nothing of its groups; rows are routed already."""
    store = find_driver("pxrs.stores", "memory:").open("memory:", settings)
    return Queue(log, store, Partitioner(log.identity.partitions), None, settings, SystemClock())


class FilesSink(QueueSink):
    """A ``QueueSink`` whose output the tasks have routed and written already. Any ``QueueSink`` can publish it."""

    def stage(self, batch: Batch, output: StagedFiles) -> str:
        return self._stage(batch, output) if output.decision.rows else ""

    def _write(self, batch: Batch, output: StagedFiles, data: str) -> None:
        os.mkdir(data)
        producer = f"{batch.group}-{batch.owner.inc[:12]}.{batch.attempt}/{min(batch.partitions, default=0)}"
        decision = output.decision
        with pa.ipc.new_stream(os.path.join(data, f"part-{batch.name}-00000.arrow"), ENTRY_SCHEMA) as writer:
            for shipment in shipments(decision, output.folder):
                stamp = Stamp(producer, (batch.number << 20) + shipment.number)
                for partition in shipment.parts:
                    rows = shipment.batch(partition, decision.time_us)
                    part = ChunkPart(partition, decision.after[partition], stamp, rows)
                    writer.write_batch(rows, custom_metadata=part.about)
