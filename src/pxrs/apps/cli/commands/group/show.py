"""``pxrs group ...`` and ``pxrs member ...``: look at a group, hold it, put members out."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pxrs.apps.cli import values as words
from pxrs.apps.cli.options import GroupName, Output, Partitions, RegistryUrl, Url, WrongUsage, opened
from pxrs.apps.cli.output import LAG_EXIT_CODE, note, rendered, show, until_asked_to_end
from pxrs.errors import Mismatch
from pxrs.model import check_name
from pxrs.runtime.views.tables import MISSING, UNKNOWN, Table, ranges, span

if TYPE_CHECKING:
    from pxrs.runtime.group.admin import GroupHandle
    from pxrs.runtime.queue.queue import Queue
    from pxrs.runtime.views.group import GroupView, MemberLine

MemberName = Annotated[str, typer.Argument(metavar="MEMBER", help="The member's name.")]

SHORTEST_PAUSE = 0.1
"""Seconds between two looks of ``--watch``."""

_COLUMNS = (
    "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "EPOCH",
)  # fmt: skip


def list_groups(url: Url, output: Output = "table", registry: RegistryUrl = None) -> None:
    """The groups of a queue, with their state and lag."""
    with opened(url, registry) as queue:
        handles = [queue.group(name) for name in queue.groups()]
        if not handles:
            _refuse_other_registry(queue)
        for handle in handles:
            handle.begin_to_watch()
        views = [handle.describe() for handle in handles]
    rows = [
        [view.group, view.state, len(view.living), _last_seen(view, output), _total_lag(view, output),
         _known(view.dead_letters, output), _age(view.oldest_letter_seconds, output)]
        for view in views
    ]  # fmt: skip
    oldest = "OLDEST" if output == "table" else "OLDEST-LETTER"  # 80 columns are not many
    show(Table(["GROUP", "STATE", "MEMBERS", "LAST-SEEN", "TOTAL-LAG", "DEAD-LETTERS", oldest], rows), output)
    for view in views:
        _note_errors(view)


def _refuse_other_registry(queue: Queue) -> None:
    """ "No groups" of a registry that is not the log's would mislead. Where the log has recorded its own, the reason is
    printed already, as the warning of every look."""
    try:
        queue.check_registry()
    except Mismatch:
        if (recorded := queue.log.registry()) is not None and recorded.id:
            raise typer.Exit(1) from None
        raise


def describe(
    url: Url,
    group: GroupName,
    output: Output = "table",
    fail_if_lag: Annotated[
        int | None,
        typer.Option("--fail-if-lag", min=0, metavar="N", help="Exit code 3 if the lag is above N, or unknown."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")] = False,
    every: Annotated[str, typer.Option("--every", metavar="TIME", help="How often, with --watch.")] = "2s",
    registry: RegistryUrl = None,
) -> None:
    """One line for each partition: how far the group is, how far behind, and who works on it."""
    pause = words.duration(every).total_seconds()
    if pause < SHORTEST_PAUSE:
        raise WrongUsage(f"--every {every}: at least {SHORTEST_PAUSE:g} s, as in --every 2s")
    with opened(url, registry) as queue:
        if watch:
            _watch(queue, group, output, pause)
            return
        view = queue.group(group).describe()
        print(_described(view, output))
        _note_oddities(view)
    if fail_if_lag is not None and not (view.is_lag_known and view.total_lag <= fail_if_lag):
        note(f"the lag of {view.total_lag} is above {fail_if_lag}" if view.is_lag_known else "the lag is not known")
        raise typer.Exit(LAG_EXIT_CODE)


def _watch(queue: Queue, group: str, output: Any, pause: float) -> None:
    clear = "\x1b[H\x1b[2J" if sys.stdout.isatty() else ""
    handle = queue.group(group)  # it remembers the beats that it has seen
    with until_asked_to_end():
        while True:
            print(clear + _described(handle.describe(), output), flush=True)
            _pause(pause)


def _pause(seconds: float) -> None:
    time.sleep(seconds)


def _described(view: GroupView, output: Any) -> str:
    members = {member.member: member for member in view.members}
    hosts = {name: member.host for name, member in members.items()}
    spark = _of_spark(view.members, output, ("engine", "app", "ui", "jvm"))
    troubled = ("error", "parked", "paused") if output != "table" else ("error",) if any(p.error for p in view) else ()
    rows = [
        [view.group, view.queue, p.partition, p.checkpoint, _known(p.end, output), _known(p.lag, output), p.owner,
         hosts.get(p.owner or ""), p.epoch]
        + [getattr(members.get(p.owner or ""), name, None) for name in spark]
        + [p.paused if name == "paused" else p[name] or None for name in troubled]
        for p in view
    ]  # fmt: skip
    header = {
        "GROUP": view.group,
        "STATE": _state(view, output),
        "MEMBERS": len(view.living),
        "DEAD": [member.member for member in view.dead],
        "LAST-SEEN": _last_seen(view, output),
        "IDLE": view.idle,
        "PAUSED": ranges([line.partition for line in view if line.paused]),
        "PARKED": ranges([line.partition for line in view.parked]),
        "LEADER": view.leader,
        "ASSIGNOR": view.assignor,
        "GENERATION": view.generation,
        "REASON": view.reason,
        "DEAD-LETTERS": _known(view.dead_letters, output),
        "OLDEST-LETTER": _age(view.oldest_letter_seconds, output),
        "PASSED-OVER": view.passed_over,
        "TOTAL-LAG": _total_lag(view, output),
    }
    shown = {name: value for name, value in header.items() if output == "json" or _is_shown(name, value)}
    columns = [*_COLUMNS, *map(str.upper, (*spark, *troubled))]
    if output == "table":  # programs read the names that Kafka's tools have; people read that of all other texts
        columns[columns.index("TOPIC")] = "QUEUE"
    return rendered(Table(columns, rows, once=columns[:2]), output, shown, "partitions")


def _is_shown(name: str, value: Any) -> bool:
    """Whether people see this line above the table: what is rare is shown where it is so."""
    rare = ("DEAD", "PARKED", "DEAD-LETTERS", "OLDEST-LETTER", "PASSED-OVER")
    return name not in rare or value not in (None, 0, [], MISSING)


def _known(number: int | None, output: Any) -> int | str | None:
    """Show a number, or that it is not known: null in JSON, elsewhere a question mark."""
    return UNKNOWN if number is None and output != "json" else number


def _total_lag(view: GroupView, output: Any) -> int | str | None:
    return _known(view.total_lag if view.is_lag_known else None, output)


def _age(seconds: float | None, output: Any) -> float | str | None:
    """Show an age: seconds in JSON, elsewhere as people say it."""
    return seconds if seconds is None or output == "json" else span(seconds)


def _state(view: GroupView, output: Any) -> str:
    is_told = view.state == "Dead" and view.silent_seconds is not None and output == "table"
    return f"Dead for {span(view.silent_seconds)}" if is_told else view.state


def _last_seen(of: GroupView | MemberLine, output: Any) -> str | None:
    """The time of the last beat for programs; for people how long ago it was. None if nobody has said so."""
    if output == "json":
        return None if of.seen is None else words.timestamp(int(of.seen * 1_000_000))
    return None if of.silent_seconds is None else span(of.silent_seconds)


def _of_spark(members: list[MemberLine], output: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """The facts about Spark applications: shown where there are some, and always to programs that read JSON."""
    return names if output == "json" or any(member.is_spark for member in members) else ()


def _note_oddities(view: GroupView) -> None:
    if view.state == "Empty":
        note(f"group {view.group!r} has no members")
    elif view.state == "Dead":
        note(f"no member of group {view.group!r} shows life; `pxrs member evict` puts one out")
    elif view.state == "Rebalancing":
        note(f"group {view.group!r} is rebalancing")
    _note_errors(view)


def _note_errors(view: GroupView) -> None:
    for line in view:
        if line.error:
            note(f"group {view.group!r}, partition {line.partition}: {line.error}")
        if line.parked:
            note(f"group {view.group!r}, partition {line.partition} waits: {line.parked}")


def members(url: Url, group: GroupName, output: Output = "table", registry: RegistryUrl = None) -> None:
    """The members of a group, and what each works on."""
    columns = ["GROUP", "CONSUMER-ID", "HOST", "PID", "ENGINE", "STATE", "LAST-SEEN", "#PARTITIONS", "ASSIGNMENT",
               "LEADER"]  # fmt: skip
    with opened(url, registry) as queue:
        found = queue.group(group).members()
    spark = _of_spark(found, output, ("app", "ui", "jvm"))
    spark = (*spark, "silent_seconds", "passed_over") if output == "json" else spark
    rows = [
        [group, m.member, m.host, m.pid, m.engine, "idle" if m.idle else m.state,
         _last_seen(m, output), len(m.partitions), ranges(m.partitions), m.leader,
         *(m[name] for name in spark)]
        for m in found
    ]  # fmt: skip
    show(Table([*columns, *map(str.upper, spark)], rows, once=("GROUP",)), output)


def pause(url: Url, group: GroupName, partitions: Partitions = None, registry: RegistryUrl = None) -> None:
    """Hold a group, or some of its partitions, where it is. Owners keep them, and take nothing."""
    with _existing(url, registry, group) as handle:
        handle.pause(partitions)
    print(f"paused {_which(partitions)} of {group!r}; go on with `pxrs group resume`")


def resume(url: Url, group: GroupName, partitions: Partitions = None, registry: RegistryUrl = None) -> None:
    """Let a paused group, or some of its partitions, go on."""
    with _existing(url, registry, group) as handle:
        handle.resume(partitions)
    print(f"resumed {_which(partitions)} of {group!r}")


@contextmanager
def _existing(url: str, registry: str | None, group: str) -> Iterator[GroupHandle]:
    with opened(url, registry) as queue:
        handle = queue.group(group)
        handle.registry.group()
        yield handle


def delete(
    url: Url,
    group: GroupName,
    force: Annotated[
        bool, typer.Option("--force", help="Put out members that are dead: wait for a lease whether they show life.")
    ] = False,
    registry: RegistryUrl = None,
) -> None:
    """Forget a group and its checkpoints. Refused while it has members."""
    with opened(url, registry) as queue:
        queue.group(group).delete(force)
    print(f"deleted group {group!r}")


def evict(url: Url, group: GroupName, member: MemberName, registry: RegistryUrl = None) -> None:
    """Put a member out at once: its process is fenced and stops, its partitions go to others."""
    with opened(url, registry) as queue:
        queue.group(group).evict(check_name("member", member))
    print(f"evicted {member!r} from {group!r}")


def drain(url: Url, group: GroupName, member: MemberName, registry: RegistryUrl = None) -> None:
    """Ask a member to leave cleanly: it finishes what runs, commits, and hands over."""
    with opened(url, registry) as queue:
        queue.group(group).drain(check_name("member", member))
    print(f"asked {member!r} to leave {group!r}")


def _which(partitions: list[int] | None) -> str:
    if not partitions:
        return "all partitions"
    return f"{'partition' if len(set(partitions)) == 1 else 'partitions'} {ranges(sorted(set(partitions)))}"
