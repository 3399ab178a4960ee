"""The directory of a file log and the ``queue.json`` in it: what was decided when the queue was created."""

from __future__ import annotations

import glob
import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from typing import Any

import xxhash

from pxrs.drivers import split_url
from pxrs.errors import BadName, BadUrl, Damaged, NewerFormat, NotFound, Unavailable, disk_text, masked_url
from pxrs.io.clock import SystemClock
from pxrs.io.durable import create_file, make_directories, sync_path
from pxrs.io.locks import locked_file
from pxrs.logs.base import DEAD_LETTERS, LogIdentity, OpenOptions, OwnRegistry, agree
from pxrs.model import check_name

FORMAT = 1
_RESERVED = re.compile(r"partition-\d+|(queue|registry)\.json.*")
_WAY_OUT = (
    "put it back from a copy of the queue, or copy the queue.json of a queue with the same partitions, hash and reduce"
)
_FIELDS = {"name": str, "partitions": int, "hash": str, "reduce": str, "id": str}


def directory_of(url: str) -> tuple[str, str]:
    """The directory that a ``file:`` URL names, and the queue's name: its last part."""
    _, place = split_url(url)
    if place.startswith("//"):
        if not place.startswith("///"):
            raise BadUrl(f"{masked_url(url)!r} names a host; a file log is local: write file:DIR or file:///DIR")
        place = place[2:]
    if not place.strip("/"):
        raise BadUrl(f"{masked_url(url)!r} names no directory: write file:DIR, as in file:./orders")
    name = check_name("queue", place.rstrip("/").rsplit("/", 1)[-1])
    if "\0" in place:
        raise BadName(f"{masked_url(url)!r} holds a NUL character")
    return os.path.abspath(place), name


def sibling_directory(directory: str, name: str) -> str:
    """The directory of a log that belongs to the queue: below it, under a name that nothing else there has."""
    parts = [check_name("sibling", part) for part in name.split("/")]
    if _RESERVED.fullmatch(parts[0]):
        raise BadName(f"sibling name {name!r} would be in the way of the queue's own files")
    return os.path.join(directory, *parts)


def partition_directory(directory: str, number: int) -> str:
    return os.path.join(directory, f"partition-{number}")


def open_directory(directory: str, name: str, options: OpenOptions, create: bool) -> LogIdentity:
    """The identity recorded in this directory, which is made if need be."""
    try:
        recorded = _read(directory)
        if recorded is None:
            _refuse_file(directory)
            _refuse_orphans(directory)
        if recorded is None and not create:
            raise NotFound(f"there is no queue in {directory}: create it with `pxrs init file:{directory}`")
        return _create(directory, name, options) if recorded is None else agree(name, options, recorded)
    except OSError as error:
        raise Unavailable(f"{directory}: {disk_text(error, directory)}") from error


def _refuse_file(directory: str) -> None:
    """A file cannot become the directory of a queue, nor hold it."""
    path = directory
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        raise BadUrl(f"{path} is a file, and a queue is a directory: name another place, as in file:./orders")


def _refuse_orphans(directory: str) -> None:
    """Refuse messages without a ``queue.json``: a new one would route keys by other numbers, and look complete."""
    for path in sorted(glob.glob(os.path.join(glob.escape(directory), "partition-*", "[0-9]*.*"))):
        raise Damaged(
            f"{directory} holds messages ({os.path.relpath(path, directory)}), and its queue.json is gone: put it back "
            "from a copy, or copy that of a queue with the same partitions, hash and reduce"
        )


def _create(directory: str, name: str, options: OpenOptions) -> LogIdentity:
    identity = agree(name, options, None)  # refuses before anything is made
    make_directories(directory)
    with _locked(directory):  # of two creators the second finds, and must agree with, the first's
        recorded = _read(directory)
        if recorded is not None:
            return agree(name, options, recorded)
        for number in range(identity.partitions):
            os.makedirs(partition_directory(directory, number), exist_ok=True)
        sync_path(directory)
        path = os.path.join(directory, "queue.json")
        create_file(path, _to_json(identity), path + ".tmp")  # last: a queue with this file is complete
        return identity


def _locked(directory: str) -> AbstractContextManager[int | None]:
    return locked_file(directory, math.inf, os.O_RDONLY)


def _to_json(identity: LogIdentity) -> bytes:
    created = datetime.fromtimestamp(SystemClock().wall(), tz=UTC).isoformat(timespec="seconds")
    values: dict[str, Any] = {field: getattr(identity, field) for field in _FIELDS}
    # The last one tells this queue from those of 0.5: its first consumer records the registry, in that file.
    return sealed_json({"format": FORMAT, **values, "created": created, "registry": "registry.json"})


def sealed_json(values: dict[str, Any]) -> bytes:
    """A file of a few values, with their checksum."""
    return (json.dumps({**values, "xxh3": checksum(values)}, indent=2) + "\n").encode()


def checksum(values: dict[str, Any]) -> str:
    """Over everything but itself: one wrong digit in the partition count would send keys elsewhere."""
    rest = {key: value for key, value in values.items() if key != "xxh3"}
    return xxhash.xxh3_64_hexdigest(json.dumps(rest, sort_keys=True).encode())


def _read(directory: str) -> LogIdentity | None:
    path = os.path.join(directory, "queue.json")
    values = read_sealed(path, FORMAT, _WAY_OUT)
    if values is None:
        return None
    for field, kind in _FIELDS.items():
        if type(values.get(field)) is not kind:
            raise Damaged(f"{path} is damaged: {_wrong(values, field)}; {_WAY_OUT}")
    return LogIdentity(**{field: values[field] for field in _FIELDS})


def records_registry(directory: str) -> bool:
    """Whether this queue was made by a version that records its registry."""
    return "registry" in (read_sealed(os.path.join(directory, "queue.json"), FORMAT, _WAY_OUT) or ())


def read_sealed(path: str, known: int, way_out: str) -> dict[str, Any] | None:
    """The values of such a file; None if there is none. Damaged, with the way out, if they cannot be trusted."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged: it is no JSON ({error}); {way_out}") from error
    problem = _problem(values)
    if problem:
        raise Damaged(f"{path} is damaged: {problem}; {way_out}")
    if values["format"] > known:
        raise NewerFormat(f"{path} has format {values['format']}; this version of PXRS knows up to {known}")
    if values["xxh3"] != checksum(values):
        raise Damaged(f"{path} is damaged: its checksum does not match, it must not be edited; {way_out}")
    found: dict[str, Any] = values
    return found


def _problem(values: Any) -> str:
    """The reason why the values cannot be checked."""
    if not isinstance(values, dict):
        return f"it holds {type(values).__name__}, not names with values"
    if type(values.get("format")) is not int:
        return _wrong(values, "format")
    # A later format may have its checksum elsewhere: its number shows it.
    return "" if "xxh3" in values or values["format"] > FORMAT else _wrong(values, "xxh3")


def _wrong(values: dict[str, Any], field: str) -> str:
    return f"{field} = {values[field]!r}" if field in values else f"it has no {field}"


# ---- the file registry.json: which registry the log belongs to ------------------------------------------------------


REGISTRY_FORMAT = 1
_REGISTRY_WAY_OUT = "write it anew with `pxrs registry adopt`, which names the registry of the queue's groups"


def read_registry(directory: str) -> OwnRegistry | None:
    """Read the recorded registry; None for a queue that is older than the record, whose groups are unknown."""
    try:
        values = read_sealed(_path(directory), REGISTRY_FORMAT, _REGISTRY_WAY_OUT)
        if values is None:
            return OwnRegistry() if records_registry(directory) else None
    except OSError as error:
        raise Unavailable(f"{directory}: {error}") from error
    fields = [values.get(name) for name in ("id", "where", "before")]
    if not all(isinstance(field, str) for field in fields) or not values["id"]:
        raise Damaged(f"{_path(directory)} is damaged: it names no registry; {_REGISTRY_WAY_OUT}")
    return OwnRegistry(*map(str, fields))


def write_registry(directory: str, wanted: OwnRegistry, instead_of: str | None) -> OwnRegistry:
    """Record it, if the recorded id is ``instead_of`` (None: whatever it is); returns what is recorded then."""
    try:
        with _locked(directory):  # of two writers the second finds the first's
            found = None if instead_of is None else read_registry(directory) or OwnRegistry()
            if found is not None and found.id != instead_of:
                return found
            path = _path(directory)
            content = sealed_json({"format": REGISTRY_FORMAT, **wanted._asdict()})
            create_file(path, content, path + ".tmp", like=os.path.join(directory, "queue.json"))
            return wanted
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
