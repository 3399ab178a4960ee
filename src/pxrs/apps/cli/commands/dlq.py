"""``pxrs dlq ...``: the messages that a group could not process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from pxrs.apps.cli.message_format import printable, shortened
from pxrs.apps.cli.options import GroupName, Most, Output, RegistryUrl, Url, WrongUsage, opened
from pxrs.apps.cli.output import note, show
from pxrs.apps.cli.values import timestamp
from pxrs.errors import NotFound, Refused
from pxrs.runtime.views.tables import Table, as_header, counted

if TYPE_CHECKING:
    from pxrs.runtime.dead_letters.letter import DeadLetter
    from pxrs.runtime.queue.queue import Queue


def ls(url: Url, group: GroupName, most: Most = None, output: Output = "table", registry: RegistryUrl = None) -> None:
    """The dead letters of a group: what failed, where, and why."""
    columns = ["NUMBER", "PARTITION", "OFFSET", "TIME", "KEY", "TRIES", "MEMBER", "RETRIED", "CAUSE"]
    with opened(url, registry) as queue:
        letters = _letters(queue, group)[:most]
    rows = [
        [x.number, x.partition, x.offset, timestamp(x.timestamp_us), shortened(x.key, 30), x.tries, x.member,
         x.retried, x.cause if output == "json" else shortened(x.cause.encode(), 80)]
        for x in letters
    ]  # fmt: skip
    show(Table(columns, rows), output)


def _letters(queue: Queue, group: str) -> list[DeadLetter]:
    letters = list(queue.group(group).dead_letters)
    if not letters and group not in queue.groups():
        raise NotFound(f"there is no group {group!r} on queue {queue.name!r}")
    return letters


def show_letter(
    url: Url,
    group: GroupName,
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="As `pxrs dlq ls` shows it.")],
    output: Output = "table",
    registry: RegistryUrl = None,
    as_json: Annotated[bool, typer.Option("--json", hidden=True)] = False,
) -> None:
    """One dead letter in full: the message, its cause and the stack."""
    with opened(url, registry) as queue:
        found = queue.group(group).dead_letters.get(number)
    facts = found._asdict() | {
        "key": printable(found.key),
        "value": printable(found.value),
        "headers": {name: printable(value) for name, value in found.headers.items()},
        "timestamp_us": timestamp(found.timestamp_us),
    }
    facts["timestamp"] = facts.pop("timestamp_us")
    if as_json or output == "json":
        print(json.dumps(facts, indent=2))
        return
    if output == "csv":
        cells = [json.dumps(fact) if isinstance(fact, dict) else fact for fact in facts.values()]
        show(Table([name.upper() for name in facts], [cells]), output)
        return
    value, stack = facts.pop("value"), facts.pop("stack")
    if missing := facts.pop("missing"):
        value = f"(not here: {missing})"
    headers = [f"{name}={text}" for name, text in facts.pop("headers").items()]
    print(as_header({name.upper(): fact for name, fact in facts.items()} | {"HEADERS": headers}))
    print(f"\nVALUE\n{value}\n\nSTACK\n{stack.rstrip()}")


def retry(
    url: Url,
    group: GroupName,
    numbers: Annotated[list[int] | None, typer.Argument(metavar="NUMBER", help="Which ones.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that were not sent again yet.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Also those that were sent again before.")] = False,
    all_groups: Annotated[
        bool, typer.Option("--all-groups", help="Let every group of the queue process them, not this one alone.")
    ] = False,
    registry: RegistryUrl = None,
) -> None:
    """Send dead letters again, to the end of the queue, for this group alone: other groups pass over them."""
    if bool(numbers) == everything:
        raise WrongUsage("name some numbers, or say --all; not both")
    with opened(url, registry) as queue:
        queue.check_registry()  # it keeps what was sent again: in another one, that would be lost
        letters = {letter.number: letter for letter in _letters(queue, group)}
        for number in numbers or ():
            if number not in letters:
                raise Refused(f"there is no dead letter {number} in {group!r}; nothing was sent")
        chosen = letters if everything else set(numbers or ())
        sent = queue.group(group).dead_letters.retry(None if everything else chosen, all_groups, again)
    before = [number for number in chosen if letters[number].retried and not again]
    if before:
        note(f"{len(before)} {'was' if len(before) == 1 else 'were'} sent again before: --again repeats them")
    for number in chosen:
        if letters[number].missing and number not in sent:
            note(f"dead letter {number} was left out: {letters[number].missing}")
    print(f"sent {counted(len(sent), 'message')} again")
