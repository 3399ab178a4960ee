"""``pxrs group seek``: move checkpoints; without ``--execute`` it shows what would move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pxrs.apps.cli import values as words
from pxrs.apps.cli.commands.log.show import chosen
from pxrs.apps.cli.options import GroupName, Output, Partitions, RegistryUrl, Url, WrongUsage, opened
from pxrs.apps.cli.output import note, show
from pxrs.runtime.views.tables import Table

if TYPE_CHECKING:
    from pxrs.runtime.group.admin import Place


def seek(
    url: Url,
    group: GroupName,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the oldest message.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Behind the newest message.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", max=2**63 - 1, metavar="N", help="To this offset.")
    ] = None,
    to_datetime: Annotated[
        str | None, typer.Option("--to-datetime", metavar="TIME", help="To the first message at or after this time.")
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option("--by-duration", metavar="TIME", help="That long before now: 90s, 1h30m, 7d.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="N messages on (or back, if negative), up to the end.")
    ] = None,
    partitions: Partitions = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it. Without this it is a dry run.")] = False,
    output: Output = "table",
    registry: RegistryUrl = None,
) -> None:
    """Set a group's checkpoints. Shows what would change; --execute does it, also while the group runs."""
    place = _only(
        "earliest" if to_earliest else None,
        "latest" if to_latest else None,
        to_offset,
        None if to_datetime is None else words.moment(to_datetime),
        None if by_duration is None else words.ago(words.duration(by_duration)),
        shift_by,
    )
    with opened(url, registry) as queue:
        if execute:
            queue.check_registry()
        handle = queue.group(group)
        current = {line.partition: line.checkpoint for line in handle.describe()}
        numbers = chosen(queue, partitions and sorted(set(partitions)))
        if shift_by is not None:
            bounds = {p: queue.log.bounds(p) for p in numbers}
            wanted: dict[int, Place] = {p: min(max(current[p] + shift_by, bounds[p][0]), bounds[p][1]) for p in numbers}
        else:
            wanted = dict.fromkeys(numbers, place)
        new = handle.seek(wanted) if execute else handle.resolve(wanted)
    rows = [[p, current[p], new[p], new[p] - current[p]] for p in numbers]
    show(Table(["PARTITION", "CURRENT", "NEW", "CHANGE"], rows), output)
    note("done" if execute else "nothing was changed: this was a dry run, --execute does it")


def _only(*places: Place | None) -> Place:
    given = [place for place in places if place is not None]
    if len(given) != 1:
        raise WrongUsage(
            "say once where to: --to-earliest, --to-latest, --to-offset, --to-datetime, --by-duration or --shift-by"
        )
    return given[0]
