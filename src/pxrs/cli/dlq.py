"""``pxrs dlq ...``: the messages that a group could not process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from pxrs.cli.messages import printable, shortened
from pxrs.cli.options import GroupName, Output, RegistryUrl, Url, WrongUsage, opened
from pxrs.cli.output import note, show
from pxrs.cli.words import timestamp
from pxrs.errors import NotFound, Refused
from pxrs.views.tables import Table, as_header

if TYPE_CHECKING:
    from pxrs.runtime.deadletters import DeadLetter
    from pxrs.runtime.queue import Queue

RETRIED_FROM = "pxrs.retried-from"


def ls(url: Url, group: GroupName, output: Output = "table", registry: RegistryUrl = None) -> None:
    """The dead letters of a group: what failed, where, and why."""
    columns = ["NUMBER", "PARTITION", "OFFSET", "TIME", "KEY", "TRIES", "MEMBER", "RETRIED", "CAUSE"]
    with opened(url, registry) as queue:
        letters = _letters(queue, group)
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
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    registry: RegistryUrl = None,
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
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    value, stack = facts.pop("value"), facts.pop("stack")
    headers = [f"{name}={text}" for name, text in facts.pop("headers").items()]
    print(as_header({name.upper(): fact for name, fact in facts.items()} | {"HEADERS": headers}))
    print(f"\nVALUE\n{value}\n\nSTACK\n{stack.rstrip()}")


def retry(
    url: Url,
    group: GroupName,
    numbers: Annotated[list[int] | None, typer.Argument(metavar="NUMBER", help="Which ones.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that were not sent again yet.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Also those that were sent again before.")] = False,
    registry: RegistryUrl = None,
) -> None:
    """Send dead letters again, to the end of the queue: every group of the queue will see them."""
    if bool(numbers) == everything:
        raise WrongUsage("name some numbers, or say --all")
    with opened(url, registry) as queue:
        queue.check_registry()  # it keeps what was sent again: in another one, that would be lost
        letters = _letters(queue, group)
        chosen = letters if everything else [_pick(letters, number, group) for number in sorted(set(numbers or []))]
        todo = [letter for letter in chosen if again or not letter.retried]
        _send(queue, group, todo)
    if len(todo) < len(chosen):
        note(f"{len(chosen) - len(todo)} were sent again before: --again repeats them")
    print(f"sent {len(todo)} messages again")


def _pick(letters: list[DeadLetter], number: int, group: str) -> DeadLetter:
    for letter in letters:
        if letter.number == number:
            return letter
    raise Refused(f"there is no dead letter {number} in {group!r}; nothing was sent")


def _send(queue: Queue, group: str, letters: list[DeadLetter]) -> None:
    """Durable in the queue before it is marked: a crash in between repeats a letter, and loses none."""
    if not letters:
        return
    with queue.producer() as producer:
        for letter in letters:
            origin = {RETRIED_FROM: f"{group}/{letter.number}".encode()}
            producer.send(letter.key, letter.value, letter.headers | origin, tenant=letter.tenant)
        producer.flush()
    queue.group(group).dead_letters.mark_retried({letter.number for letter in letters})
