"""``pxrs registry copy`` and ``adopt``: groups move to another store, and a log belongs to another registry."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from typing import Annotated

import typer

from pxrs.apps.cli.commands.registry.rows import swaps_to, write_rows
from pxrs.apps.cli.options import RegistryUrl, Url, WrongUsage, opened
from pxrs.apps.cli.output import note
from pxrs.errors import NotFound, Refused, masked_url
from pxrs.runtime.views.tables import counted
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, Row, Store, Swap

_PASSING = ("member", "bell")
"""The rows of present members and leaders: they mean nothing in another registry."""

Groups = dict[tuple[str, str], list[Row]]


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The URL of the registry that has the group.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The URL of the registry that shall have it.")],
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only the groups of this queue.")] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="NAME", help="Only groups of this name.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also with members registered, and over rows that differ.")
    ] = False,
    move: Annotated[bool, typer.Option("--move", help="Delete the groups in FROM, once they are in TO.")] = False,
) -> None:
    """Copy groups to another registry: checkpoints, epochs, history. Stop their members first.

    Nothing is written if one of the groups has members, or is in TO with other rows. If all groups of a queue go,
    the first consumer that starts, with FROM or TO, says to which of the two its log belongs from then on; with --move
    that is TO. Else say so with `pxrs registry adopt`.
    """
    from pxrs.runtime.queue.settings_file import load_settings

    settings = load_settings()
    prefix = settings.prefix
    with closing(_store(source, settings, must_exist=True)) as old, closing(_store(target, settings)) as new:
        groups = _groups(old, prefix, queue, group, source)
        _refuse_same(old, new, prefix, source, target)
        changes = {name: _changes(rows, new, force, name) for name, rows in groups.items()}
        for name, rows in groups.items():
            _check_stopped(name, rows, force)
        ids = [row for row in _ids(old, prefix, groups) if _takes_id(row, new, target)]
        _mark(ids, old)
        for name, swaps in changes.items():
            write_rows(new, swaps)
            print(f"{'/'.join(name)}: {counted(len(swaps), 'row')} written")
        _carry(ids, old, new, move)  # last: half a copy takes no members
        if move:
            _delete(old, groups)
    if not move:
        note(
            f"the groups are still in {masked_url(source)}. The log goes on with one of the two: with the one whose "
            "consumer starts first, or that `pxrs registry adopt` names; the other one is refused then. Until then "
            "nothing is deleted from the log. --move leaves one only"
        )


def _store(url: str, settings: Settings, must_exist: bool = False) -> Store:
    from pxrs.drivers import find_driver
    from pxrs.runtime.queue.urls import open_store

    if must_exist and not find_driver("pxrs.stores", url).exists(url):
        raise NotFound(f"there is no registry at {masked_url(url)}")
    return open_store(url, settings)


def _refuse_same(old: Store, new: Store, prefix: str, source: str, target: str) -> None:
    """Refuse one registry under two names: the versions of its rows are the same, those of another one differ."""
    lasting, there = ([row for row in store.scan(prefix) if not _is_passing(row)] for store in (old, new))
    if lasting == there:
        raise WrongUsage(
            f"{masked_url(source)} and {masked_url(target)} are the same registry: name another one to copy to"
        )


def _ids(store: Store, prefix: str, groups: Groups) -> list[Row]:
    """The rows by which the logs of these queues know their registry, of queues all of whose groups go along."""
    from pxrs.runtime.queue.log_registry import id_key

    found = []
    for queue in sorted({name[0] for name in groups}):
        row = store.read([id_key(prefix, queue)])[0]
        keys = [other.key.removeprefix(f"{prefix}{queue}/").split("/") for other in store.scan(f"{prefix}{queue}/")]
        stay = sorted(key[0] for key in keys if key[1:] == ["group"] and (queue, key[0]) not in groups)
        if row is not None and stay:
            note(f"queue {queue!r} has other groups in FROM ({', '.join(stay)}): its log belongs to FROM still")
        elif row is not None:
            found.append(row)
    return found


def _takes_id(row: Row, new: Store, target: str) -> bool:
    """Whether TO gets the id of the queue's registry. If it has another one already, the log must be changed."""
    from pxrs.runtime.queue.log_registry import as_copied

    there = new.read([row.key])[0]
    if there is None or as_copied(there.value) == as_copied(row.value):
        return True
    queue = row.key.split("/")[-3]
    note(
        f"TO has consumed a queue {queue!r} before: tell the log that it belongs there now, "
        f"`pxrs registry adopt LOG --registry {masked_url(target)}`"
    )
    return False


def _mark(ids: list[Row], old: Store) -> None:
    """Say in FROM that another registry has the id: wherever this ends, no two take members one after the other."""
    from pxrs.runtime.queue.log_registry import as_copied

    write_rows(old, [Swap(row.key, row.version, as_copied(row.value)) for row in ids])


def _carry(ids: list[Row], old: Store, new: Store, move: bool) -> None:
    """Give TO the id of the queue's registry, and with ``move`` to TO alone, as FROM had it."""
    from pxrs.runtime.queue.log_registry import as_copied

    for row in ids:
        _put(new, row.key, as_copied(row.value))
        if move:
            _put(old, row.key, None)
            _put(new, row.key, row.value)


def _put(store: Store, key: str, value: bytes | None) -> None:

    there = store.read([key])[0]
    if there is not None or value is not None:
        write_rows(store, [Swap(key, ABSENT if there is None else there.version, value)])


def _groups(store: Store, prefix: str, queue: str | None, group: str | None, url: str) -> Groups:
    """All rows, by queue and group; a group is a queue's part with a row of that name."""
    found: Groups = defaultdict(list)
    whole: set[tuple[str, str]] = set()
    for row in store.scan(prefix):
        parts = row.key.removeprefix(prefix).split("/")
        if len(parts) >= 3:
            found[parts[0], parts[1]].append(row)
        if parts[2:3] == ["group"]:
            whole.add((parts[0], parts[1]))
    wanted = {name: found[name] for name in sorted(whole) if queue in (None, name[0]) and group in (None, name[1])}
    if not wanted:
        there = ", ".join("/".join(name) for name in sorted(whole)) or "none"
        raise NotFound(f"{masked_url(url)} has no such group; groups there: {there}")
    return wanted


def _is_passing(row: Row) -> bool:
    return row.key.split("/")[-2] in _PASSING


def _check_stopped(name: tuple[str, str], rows: list[Row], force: bool) -> None:
    members = [row.key.rpartition("/")[2] for row in rows if row.key.split("/")[-2] == "member"]
    if members and not force:
        raise Refused(
            f"group {name[1]!r} of queue {name[0]!r} has members: {', '.join(members)}. Stop them first; "
            "--force if they are dead"
        )


def _changes(rows: list[Row], new: Store, force: bool, name: tuple[str, str]) -> list[Swap]:
    """The rows that must be written."""
    wanted = {row.key: row.value for row in rows if not _is_passing(row)}
    present = {row.key: row for row in new.read(list(wanted)) if row is not None}
    changes = swaps_to(wanted, present)
    differing = [swap.key for swap in changes if swap.key in present]
    if differing and not force:
        raise Refused(
            f"TO has group {'/'.join(name)} already, with other rows (the first is {differing[0]}); see --force"
        )
    return changes


def _delete(store: Store, groups: Groups) -> None:
    """The group row first: without it, the rest is no group."""

    for name, rows in groups.items():
        ordered = sorted(rows, key=lambda row: not row.key.endswith("/group"))
        write_rows(store, [Swap(row.key, row.version, None) for row in ordered])
        print(f"{'/'.join(name)}: deleted in FROM")


def adopt(url: Url, registry: RegistryUrl = None) -> None:
    """Let the log belong to this registry from now on: to the one of --registry, or of PXRS_REGISTRY, or beside it.

    Members that use another registry are refused at their next start, and delete nothing from now on. Checkpoints do
    not come along: `pxrs registry copy` or `load` brings them, `pxrs group seek` sets them.
    """
    with opened(url, registry) as queue:
        now, before = queue.adopt_registry()
        groups = queue.groups()
    if before == now:
        print(f"queue {queue.name!r} belongs to {now.where} (id {now.id}) already")
        return
    print(f"queue {queue.name!r} belongs to {now.where} (id {now.id}) now")
    if before is not None and before.id == now.id:
        note(f"it is the one that was at {before.where} before, under the same id")
    elif before is not None and before.id:
        note(
            f"before, it belonged to {before.where} (id {before.id}): groups there are refused from now on. Stop the "
            "members that still run with it: they go on until they end"
        )
    if not groups:
        note("there is no group of this queue in it yet: a new one starts without checkpoints")
