"""The file ``registry.json`` of a file log: which registry the log belongs to, and what shows that it had groups."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import suppress

from pxrs.errors import Damaged, Unavailable, disk_text
from pxrs.logs.base import DEAD_LETTERS, OwnRegistry
from pxrs.logs.durable import create_file
from pxrs.logs.queuefile import read_sealed, records_registry, sealed_json

FORMAT = 1
_WAY_OUT = "write it anew with `pxrs registry adopt`, which names the registry of the queue's groups"


def read_registry(directory: str) -> OwnRegistry | None:
    """What is recorded; None if nothing is known of the groups of this queue, which is older than the record."""
    try:
        values = read_sealed(_path(directory), FORMAT, _WAY_OUT)
        if values is None:
            return OwnRegistry() if records_registry(directory) else None
    except OSError as error:
        raise Unavailable(f"{directory}: {error}") from error
    fields = [values.get(name) for name in ("id", "where", "before")]
    if not all(isinstance(field, str) for field in fields) or not values["id"]:
        raise Damaged(f"{_path(directory)} is damaged: it names no registry; {_WAY_OUT}")
    return OwnRegistry(*map(str, fields))


def write_registry(directory: str, wanted: OwnRegistry, instead_of: str | None) -> OwnRegistry:
    """Record it, if the recorded id is ``instead_of`` (None: whatever it is); returns what is recorded then."""
    try:
        lock = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # of two writers the second finds the first's
            found = None if instead_of is None else read_registry(directory) or OwnRegistry()
            if found is not None and found.id != instead_of:
                return found
            path = _path(directory)
            content = sealed_json({"format": FORMAT, **wanted._asdict()})
            create_file(path, content, path + ".tmp", like=os.path.join(directory, "queue.json"))
            return wanted
        finally:
            os.close(lock)
    except OSError as error:
        raise Unavailable(f"{_path(directory)} cannot be written: {disk_text(error, directory)}") from error


def groups_seen(directory: str, log: str) -> list[str]:
    """Groups with dead letters here, and those whose output from this very log waits in the staging directory."""
    letters = _names_in(os.path.join(directory, DEAD_LETTERS.rstrip("/")))
    return sorted({*letters, *_groups_staging(os.path.join(directory, "_staging", "plans"), log)})


def _groups_staging(plans: str, log: str) -> Iterator[str]:
    for name in _names_in(plans):
        with suppress(OSError, ValueError), open(os.path.join(plans, name), "rb") as file:
            plan = json.load(file)
            if isinstance(plan, dict) and plan.get("log") == log:
                yield str(plan.get("group"))


def _names_in(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _path(directory: str) -> str:
    return os.path.join(directory, "registry.json")
