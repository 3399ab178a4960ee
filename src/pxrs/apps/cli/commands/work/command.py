"""``pxrs work``: a Python function as the handler of a group, in several processes that are looked after."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from pxrs.apps.cli import values as words
from pxrs.apps.cli.commands.log.where import LastUrl
from pxrs.apps.cli.options import JoinGroup, OnFailure, RegistryUrl, StartAt, UntilEnd, Verbose, WrongUsage
from pxrs.errors import Refused, masked_url

_LEAVE_SECONDS = 10.0
"""The time that a process needs to leave, beyond the time that its handlers have."""


def work(
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="The function, as module:function.")],
    url: LastUrl,
    group: JoinGroup,
    processes: Annotated[
        int, typer.Option("--processes", min=1, max=1_024, metavar="N", help="How many processes.")
    ] = 1,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Members are NAME-1, NAME-2, ... Default: the name of the host."),
    ] = None,
    deliver: Annotated[
        Literal["message", "list", "arrow"], typer.Option("--deliver", help="What the handler gets at once.")
    ] = "message",
    start: StartAt = "earliest",
    until_end: UntilEnd = False,
    tries: Annotated[int | None, typer.Option("--tries", min=1, metavar="N", help="How often to try.")] = None,
    on_failure: OnFailure = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="For development: start again when a source file changes.")
    ] = False,
    verbose: Verbose = False,
    registry: RegistryUrl = None,
) -> None:
    """Process messages with a Python function, in one or more processes.

    The module is looked for in the working directory first. A process that fails starts again, after 1 s, 2 s and so
    on up to a minute, under its own member name: it takes its own partitions back. SIGTERM or Ctrl-C lets all leave
    cleanly. A process that leaves by itself is not started again.
    """
    from pxrs import load_settings
    from pxrs.apps.cli.commands.work.member import Order
    from pxrs.apps.cli.commands.work.reloading import Sources, places_of
    from pxrs.apps.cli.commands.work.supervisor import Supervisor

    module = _module_of(handler, url)
    words.start(start)
    order = Order(
        handler, url, registry, group, deliver, start, tries, on_failure, until_end, verbose, _checked(group, name)
    )
    sources = Sources(places_of(module)) if reload else None
    patience = load_settings().drain_ms / 1000 + _LEAVE_SECONDS  # the settings are checked by this, too
    code = Supervisor(order, processes, patience, sources).run()
    if code:
        raise typer.Exit(code)


def _module_of(handler: str, url: str) -> str:
    from pxrs.apps.cli.commands.work.handler import split_handler

    try:
        return split_handler(handler)[0]
    except Refused as error:
        swapped = ":" in url and url.partition(":")[0].isidentifier() and "/" in handler
        more = f"; the handler comes before the queue: pxrs work {masked_url(url)} {handler}" if swapped else ""
        raise WrongUsage(f"{error}{more}") from None


def _checked(group: str, name: str | None) -> str:
    """The first part of the members' names. What cannot be a name is refused before anything starts."""
    from pxrs.model import check_name
    from pxrs.runtime.queue.queue import short_host

    check_name("group", group)
    found = short_host() if name is None else name
    check_name("member", f"{found}-1")
    return found
