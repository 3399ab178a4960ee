"""``pxrs log seal``: full segments become Parquet now."""

from __future__ import annotations

import os

from pxrs.apps.cli.commands.log.show import chosen
from pxrs.apps.cli.options import Output, Partitions, RegistryUrl, Url, opened
from pxrs.apps.cli.output import progress, show
from pxrs.errors import Refused
from pxrs.runtime.views.tables import Table


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
