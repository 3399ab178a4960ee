"""Where ``write`` and ``writeStream.format("pxrs")`` begin: everything that can be refused is refused here, by the
driver, before a queue is made or a task runs."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import closing

from pyspark.sql.types import StructType

from pxrs.errors import BadSetting, NotFound, Refused, masked_url
from pxrs.logs.base import Log, LogIdentity, Wish
from pxrs.rules.hashing import find_hash
from pxrs.rules.partitioning import check_reduce
from pxrs.runtime.config import load_settings
from pxrs.settings import DEFAULT_HASH, DEFAULT_REDUCE
from pxrs.sinks.staging import local_directory
from pxrs.spark.sink_columns import check_routed, columns_to_write
from pxrs.spark.sink_commit import keep, open_log
from pxrs.spark.sink_options import SinkRequest, parse_sink
from pxrs.spark.sink_places import ONCE, Place, named_producer
from pxrs.spark.sink_rows import Job, Routing
from pxrs.spark.sink_writers import BatchWriter, StreamWriter, Target

_STAGING = "_spark"
"""The folder in a log's directory, or in the one that the user names."""


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of a frame; the queue is there when this returns."""
    _refuse_overwrite(overwrite, "mode", "df.write.mode('append')")
    request = parse_sink(options, is_stream=False)
    job, root = _prepare(request, schema)
    producer = ONCE + secrets.token_hex(12) if request.producer is None else named_producer(request.producer)
    if request.producer is None:  # nobody can go on with it after a power loss, so what waits need not outlive one
        job = job._replace(is_durable=False)
    return BatchWriter(job, Place(root, producer, request.sequence), keep(Target(request.log, request.settings)))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer of a query's batches; the queue is there when this returns."""
    _refuse_overwrite(overwrite, "output mode", "stream.writeStream.outputMode('append')")
    request = parse_sink(options, is_stream=True)
    job, root = _prepare(request, schema)
    return StreamWriter(
        job._replace(passes_on=True), root, Target(request.log, request.settings), options.get("checkpointlocation")
    )


def _refuse_overwrite(overwrite: bool, what: str, instead: str) -> None:
    if overwrite:
        raise Refused(f"a queue only grows: nothing in it can be overwritten. The {what} must be append: {instead}")


def _prepare(request: SinkRequest, schema: StructType) -> tuple[Job, str]:
    columns = columns_to_write(schema)
    settings = load_settings(**request.settings)
    find_hash(request.wish.hash or DEFAULT_HASH)
    check_reduce(request.wish.reduce or DEFAULT_REDUCE)
    if request.staging is not None:
        local_directory(request.staging)
    with closing(_opened(request)) as log:
        check_routed(schema, log.identity)
        is_durable = settings.durability == "fsync"
        job = Job(_routing(log.identity, columns), columns, is_durable, largest=log.largest_message)
        return job, _root(log, request.staging)


def _opened(request: SinkRequest) -> Log:
    settings = load_settings(**request.settings)
    create = request.wish.partitions is not None
    try:
        log = open_log(request.log, request.wish if create else Wish(None, *request.wish[1:]), settings, create)
    except NotFound as error:
        raise NotFound(
            f"there is no queue in {masked_url(request.log)!r}: set option 'partitions' to create it, as in "
            ".option('partitions', 8)"
        ) from error
    if request.topic not in (None, log.identity.name):
        log.close()
        raise NotFound(
            f"option 'topic' names the queue {request.topic!r}; the one in {masked_url(request.log)!r} is "
            f"{log.identity.name!r}"
        )
    return log


def _routing(identity: LogIdentity, columns: tuple[str, ...]) -> Routing:
    found = Routing(identity.name, identity.partitions, identity.hash, identity.reduce)
    if "key" in columns and "partition" not in columns:
        try:
            found.partitioner()
        except BadSetting as error:
            raise BadSetting(
                f"queue {identity.name!r} was created with the hash {identity.hash!r}, which Spark's processes do not "
                "know: add the column partition with pxrs.spark.routed(df, queue), where the queue is opened with it"
            ) from error
    return found


def _root(log: Log, staging: str | None) -> str:
    """Where rows wait. Several queues may share a directory, so each has a folder of its own in it."""
    place = log.directory if staging is None else staging
    if place is None:
        raise BadSetting(
            f"the log of queue {log.identity.name!r} has no directory: set option 'pxrs.staging' to one that "
            "driver and executors share, where rows can wait for their commit"
        )
    return os.path.join(local_directory(place), _STAGING, log.identity.id)
