"""``pxrs health``: is the log whole, does the registry fit it, and does somebody work?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from pxrs.apps.cli.options import Form, Output, RegistryUrl, Url, opened
from pxrs.apps.cli.output import LAG_EXIT_CODE, note, show
from pxrs.errors import PxrsError
from pxrs.runtime.views.tables import Table, counted, span

if TYPE_CHECKING:
    from pxrs.runtime.group.admin import GroupHandle
    from pxrs.runtime.queue.queue import Queue
    from pxrs.runtime.views.group import GroupView


@dataclass
class _Findings:
    """Findings of ``health``: ``broken`` is exit code 1, ``waiting`` is 3; ``odd`` is a warning only."""

    broken: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    partitions: int = 0
    messages: int = 0
    groups: int | None = None
    """None: the registry could not be read, or is not the log's own."""

    @property
    def state(self) -> str:
        return "broken" if self.broken else "waiting" if self.waiting else "OK"

    def as_table(self) -> Table:
        kinds = {"broken": self.broken, "waiting": self.waiting, "warning": self.odd}
        return Table(["KIND", "FINDING"], [[kind, text] for kind, texts in kinds.items() for text in texts])


def health(
    url: Url,
    fail_if_dead_letters: Annotated[
        bool, typer.Option("--fail-if-dead-letters", help="Exit code 3 if dead letters wait for somebody.")
    ] = False,
    output: Output = "table",
    registry: RegistryUrl = None,
) -> None:
    """Open log and registry and look at every partition and group.

    Exit code 1 if something is wrong, 3 if messages wait and no member lives, or all partitions that have some are
    parked. Dead letters and a few parked partitions are shown, and are no failure.
    """
    found = _Findings()
    with opened(url, registry) as queue:
        _look_at_log(queue, found)
        _look_at_groups(queue, found, fail_if_dead_letters)
    _tell(found, output)
    if found.broken or found.waiting:
        raise typer.Exit(1 if found.broken else LAG_EXIT_CODE)


def _tell(found: _Findings, output: Form) -> None:
    """The findings are the result for programs; people read it on stdout, and what is wrong on stderr."""
    if output != "table":
        counts = {"PARTITIONS": found.partitions, "MESSAGES": found.messages, "GROUPS": found.groups}
        show(found.as_table(), output, {"STATE": found.state, **counts}, "findings")
        return
    print(f"log: {counted(found.partitions, 'partition')}, {counted(found.messages, 'message')}")
    if found.groups is not None:
        print(f"registry: {counted(found.groups, 'group')}")
    for text in (*found.broken, *found.waiting):
        note(text)
    for text in found.odd:
        note(f"warning: {text}")
    if found.state == "OK":
        print("OK")


def _look_at_log(queue: Queue, found: _Findings) -> None:
    found.partitions = queue.partitions
    for partition in range(queue.partitions):
        try:
            start, end = queue.log.bounds(partition)
            found.messages += end - start
        except PxrsError as error:
            found.broken.append(f"log: partition {partition}: {error}")


def _look_at_groups(queue: Queue, found: _Findings, letters_fail: bool) -> None:
    try:
        queue.check_registry()
        groups = [queue.group(name) for name in queue.groups()]
    except PxrsError as error:
        found.broken.append(f"registry: {error}")
        return
    found.groups = len(groups)
    for group in groups:
        group.begin_to_watch()
    for group in groups:
        _look_at_group(queue, group, found, letters_fail)


def _look_at_group(queue: Queue, group: GroupHandle, found: _Findings, letters_fail: bool) -> None:
    try:
        broken = _misplaced(queue, group)
        view = group.describe()
    except PxrsError as error:
        found.broken.append(f"group {group.name!r}: {error}")
        return
    found.broken += broken or [f"group {view.group!r}, partition {p.partition}: {p.error}" for p in view if p.error]
    if view.is_left_alone:
        found.waiting.append(_left_alone(view))
    elif view.is_all_parked:
        found.waiting.append(f"group {view.group!r}: {_waiting(view)}, and every partition that has some is parked")
    if view.dead_letters:
        (found.waiting if letters_fail else found.odd).append(_letters(view))
    found.odd += [f"group {view.group!r}, partition {line.partition} waits: {line.parked}" for line in view.parked]


def _misplaced(queue: Queue, group: GroupHandle) -> list[str]:
    """A checkpoint outside the log means that log or registry was lost, or replaced by another one."""
    rows = group.registry.partitions()
    if len(rows) != queue.partitions:
        return [f"group {group.name!r} has {len(rows)} partition rows, the queue has {queue.partitions} partitions"]
    bounds = {row.number: queue.log.bounds(row.number) for row in rows}
    return [
        f"group {group.name!r}: checkpoint {row.checkpoint} of partition {row.number} is outside the log, "
        f"which holds {bounds[row.number][0]} to {bounds[row.number][1]}"
        for row in rows
        if row.checkpoint is not None and not bounds[row.number][0] <= row.checkpoint <= bounds[row.number][1]
    ]


def _left_alone(view: GroupView) -> str:
    gone = "; ".join(f"{m.member}: {m.state}, last seen {span(m.silent_seconds)} ago" for m in view.members)
    return f"group {view.group!r}: {_waiting(view)}, and no member works" + (f" ({gone})" if gone else "")


def _waiting(view: GroupView) -> str:
    wait = f"{counted(view.total_lag, 'message')} wait{'s' if view.total_lag == 1 else ''}"
    return wait if view.is_lag_known else "messages may wait"


def _letters(view: GroupView) -> str:
    return (
        f"group {view.group!r}: {counted(view.dead_letters or 0, 'dead letter')}, the oldest from "
        f"{span(view.oldest_letter_seconds)} ago; look with `pxrs dlq ls`"
    )
