"""The driver side of a write: what the tasks have staged is decided upon once, and appended once.

Killed at any step, a commit is repeated by Spark with the same number, perhaps with rows in another order and in other
files. Before the decision nothing was appended, and the new files are taken. After it the old files are: their rows
are the same ones, and some of them may be in the queue already. Once it is done, the new files are dropped.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple

from pxrs.drivers import find_driver, split_url
from pxrs.errors import Mismatch, Refused, Unavailable, Unexpected, masked, masked_url
from pxrs.io.clock import SystemClock
from pxrs.logs.base import Log, OpenOptions
from pxrs.model import Batch
from pxrs.rules.routing.partitioner import Partitioner
from pxrs.runtime.queue.queue import Queue, open_queue
from pxrs.runtime.queue.settings_file import load_settings
from pxrs.settings import Settings
from pxrs.sinks.queue import ChunkPart, QueueSink, stamp_of
from pxrs.spark.stream.commit import Fencing
from pxrs.spark.stream.offsets import MEMBER, Planned, decode, is_of_group
from pxrs.spark.stream.side_files import SideFiles, SourceConfig, has_members_beside
from pxrs.spark.write.append import append_decided, shipments
from pxrs.spark.write.decisions import Decision, Ledger, sweep
from pxrs.spark.write.paths import WritePaths
from pxrs.spark.write.spark_writers import Staged, TargetQueue

logger = logging.getLogger(__name__)


def open_log(url: str, options: OpenOptions, settings: Settings, create: bool) -> Log:
    """The log to write to; no registry is needed for that."""
    if split_url(url)[0] == "memory":
        raise Refused(
            f"{masked_url(url)!r} lives in the memory of one process, and Spark writes in others: use another log"
        )
    found: Log = find_driver("pxrs.logs", url).open(url, options, settings, create)
    return found


# ---- committing ------------------------------------------------------------------------------------------------------


def commit_batch(target: TargetQueue, place: WritePaths, messages: Sequence[Any], checkpoint: str | None) -> None:
    """Store a batch of a stream. If a member of a group has planned it, the checkpoints of its source move with it."""
    planned = _planned(checkpoint, place.sequence)
    if planned is None:
        commit(target, place, messages)
        return
    settings = load_settings(**target.settings)
    with closing(open_log(target.log, OpenOptions(), settings, create=False)) as log:
        staged = StagedFiles(_left_to_store(log, settings, place, _in_order(messages)), place.staged)
        commit_fenced(log, settings, os.path.dirname(os.path.dirname(place.root)), planned, place.sequence, staged)
    give_up(place)
    sweep(place.root)


def _planned(checkpoint: str | None, batch: int) -> Planned | None:
    directory = _path_of(checkpoint)
    if directory is not None and os.path.isdir(os.path.join(directory, "offsets")):
        return planned_in(directory, batch)
    if has_members_beside():
        logger.warning(
            "the checkpoint %s cannot be read here: a stream with pxrs.group.id is stored at least once; set the "
            "query's option checkpointLocation to a directory of this machine to have it once",
            checkpoint or "of this query",
        )
    return None


def _left_to_store(log: Log, settings: Settings, place: WritePaths, staged: Sequence[Staged]) -> Decision:
    """The output to store: none if an earlier version of PXRS, or a time without a readable plan, has stored this
    batch. Then only the checkpoints move.
    """
    ledger = Ledger(place.root, place.producer)
    for sequence in ledger.pending():
        _carry_out(log, settings, ledger, sequence)
    return _decision(log, place, [] if _is_stored(ledger, place, staged) else staged)


def _in_order(messages: Sequence[Any]) -> list[Staged]:
    return sorted((one for one in messages if isinstance(one, Staged)), key=lambda one: one.task)


def commit(target: TargetQueue, place: WritePaths, messages: Sequence[Any]) -> None:
    """Store the staged rows of the tasks, unless the number is stored already."""
    staged = _in_order(messages)
    settings = load_settings(**target.settings)
    ledger = Ledger(place.root, place.producer)
    with closing(open_log(target.log, OpenOptions(), settings, create=False)) as log:
        for sequence in ledger.pending():  # of a commit that was killed, or is running still without its driver
            _carry_out(log, settings, ledger, sequence)
        if _is_stored(ledger, place, staged):
            ledger.finish(place.sequence)
        elif any(one.file.rows for one in staged):
            ledger.decide(place.sequence, _decision(log, place, staged))
            _carry_out(log, settings, ledger, place.sequence)
    sweep(place.root)


def _is_stored(ledger: Ledger, place: WritePaths, staged: Sequence[Staged]) -> bool:
    done = ledger.last_done()
    if place.sequence < done:
        raise Refused(
            f"{place.producer} has stored its write {done} in this queue, and now comes with {place.sequence}: its "
            "numbers only rise. An old checkpoint, or an old number, would store other rows under a number that is "
            "taken: begin with a new checkpoint, or another name"
        )
    if place.sequence == done:
        before, rows = ledger.read(done), sum(one.file.rows for one in staged)
        if before is not None and before.rows != rows:
            logger.warning(
                "write %d of %s was stored before with %d rows and comes again with %d: it is not stored again; is "
                "its query deterministic?", done, place.producer, before.rows, rows,
            )  # fmt: skip
    return place.sequence == done


def _decision(log: Log, place: WritePaths, staged: Sequence[Staged]) -> Decision:
    used = [one for one in staged if one.file.rows]
    for one in used:
        _check_there(os.path.join(place.staged, one.file.name), one)
    after = {partition: log.bounds(partition)[1] for partition in range(log.identity.partitions)}
    now_us = round(SystemClock().wall() * 1e6)
    return Decision(tuple(one.file.name for one in used), sum(one.file.rows for one in used), now_us, after)


def _check_there(path: str, staged: Staged) -> None:
    try:
        size = os.path.getsize(path)
    except OSError:
        size = -1
    if size != staged.file.bytes:
        raise Unavailable(
            f"task {staged.task} on {staged.host} wrote {path} with {staged.file.bytes} bytes, and here "
            f"{'it is not' if size < 0 else f'it has {size}'}: set option 'pxrs.staging' to a directory that the "
            "driver and all executors share"
        )


def _carry_out(log: Log, settings: Settings, ledger: Ledger, sequence: int) -> None:
    decision = ledger.read(sequence)
    if decision is not None and ledger.holds(sequence):
        append_decided(log, settings, ledger, sequence, decision)
    ledger.finish(sequence)


def give_up(place: WritePaths) -> None:
    """The write has failed: remove what its tasks have left, unless it was decided already."""
    Ledger(place.root, place.producer).give_up(place.sequence)


def query_of(checkpoint: str | None) -> str | None:
    """The id of a streaming query, from its checkpoint; None where that is not in a directory of this machine."""
    directory = _path_of(checkpoint)
    if directory is None:
        return None
    try:
        with open(os.path.join(directory, "metadata"), encoding="utf-8") as file:
            found = json.load(file)["id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(found)


def _path_of(checkpoint: str | None) -> str | None:
    """The path; None if the query did not name it: Spark does not show its own settings."""
    return checkpoint.removeprefix("file://").removeprefix("file:") if checkpoint else None


# ---- what the driver keeps to itself ---------------------------------------------------------------------------------


def keep(target: TargetQueue) -> TargetQueue | str:
    """The target that a writer carries, or the path where it is kept if its address holds a password.

    Spark gives a batch writer to tasks and commit alike, and no task must see a password. So that stays in a file that
    only this user can read, on the driver's machine.
    """
    if masked(target.log) == target.log:
        return target
    fd, path = tempfile.mkstemp(prefix="pxrs-write-", suffix=".json")
    with open(fd, "w", encoding="utf-8") as file:
        json.dump(target, file)
    return path


def recall(kept: TargetQueue | str) -> TargetQueue:
    """The target that was kept, for the last time."""
    if isinstance(kept, TargetQueue):
        return kept
    with open(kept, encoding="utf-8") as file:
        log, settings = json.load(file)
    forget(kept)
    return TargetQueue(log, settings)


def forget(kept: TargetQueue | str) -> None:
    if isinstance(kept, str):
        with suppress(FileNotFoundError):
            os.unlink(kept)


# ---- from a group into a queue ---------------------------------------------------------------------------------------
# A batch of a stream that reads with ``pxrs.group.id`` is not Spark's alone. Its ranges have owners, so its output is
# staged, the checkpoints are committed under the epochs of the batch, and by that it is published, as a ``QueueSink``
# does it. A batch that has lost a partition stores nothing; who dies between commit and publish has left a note, and
# the next owner publishes.


_VERSION = "v1"
_NOTHING = "-"
"""The line in Spark's offset log for a source that has no offset yet."""


def planned_in(checkpoint: str, batch: int) -> Planned | None:
    """The plan of a group's member for this batch; None if the stream has no such source, or nothing new."""
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
    """The files of a folder that the tasks of a batch have staged."""

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

    def _parts(self, batch: Batch, output: StagedFiles, data: str) -> Iterator[ChunkPart]:  # noqa: ARG002 - a hook
        decision = output.decision
        for shipment in shipments(decision, output.folder):
            stamp = stamp_of(batch, shipment.number)
            for partition in shipment.parts:
                rows = shipment.batch(partition, decision.time_us)
                yield ChunkPart(partition, decision.after[partition], stamp, rows)
