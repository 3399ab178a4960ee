"""``manifest.json`` of a partition: where its log starts, and which sealed files hold its history.

The first line alone tells where the partition starts and how far it is sealed, so that a partition with a long
history opens as fast as a new one; one line for each sealed file follows. Both parts carry a checksum.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

import xxhash

from pxrs.errors import Damaged, NewerFormat
from pxrs.io.durable import create_file

FORMAT = 1
NAME = "manifest.json"


class Sealed(NamedTuple):
    """One sealed Parquet file: the messages ``[start, end)``, their times, and the xxh3_64 of the whole file."""

    file: str
    start: int
    end: int
    first_us: int
    last_us: int
    bytes: int
    xxh3: str


class Summary(NamedTuple):
    """The partition's first offset, and the offset behind what is sealed. Sealed files never leave a gap."""

    start: int
    sealed_end: int


class Manifest(NamedTuple):
    summary: Summary
    files: tuple[Sealed, ...]


NOTHING = Manifest(Summary(0, 0), ())


def write_manifest(directory: str, manifest: Manifest) -> None:
    """Replace the manifest at once and durably."""
    rest = b"".join(json.dumps(sealed._asdict()).encode() + b"\n" for sealed in manifest.files)
    head = {"format": FORMAT, **manifest.summary._asdict(), "files": len(manifest.files), "rest": _digest(rest)}
    line = json.dumps({**head, "xxh3": _digest(json.dumps(head).encode())}).encode() + b"\n"
    path = os.path.join(directory, NAME)
    create_file(path, line + rest, path + ".tmp")


def read_summary(directory: str) -> Summary:
    """The first line of the manifest."""
    path = os.path.join(directory, NAME)
    try:
        with open(path, "rb") as file:
            return _summary(path, _head(path, file.readline()))
    except FileNotFoundError:
        return NOTHING.summary


def read_manifest(directory: str) -> Manifest:
    """The whole manifest; nothing is sealed where there is none."""
    path = os.path.join(directory, NAME)
    try:
        with open(path, "rb") as file:
            head, rest = _head(path, file.readline()), file.read()
    except FileNotFoundError:
        return NOTHING
    if _digest(rest) != head["rest"]:
        raise Damaged(f"{path} is damaged: its list of files fails its checksum; pxrs log repair rebuilds it")
    return Manifest(_summary(path, head), tuple(Sealed(**json.loads(line)) for line in rest.splitlines()))


def _head(path: str, line: bytes) -> dict[str, Any]:
    try:
        head: dict[str, Any] = json.loads(line)
        if type(head["format"]) is int and head["format"] > FORMAT:
            raise NewerFormat(f"{path} has format {head['format']}; this version of PXRS knows up to {FORMAT}")
        digest = head.pop("xxh3")
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{path} is damaged: {error!r}; pxrs log repair rebuilds it") from error
    if _digest(json.dumps(head).encode()) != digest:
        raise Damaged(f"{path} is damaged: its checksum does not match; pxrs log repair rebuilds it")
    return head


def _summary(path: str, head: dict[str, Any]) -> Summary:
    try:
        return Summary(head["start"], head["sealed_end"])
    except KeyError as error:
        raise Damaged(f"{path} is damaged: it has no {error}") from error


def _digest(data: bytes) -> str:
    digest: str = xxhash.xxh3_64_hexdigest(data)
    return digest
