"""Arguments that several commands share, and how the commands open a queue."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from pxrs.errors import BadUrl

if TYPE_CHECKING:
    from pxrs.runtime.queue.queue import Queue

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:.*")

Url = Annotated[str, typer.Argument(metavar="URL", help="The queue, as in file:./orders; or set PXRS_URL.")]
RegistryUrl = Annotated[
    str | None,
    typer.Option(
        "--registry", metavar="URL", help="The registry, where it is not beside the log; or set PXRS_REGISTRY."
    ),
]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
Form = Literal["table", "json", "csv"]
Output = Annotated[Form, typer.Option("--output", "-o", help="How to print it.")]
Most = Annotated[int | None, typer.Option("--max", "-n", min=0, metavar="N", help="At most this many messages.")]
OldMost = Annotated[int | None, typer.Option("--limit", "--count", min=0, hidden=True)]
"""Earlier names of ``--max``, which go on working."""
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", "-p", metavar="P", help="Only this partition; may be repeated.")
]
PartitionCount = Annotated[
    int | None, typer.Option("--partitions", metavar="N", help="How many partitions; fixed forever. Default: 16.")
]
HashName = Annotated[str | None, typer.Option("--hash", help="How keys are hashed. Default: xxh64-spark.")]
ReduceName = Annotated[str | None, typer.Option("--reduce", help="From hash to partition. Default: pmod.")]


JoinGroup = Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="The consumer group to join.")]
OwnName = Annotated[str | None, typer.Option("--member", metavar="NAME", help="This member's name.")]
StartAt = Annotated[
    str, typer.Option("--from", metavar="PLACE", help="earliest, latest or a time: where there is no checkpoint yet.")
]
UntilEnd = Annotated[
    bool, typer.Option("--until-end", help="Stop when all that is there now is processed, by this or others.")
]
OnFailure = Annotated[
    Literal["dead-letter", "skip", "stop"] | None, typer.Option("--on-failure", help="After the last try.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say what happens in the group.")]
KeySeparator = Annotated[
    str | None, typer.Option("--key-separator", "-K", metavar="TEXT", help="Each line is KEY, this text, VALUE.")
]


class WrongUsage(typer.BadParameter):
    """The options contradict each other, or one is missing: exit code 2."""

    def format_message(self) -> str:
        return self.message


class QueueCommand(TyperCommand):
    """A command whose first argument is a queue. PXRS_URL replaces it where it is left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        default = os.environ.get("PXRS_URL")
        if default:
            found, _, _ = self.make_parser(ctx).parse_args(args=list(args))
            if not _URL.fullmatch(str(found.get("url") or "")):
                args = [default, *args]
        return super().parse_args(ctx, args)


@contextmanager
def opened(url: str, registry: str | None, create: bool = False, **options: Any) -> Iterator[Queue]:
    """The queue, closed again at the end. Only ``init`` and ``import`` create one."""
    import pxrs

    if create and url.lower().startswith("memory:"):
        raise BadUrl(
            f"{url!r} lives only in this process, which ends with the command: name one that stays, as in file:./orders"
        )
    places: dict[str, Any] = {"url": url} if registry is None else {"log": url, "registry": registry}
    with pxrs.open(**places, create=create, **options) as queue:
        yield queue
