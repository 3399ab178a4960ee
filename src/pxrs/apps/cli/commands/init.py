"""``pxrs init``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pxrs.apps.cli.options import HashName, PartitionCount, ReduceName, RegistryUrl, Url, opened
from pxrs.errors import NotFound
from pxrs.runtime.views.tables import counted

if TYPE_CHECKING:
    from pxrs.runtime.queue.queue import Queue


def init(
    url: Url,
    partitions: PartitionCount = None,
    hash: HashName = None,
    reduce: ReduceName = None,
    registry: RegistryUrl = None,
) -> None:
    """Create a queue. Its partition count and hash are recorded and never change.

    On an existing queue it changes nothing, and fails if that one was created with other values. The queue belongs to
    the registry that is named here: other ones are refused. Without a name, the first group says which it is.
    """
    wanted: dict[str, Any] = {"partitions": partitions, "hash": hash, "reduce": reduce}
    try:
        with opened(url, registry, **wanted) as queue:
            _record(queue, registry)
            print(f"queue {_summary(queue)} was there already")
    except NotFound:
        with opened(url, registry, create=True, **wanted) as queue:
            _record(queue, registry)
            print(f"created queue {_summary(queue)}")


def _record(queue: Queue, registry: str | None) -> None:
    if registry is not None or os.environ.get("PXRS_REGISTRY"):
        queue.record_registry()


def _summary(queue: Queue) -> str:
    known = queue.log.identity
    return f"{known.name!r} with {counted(known.partitions, 'partition')}, hash {known.hash}, reduce {known.reduce}"
