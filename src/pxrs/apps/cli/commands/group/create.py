"""``pxrs group create``: a group with checkpoints, before anybody consumes."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pxrs.apps.cli import values as words
from pxrs.apps.cli.options import GroupName, Output, RegistryUrl, Url, WrongUsage, opened
from pxrs.apps.cli.output import note, show
from pxrs.errors import Refused
from pxrs.runtime.views.tables import Table

if TYPE_CHECKING:
    from pxrs.runtime.group.admin import Places

_OFFSETS = ("offset", "checkpoint", "current_offset", "new")
"""The names that the offset of a partition may have: the words of our own tables."""


def create(
    url: Url,
    group: GroupName,
    at: Annotated[
        str,
        typer.Option("--at", metavar="PLACE", help="earliest, latest, a time, or a file: partition and offset."),
    ] = "earliest",
    assignor: Annotated[
        str | None, typer.Option("--assignor", metavar="NAME", help="How partitions are shared. Default: sticky.")
    ] = None,
    output: Output = "table",
    registry: RegistryUrl = None,
) -> None:
    """Create a group with its checkpoints, and consume nothing. Refused if the group is there.

    A file is JSON ({"0": 120, "1": 95}) or CSV (partition,offset), and names every partition. What `pxrs group
    describe -o json` or `-o csv` prints of another group is such a file.
    """
    place = place_of(at)
    with opened(url, registry) as queue:
        queue.check_registry()
        offsets = queue.group(group).create(place, assignor)
        ends = queue.ends()
    rows = [[p, offset, ends[p], ends[p] - offset] for p, offset in sorted(offsets.items())]
    show(Table(["PARTITION", "CHECKPOINT", "LOG-END-OFFSET", "LAG"], rows), output)
    note(f"created group {group!r}")


def place_of(text: str) -> Places:
    """Read the value of ``--at``: a word, a time, or a file that names offsets."""
    if text in ("earliest", "latest"):
        return text
    if _looks_like_time(text):
        return words.moment(text)
    if os.path.isfile(text):
        return offsets_in(text)
    raise WrongUsage(f"--at {text!r}: earliest, latest, a time as 2026-01-31T12:00:00Z, or a file that is there")


def _looks_like_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def offsets_in(path: str) -> dict[int, int]:
    """The offset of each partition, from a JSON or CSV file."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
        if text.lstrip()[:1] in ("{", "["):
            return _as_mapping(_from_json(json.loads(text)))
        return _as_mapping([_pair(line) for line in csv.DictReader(text.splitlines())])
    except (ValueError, TypeError, RecursionError, csv.Error) as error:
        raise Refused(
            f'{path}: {error}; write JSON as {{"0": 120}}, or CSV with the columns partition,offset'
        ) from None


def _from_json(found: Any) -> list[tuple[Any, Any]]:
    if isinstance(found, dict) and not isinstance(found.get("partitions"), list):
        return list(found.items())
    lines = found["partitions"] if isinstance(found, dict) else found
    return [_pair(line) for line in lines]


def _pair(line: Any) -> tuple[Any, Any]:
    if not isinstance(line, Mapping):
        raise ValueError(f"{line!r} is no line with a partition and an offset")
    named = {str(name).lower().replace("-", "_"): value for name, value in line.items()}
    offset = next((named[name] for name in _OFFSETS if name in named), None)
    if named.get("partition") is None or offset is None:
        raise ValueError(f"a line has no partition or no offset, but {', '.join(named) or 'nothing'}")
    return named["partition"], offset


def _as_mapping(pairs: list[tuple[Any, Any]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for partition, offset in pairs:
        number = _whole("partition", partition)
        if number in found:
            raise ValueError(f"partition {number} is there twice")
        found[number] = _whole("offset", offset)
    if not found:
        raise ValueError("it names no partition")
    return found


def _whole(what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{what} {value!r} is no whole number")
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{what} {value!r} is no whole number") from None
