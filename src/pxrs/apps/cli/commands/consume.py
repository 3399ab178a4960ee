"""``pxrs consume``: print messages as a member of a group, or run a command for each."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pxrs.apps.cli import values as words
from pxrs.apps.cli.message_format import FORMAT_HELP, shape
from pxrs.apps.cli.options import RegistryUrl, Url, WrongUsage, opened
from pxrs.apps.cli.output import note
from pxrs.errors import Refused
from pxrs.runtime.views.tables import counted

if TYPE_CHECKING:
    from pxrs.runtime.ports.counters import Counters


def consume(
    url: Url,
    group: Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="The consumer group to join.")],
    member: Annotated[str | None, typer.Option("--member", metavar="NAME", help="This member's name.")] = None,
    start: Annotated[
        str,
        typer.Option("--from", metavar="PLACE", help="earliest, latest or a time: where there is no checkpoint yet."),
    ] = "earliest",
    most: Annotated[int | None, typer.Option("--max", "-n", min=1, metavar="N", help="Stop after N messages.")] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop when all that is there now is processed, by this or others.")
    ] = False,
    output: Annotated[str, typer.Option("--output", "-o", help=FORMAT_HELP)] = "value",
    command: Annotated[
        str | None,
        typer.Option("--exec", metavar="CMD", help="Run this for each message, its value on stdin; 0 means done."),
    ] = None,
    tries: Annotated[int | None, typer.Option("--tries", min=1, metavar="N", help="How often to try --exec.")] = None,
    on_failure: Annotated[
        Literal["dead-letter", "skip", "stop"] | None, typer.Option("--on-failure", help="After the last try.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say what happens in the group.")] = False,
    registry: RegistryUrl = None,
    old_output: Annotated[str | None, typer.Option("--format", "-f", hidden=True)] = None,
) -> None:
    """Join a group and process messages: print them, or give each to a command.

    Runs until Ctrl-C (a clean leave) unless --max or --until-end ends it. A command that keeps failing sends the
    message to the dead letters; one that the shell cannot run (126, 127) ends this member, and no message is lost by
    it. It finds PXRS_KEY, PXRS_PARTITION and PXRS_OFFSET in its environment.
    """
    from pxrs.apps.cli.consume_session import Execute, Print, Session, refuse_unknown

    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="pxrs: %(message)s")
    if command is not None and not command.strip():
        raise WrongUsage("--exec '': name a command, or leave --exec out to print the messages")
    if command is None and tries is not None:
        raise WrongUsage("--tries says how often to try --exec: give a command, or leave it out")
    if command is not None:
        refuse_unknown(command)
    given: dict[str, Any] = {"tries": tries, "on_failure": on_failure}
    begin, printing = words.start(start), shape(old_output or output)
    with opened(url, registry) as queue:
        settings = queue.settings.with_(**{name: value for name, value in given.items() if value is not None})
        work = Execute(command) if command is not None else Print(printing)
        session = Session(work, settings.tries, most)
        consumer = queue.consumer(
            group, session.handle, member, start=begin, settings=settings,
            revoked=session.revoked,
        )  # fmt: skip
        session.run(consumer, until_end)
        sum_up(consumer.tally, queue.name, group)
    if session.trouble:
        raise Refused(session.trouble)


def sum_up(tally: Counters, queue: str, group: str) -> None:
    """The last word of a member that has left."""
    kept = f", {tally.dead_lettered} went to the dead letters" if tally.dead_lettered else ""
    skipped = f", {tally.skipped} {'was' if tally.skipped == 1 else 'were'} skipped" if tally.skipped else ""
    handled = counted(tally.handled - tally.dead_lettered - tally.skipped, "message")
    note(f"{group} on {queue}: handled {handled}{kept}{skipped}")
