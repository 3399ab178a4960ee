"""The start of ``write`` and ``writeStream.format("pxrs")``: the driver refuses here all that can be refused, before a
queue is made or a task runs.

| option | values | default |
|---|---|---|
| ``path`` or ``pxrs.log`` | the log's URL, as in file:./orders | needed |
| ``partitions`` | create the queue with this many, if it does not exist | it must exist |
| ``hash``, ``reduce`` | of a new queue, as ``pxrs.open`` has them | xxh64-spark, pmod |
| ``topic`` | the queue's name: only a check | |
| ``pxrs.staging`` | where rows wait for the commit: a directory that driver and executors share | a file log's own |
| ``pxrs.producer.name`` | ``write`` only: a write that is repeated under its name is stored once | none |
| ``pxrs.producer.sequence`` | with a name: the number of this write, rising | 0 |
| ``pxrs.`` and a setting | as in pxrs.durability: each of pxrs.Settings, with dots | |
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import closing
from typing import Any, NamedTuple

from pyspark.sql.types import StructType

from pxrs.errors import BadSetting, NotFound, Refused, masked_url
from pxrs.logs.base import Log, LogIdentity, OpenOptions
from pxrs.model import check_name
from pxrs.rules.routing.hashes import find_hash
from pxrs.rules.routing.partitioner import check_reduce
from pxrs.runtime.queue.settings_file import load_settings
from pxrs.settings import DEFAULT_HASH, DEFAULT_REDUCE
from pxrs.sinks.local_files import local_directory
from pxrs.spark.read.columns import nearest
from pxrs.spark.read.given_options import SETTINGS, GivenOptions
from pxrs.spark.write.columns import check_routed, columns_to_write
from pxrs.spark.write.commit import keep, open_log
from pxrs.spark.write.paths import ONCE, WritePaths, named_producer
from pxrs.spark.write.spark_writers import BatchWriter, StreamWriter, TargetQueue
from pxrs.spark.write.task import Routing, WriteJob

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
    return BatchWriter(
        job, WritePaths(root, producer, request.sequence), keep(TargetQueue(request.log, request.settings))
    )


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer of a query's batches; the queue is there when this returns."""
    _refuse_overwrite(overwrite, "output mode", "stream.writeStream.outputMode('append')")
    request = parse_sink(options, is_stream=True)
    job, root = _prepare(request, schema)
    return StreamWriter(
        job._replace(passes_on=True),
        root,
        TargetQueue(request.log, request.settings),
        options.get("checkpointlocation"),
    )


def _refuse_overwrite(overwrite: bool, what: str, instead: str) -> None:
    if overwrite:
        raise Refused(f"a queue only grows: nothing in it can be overwritten. The {what} must be append: {instead}")


def _prepare(request: SinkRequest, schema: StructType) -> tuple[WriteJob, str]:
    columns = columns_to_write(schema)
    settings = load_settings(**request.settings)
    find_hash(request.options.hash or DEFAULT_HASH)
    check_reduce(request.options.reduce or DEFAULT_REDUCE)
    if request.staging is not None:
        local_directory(request.staging)
    with closing(_opened(request)) as log:
        check_routed(schema, log.identity)
        is_durable = settings.durability == "fsync"
        job = WriteJob(_routing(log.identity, columns), columns, is_durable, largest=log.largest_message)
        return job, _root(log, request.staging)


def _opened(request: SinkRequest) -> Log:
    settings = load_settings(**request.settings)
    create = request.options.partitions is not None
    try:
        log = open_log(
            request.log, request.options if create else OpenOptions(None, *request.options[1:]), settings, create
        )
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
    """The directory where rows wait. Queues may share it, so each has a folder of its own in it."""
    place = log.directory if staging is None else staging
    if place is None:
        raise BadSetting(
            f"the log of queue {log.identity.name!r} has no directory: set option 'pxrs.staging' to one that "
            "driver and executors share, where rows can wait for their commit"
        )
    return os.path.join(local_directory(place), _STAGING, log.identity.id)


# ---- the options ----------------------------------------------------------------------------------------------------


_KNOWN = ("path", "pxrs.log", "partitions", "hash", "reduce", "topic", "pxrs.staging")
_BATCH_ONLY = ("pxrs.producer.name", "pxrs.producer.sequence")
_OF_SPARK = ("checkpointLocation",)
"""Spark hands these on with ours."""
_MAX_SEQUENCE = 1 << 40


class SinkRequest(NamedTuple):
    """The options of a write, parsed, before the log is looked at."""

    log: str
    options: OpenOptions
    topic: str | None
    staging: str | None
    producer: str | None
    """The name of a write that may be repeated."""
    sequence: int
    settings: dict[str, Any]

    def __repr__(self) -> str:
        return f"SinkRequest({masked_url(self.log)!r})"  # never a password


def parse_sink(options: Mapping[str, str], is_stream: bool) -> SinkRequest:
    """Parse the options of a write. A wrong one is refused by its name."""
    known = (*_KNOWN, *SETTINGS, *(_OF_SPARK if is_stream else _BATCH_ONLY))
    given = GivenOptions(options, known, lambda key: _why_not(key, is_stream, known))
    name = given.texts.get("pxrs.producer.name")
    if name is None and "pxrs.producer.sequence" in given.texts:
        raise BadSetting("option 'pxrs.producer.sequence' numbers the writes of a 'pxrs.producer.name': set that too")
    return SinkRequest(
        log=given.log("name the queue's log, as in .option('path', 'file:./orders')"),
        options=OpenOptions(given.count("partitions"), given.texts.get("hash"), given.texts.get("reduce")),
        topic=given.texts.get("topic"),
        staging=given.texts.get("pxrs.staging"),
        producer=None if name is None else check_name("producer", name),
        sequence=given.count("pxrs.producer.sequence", 0, _MAX_SEQUENCE) or 0,
        settings=given.settings(),
    )


def _why_not(key: str, is_stream: bool, known: tuple[str, ...]) -> str:
    if is_stream and key.lower() in _BATCH_ONLY:
        return "is not used here: a stream's batches are numbered by Spark, and its checkpoint names it"
    return f"is not known to a write{nearest(key, known)}"
