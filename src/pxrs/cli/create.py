"""``pxrs init`` and ``pxrs health``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from pxrs.cli.options import HashName, PartitionCount, ReduceName, RegistryUrl, Url, opened
from pxrs.cli.output import note
from pxrs.errors import NotFound, PxrsError

if TYPE_CHECKING:
    from pxrs.runtime.queue import Queue


def init(
    url: Url,
    partitions: PartitionCount = None,
    hash: HashName = None,
    reduce: ReduceName = None,
    registry: RegistryUrl = None,
) -> None:
    """Create a queue. Its partition count and hash are recorded and never change.

    On a queue that is there already it changes nothing, and fails if that one was created with other values.
    """
    wishes: dict[str, Any] = {"partitions": partitions, "hash": hash, "reduce": reduce}
    try:
        with opened(url, registry, **wishes) as queue:
            print(f"queue {_summary(queue)} was there already")
    except NotFound:
        with opened(url, registry, create=True, **wishes) as queue:
            print(f"created queue {_summary(queue)}")


def _summary(queue: Queue) -> str:
    known = queue.log.identity
    return f"{known.name!r} with {known.partitions} partitions, hash {known.hash}, reduce {known.reduce}"


def health(url: Url, registry: RegistryUrl = None) -> None:
    """Open log and registry and look at every partition and group. Exit code 1 if something is wrong."""
    with opened(url, registry) as queue:
        problems = [*_log_problems(queue), *_registry_problems(queue)]
    for problem in problems:
        note(problem)
    if problems:
        raise typer.Exit(1)
    print("OK")


def _log_problems(queue: Queue) -> list[str]:
    problems, messages = [], 0
    for partition in range(queue.partitions):
        try:
            start, end = queue.log.bounds(partition)
            messages += end - start
        except PxrsError as error:
            problems.append(f"log: partition {partition}: {error}")
    print(f"log: {queue.partitions} partitions, {messages} messages")
    return problems


def _registry_problems(queue: Queue) -> list[str]:
    try:
        queue.check_registry()
        groups = queue.groups()
    except PxrsError as error:
        return [f"registry: {error}"]
    print(f"registry: {len(groups)} groups")
    return [problem for name in groups for problem in _group_problems(queue, name)]


def _group_problems(queue: Queue, name: str) -> list[str]:
    """A checkpoint outside the log means that log or registry was lost, or replaced by another one."""
    try:
        rows = queue.group(name).registry.partitions()
        if len(rows) != queue.partitions:
            return [f"group {name!r} has {len(rows)} partition rows, the queue has {queue.partitions} partitions"]
        bounds = {row.number: queue.log.bounds(row.number) for row in rows}
        lines = queue.group(name).describe()
    except PxrsError as error:
        return [f"group {name!r}: {error}"]
    outside = [
        f"group {name!r}: checkpoint {row.checkpoint} of partition {row.number} is outside the log, "
        f"which holds {bounds[row.number][0]} to {bounds[row.number][1]}"
        for row in rows
        if row.checkpoint is not None and not bounds[row.number][0] <= row.checkpoint <= bounds[row.number][1]
    ]
    return outside or [f"group {name!r}, partition {line.partition}: {line.error}" for line in lines if line.error]
