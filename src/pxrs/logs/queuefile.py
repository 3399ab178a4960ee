"""The directory of a file log and the ``queue.json`` in it: what was decided when the queue was created."""

from __future__ import annotations

import fcntl
import glob
import json
import os
import re
from datetime import UTC, datetime
from typing import Any

import xxhash

from pxrs.clock import SystemClock
from pxrs.errors import BadName, BadUrl, Damaged, NewerFormat, NotFound, Unavailable
from pxrs.logs.base import LogIdentity, Wish, agree
from pxrs.logs.durable import create_file, make_directories, sync_directory
from pxrs.model import check_name
from pxrs.plugins import split_url

FORMAT = 1
_RESERVED = re.compile(r"partition-\d+|queue\.json.*")
_FIELDS = {"name": str, "partitions": int, "hash": str, "reduce": str, "id": str}


def directory_of(url: str) -> tuple[str, str]:
    """The directory that a ``file:`` URL names, and the queue's name: its last part."""
    _, place = split_url(url)
    if place.startswith("//"):
        if not place.startswith("///"):
            raise BadUrl(f"{url!r} names a host; a file log is local: write file:DIR or file:///DIR")
        place = place[2:]
    if not place.strip("/"):
        raise BadUrl(f"{url!r} names no directory: write file:DIR, as in file:./orders")
    name = check_name("queue", place.rstrip("/").rsplit("/", 1)[-1])
    if "\0" in place:
        raise BadName(f"{url!r} holds a NUL character")
    return os.path.abspath(place), name


def sibling_directory(directory: str, name: str) -> str:
    """Where a log that belongs to the queue stands: below it, under a name that is nothing else there."""
    parts = [check_name("sibling", part) for part in name.split("/")]
    if _RESERVED.fullmatch(parts[0]):
        raise BadName(f"sibling name {name!r} would stand in the way of the queue's own files")
    return os.path.join(directory, *parts)


def partition_directory(directory: str, number: int) -> str:
    return os.path.join(directory, f"partition-{number}")


def open_directory(directory: str, name: str, wish: Wish, create: bool) -> LogIdentity:
    """The identity recorded in this directory, which is made if need be."""
    try:
        recorded = _read(directory)
        if recorded is None:
            _refuse_orphans(directory)
        if recorded is None and not create:
            raise NotFound(f"there is no queue in {directory}: create it with `pxrs init file:{directory}`")
        return _create(directory, name, wish) if recorded is None else agree(name, wish, recorded)
    except OSError as error:
        raise Unavailable(f"{directory}: {error}") from error


def _refuse_orphans(directory: str) -> None:
    """Messages without a ``queue.json``: a new one would route keys by other numbers, and look complete."""
    for path in sorted(glob.glob(os.path.join(glob.escape(directory), "partition-*", "[0-9]*.*"))):
        raise Damaged(
            f"{directory} holds messages ({os.path.relpath(path, directory)}), and its queue.json is gone: put it back "
            "from a copy, or copy that of a queue with the same partitions, hash and reduce"
        )


def _create(directory: str, name: str, wish: Wish) -> LogIdentity:
    identity = agree(name, wish, None)  # refuses before anything is made
    make_directories(directory)
    lock = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two creators the second finds, and must agree with, the first's
        recorded = _read(directory)
        if recorded is not None:
            return agree(name, wish, recorded)
        for number in range(identity.partitions):
            os.makedirs(partition_directory(directory, number), exist_ok=True)
        sync_directory(directory)
        path = os.path.join(directory, "queue.json")
        create_file(path, _to_json(identity), path + ".tmp")  # last: a queue with this file is complete
        return identity
    finally:
        os.close(lock)


def _to_json(identity: LogIdentity) -> bytes:
    created = datetime.fromtimestamp(SystemClock().wall(), tz=UTC).isoformat(timespec="seconds")
    values: dict[str, Any] = {field: getattr(identity, field) for field in _FIELDS}
    values = {"format": FORMAT, **values, "created": created}
    return (json.dumps({**values, "xxh3": _checksum(values)}, indent=2) + "\n").encode()


def _checksum(values: dict[str, Any]) -> str:
    """Over everything but itself: one wrong digit in the partition count would send keys elsewhere."""
    rest = {key: value for key, value in values.items() if key != "xxh3"}
    return xxhash.xxh3_64_hexdigest(json.dumps(rest, sort_keys=True).encode())


def _read(directory: str) -> LogIdentity | None:
    path = os.path.join(directory, "queue.json")
    try:
        with open(path, "rb") as file:
            content = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        values = json.loads(content)
        form = values["format"]
        if type(form) is int and form > FORMAT:
            raise NewerFormat(f"{path} has format {form}; this version of PXRS knows up to {FORMAT}")
        return _identity(values)
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{path} is damaged: {error}") from error


def _identity(values: dict[str, Any]) -> LogIdentity:
    if values["xxh3"] != _checksum(values):
        raise ValueError("its checksum does not match; it must not be edited")
    for field, kind in _FIELDS.items():
        if field not in values:
            raise ValueError(f"it has no {field}")
        if type(values[field]) is not kind:
            raise ValueError(f"{field} = {values[field]!r}")
    return LogIdentity(**{field: values[field] for field in _FIELDS})
