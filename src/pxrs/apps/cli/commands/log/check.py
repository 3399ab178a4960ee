"""``pxrs log verify``, ``pxrs log repair`` and ``pxrs log seal``: whether what is stored is whole, and making it so."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from pxrs.apps.cli.commands.log.show import chosen
from pxrs.apps.cli.options import Output, Partitions, RegistryUrl, Url, opened
from pxrs.apps.cli.output import note, progress, show
from pxrs.errors import Damaged, Expired, PxrsError, Refused, Unavailable
from pxrs.runtime.views.tables import Table, counted

if TYPE_CHECKING:
    from pxrs.logs.file.check.damage import Damage
    from pxrs.logs.file.check.inspection import Finding
    from pxrs.runtime.queue.queue import Queue

_ROWS = 100_000


@dataclass
class _Checked:
    """One partition: the number of its whole messages, and what is wrong with it."""

    partition: int
    messages: int = 0
    damage: list[str] = field(default_factory=list)
    repairable: list[str] = field(default_factory=list)

    @property
    def status(self) -> str:
        return "damaged" if self.damage else "repairable" if self.repairable else "ok"


def verify(url: Url, partitions: Partitions = None, output: Output = "table", registry: RegistryUrl = None) -> None:
    """Read everything: every checksum, offset, manifest and index file. Exit code 1 if something is damaged.

    What a crash leaves behind is no damage: it is called repairable, and pxrs log repair clears it away.
    """
    with opened(url, registry) as queue:
        numbers = chosen(queue, partitions)
        # Before anything is opened: the first use of a partition may already clear something away.
        findings = {partition: _inspected(queue, partition) for partition in numbers}
        total = sum(_known_length(queue, partition) for partition in numbers if not _blocks(findings[partition]))
        with progress("verifying", total) as advance:
            results = [_verified(queue, partition, findings[partition], advance) for partition in numbers]
    _show(results, output)
    for result in results:
        for text in [*result.damage, *result.repairable]:
            note(f"partition {result.partition}: {text}")
    if any(result.damage for result in results):
        raise typer.Exit(1)


def _show(results: list[_Checked], output: Output) -> None:
    """Show the findings: people read the texts on stderr, programs find them in the JSON."""
    columns = ["PARTITION", "MESSAGES", "STATUS"]
    rows: list[list[object]] = [[r.partition, r.messages, r.status] for r in results]
    if output == "json":
        columns.append("FINDINGS")
        rows = [[*row, [*r.damage, *r.repairable]] for row, r in zip(rows, results, strict=True)]
    show(Table(columns, rows), output)


def _inspected(queue: Queue, partition: int) -> list[Finding]:
    if queue.log.directory is None:
        return []
    from pxrs.logs.file.check.inspection import inspect
    from pxrs.logs.file.queue_file import partition_directory

    return inspect(partition_directory(queue.log.directory, partition))


def _blocks(findings: list[Finding]) -> bool:
    """Whether the partition cannot be read before it is repaired."""
    return any(finding.kind in ("manifest", "directory") for finding in findings)


def _known_length(queue: Queue, partition: int) -> int:
    try:
        start, end = queue.log.bounds(partition)
    except PxrsError:
        return 0
    return end - start


def _verified(queue: Queue, partition: int, findings: list[Finding], advance: Callable[[int], None]) -> _Checked:
    checked = _Checked(partition)
    checked.damage += [finding.text for finding in findings if finding.is_damage]
    checked.repairable += [finding.text for finding in findings if not finding.is_damage]
    if not _blocks(findings):
        try:
            _read_all(queue, checked, advance)
        except PxrsError as error:
            checked.damage.append(str(error))
    return checked


def _read_all(queue: Queue, checked: _Checked, advance: Callable[[int], None]) -> None:
    import numpy as np

    position, end = queue.log.bounds(checked.partition)
    while position < end:
        try:
            batch = queue.log.read(checked.partition, position, _ROWS)
        except (Expired, Unavailable):
            start = queue.log.bounds(checked.partition)[0]
            if start <= position:
                raise
            position = start  # retention goes on meanwhile
            continue
        except Damaged as error:
            checked.damage.append(str(error))
            # What follows this file may be sound, or have a damage of its own.
            position = next(c.end for c in queue.log.chunks(checked.partition) if c.end > position)
            continue
        rows = 0 if batch is None else batch.num_rows
        if batch is None or not np.array_equal(batch.column("offset").to_numpy(), np.arange(position, position + rows)):
            checked.damage.append(f"the offsets after {position} are not those of a whole log")
            return
        position, checked.messages = position + rows, checked.messages + rows
        advance(rows)


def repair(
    url: Url,
    partitions: Partitions = None,
    cut_damaged: Annotated[
        bool, typer.Option("--cut-damaged", help="End a damaged partition before the damage; the rest is kept aside.")
    ] = False,
    output: Output = "table",
    registry: RegistryUrl = None,
) -> None:
    """Cut torn ends, make manifests and index files anew, clear leftovers away. Deletes nothing that may be a message.

    Damaged messages are named, with what would be lost, and stay where they are. With --cut-damaged their partition
    ends before them, and what follows is kept beside it as FILE.cut-BYTE. A last batch that a power loss may have
    torn is kept aside in the same way at once, as the next producer would do. Exit code 1 if damage is left.
    """
    with opened(url, registry) as queue:
        directory = queue.log.directory
        if directory is None:
            raise Refused(f"queue {queue.name!r} has no files here that could be repaired")
        numbers = chosen(queue, partitions)
        with progress("repairing", len(numbers), "partitions") as advance:
            rows, left = _repair_all(queue, directory, numbers, cut_damaged, advance)
    show(Table(["PARTITION", "ACTION", "FILE", "DETAIL"], rows), output)
    for text in left:
        note(text)
    if left:
        raise typer.Exit(1)


def _repair_all(
    queue: Queue, directory: str, numbers: list[int], cut_damaged: bool, advance: Callable[[int], None]
) -> tuple[list[list[object]], list[str]]:
    from pxrs.logs.file.check.repair import repair as repair_partition
    from pxrs.logs.file.queue_file import partition_directory

    rows: list[list[object]] = []
    left: list[str] = []
    for number in numbers:
        place = partition_directory(directory, number)
        done = repair_partition(queue.name, number, place, queue.settings, cut_damaged)
        rows += [[number, step.action, step.path, step.detail] for step in done.steps]
        damage = done.damage
        if damage is not None:
            rows.append([number, "left", damage.path, damage.why])
            left.append(
                f"partition {number}: {damage.why}. --cut-damaged would end it at offset {damage.offset}: "
                f"{_lost(damage)} would be kept aside"
            )
        advance(1)
    return rows, left


def _lost(damage: Damage) -> str:
    if not damage.lost:
        return "an unknown number of messages"
    return f"{counted(damage.lost, 'message')}, {damage.offset} to {damage.end - 1},"


def seal(url: Url, partitions: Partitions = None, output: Output = "table", registry: RegistryUrl = None) -> None:
    """Turn all full segments into Parquet now, for any program to read. The last two of a partition stay."""
    rows: list[list[object]] = []
    with opened(url, registry) as queue:
        if queue.log.directory is None:
            raise Refused(f"queue {queue.name!r} has no segments to seal: only a log in files has")
        numbers = chosen(queue, partitions)
        with progress("sealing", len(numbers), "partitions") as advance:
            for number in numbers:
                for made in queue.log.seal(number):
                    name = os.path.basename(made.path)
                    rows.append([number, name, made.start, made.end, made.end - made.start, made.bytes])
                advance(1)
    show(Table(["PARTITION", "FILE", "START", "END", "MESSAGES", "BYTES"], rows), output)
