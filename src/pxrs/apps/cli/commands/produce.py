"""``pxrs produce``: lines, JSON documents or whole files become messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pxrs.apps.cli import message_sources as sources
from pxrs.apps.cli.message_sources import Entry, LineFormat
from pxrs.apps.cli.options import KeySeparator, RegistryUrl, Url, WrongUsage, opened
from pxrs.apps.cli.output import INTERRUPTED_EXIT_CODE, note, progress, show
from pxrs.errors import PxrsError, Refused
from pxrs.runtime.views.tables import Table, counted

if TYPE_CHECKING:
    from pxrs.runtime.producer.producer import Producer, Receipt

_COUNT_EVERY = 10_000


def produce(
    url: Url,
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE", help="Default, and '-': stdin.")] = None,
    format: Annotated[Literal["lines", "json"], typer.Option("--format", "-f", help="What a line is.")] = "lines",
    key: Annotated[str | None, typer.Option("--key", "-k", help="One key for all messages.")] = None,
    key_field: Annotated[
        str | None, typer.Option("--key-field", metavar="NAME", help="The JSON field that is the key; a.b goes deeper.")
    ] = None,
    key_separator: KeySeparator = None,
    whole: Annotated[bool, typer.Option("--files", help="One message per file, its name as the key.")] = False,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header for all messages.")
    ] = None,
    skip: Annotated[
        int,
        typer.Option(
            "--skip", min=0, max=2**62, metavar="N", help="Leave out the first N messages: to go on after a stop."
        ),
    ] = 0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also print how many went where.")] = False,
    registry: RegistryUrl = None,
) -> None:
    """Send messages: one per line of stdin or of files, durable when the command ends.

    Messages without a key are spread over the partitions; with a key they keep their order. Ctrl-C ends it and says
    how many are stored: the first N of the input, which --skip N leaves out the next time. Sending needs no
    registry and records none: the first group does.
    """
    from pxrs.runtime.group.membership import signals

    paths = files or []
    reading = LineFormat(format == "json", key, key_field, key_separator)
    if whole and (not paths or sources.STDIN in paths or key_field or key_separator):
        raise WrongUsage("--files sends whole files: name them, and give no --key-field and no --key-separator")
    headers = _headers(header or [])
    with opened(url, registry) as queue:
        size = sources.total_size(paths)
        with progress("sending", size, "bytes") as advance, queue.producer() as producer:
            counter = _Sending(producer, headers, skip, count=verbose)
            found = sources.whole_files(paths, key) if whole else sources.entries(paths, reading, counter.is_over)
            with signals(counter.end):
                counter.send_all(islice(_counted(found, advance), skip, None))
        print(f"sent {counted(counter.sent, 'message')} to {queue.name!r}")
        if skip and not counter.sent:
            note(f"the input has no message behind the first {skip}, which --skip leaves out")
    if verbose:
        show(Table(["PARTITION", "MESSAGES"], sorted(counter.by_partition.items())), "table")


def _headers(pairs: list[str]) -> dict[str, bytes] | None:
    for pair in pairs:
        if "=" not in pair:
            raise WrongUsage(f"--header {pair!r}: write NAME=VALUE")
        if pair.startswith("="):
            raise WrongUsage(f"--header {pair!r}: it has no name; write NAME=VALUE")
    return {
        name: value.encode(errors="surrogateescape") for name, _, value in (pair.partition("=") for pair in pairs)
    } or None


def _counted(found: Iterator[Entry], advance: Callable[[int], None]) -> Iterator[Entry]:
    for entry in found:
        yield entry
        advance(entry.size)


class _Sending:
    """Sends message by message: a person who types, or a slow pipe, sees each arrive at once."""

    def __init__(self, producer: Producer, headers: dict[str, bytes] | None, skipped: int, count: bool) -> None:
        self.sent = 0
        self.by_partition: Counter[int] = Counter()
        self._producer = producer
        self._headers = headers
        self._skipped = skipped
        self._count = count
        self._receipts: list[Receipt] = []
        self._over = False

    def end(self) -> None:
        """Take nothing more. Called in the middle of anything: a signal has come."""
        self._over = True
        self._producer.give_up()

    def is_over(self) -> bool:
        return self._over

    def send_all(self, found: Iterator[Entry]) -> None:
        try:
            for entry in found:
                if self._over:
                    break
                self._send(entry)
            self._producer.flush()
        except PxrsError as error:
            with suppress(PxrsError):
                self._producer.flush()
            if not self._over:
                raise Refused(f"{error} ({self._result()})") from error
        except KeyboardInterrupt:  # the second one: somebody does not want to wait
            self._over = True
        if self._over:
            note(f"interrupted: {self._result()}")
            raise typer.Exit(INTERRUPTED_EXIT_CODE)
        self._count_receipts()

    def _result(self) -> str:
        """The order is kept: what is stored are the first messages of all."""
        stored = self._producer.stored
        return f"stored {stored} of {self.sent} sent; to go on behind them: --skip {self._skipped + stored}"

    def _send(self, entry: Entry) -> None:
        receipt = self._producer.send(entry.key, entry.value, self._headers)
        self.sent += 1
        if self._count:
            self._receipts.append(receipt)
            if len(self._receipts) >= _COUNT_EVERY:
                self._count_receipts()

    def _count_receipts(self) -> None:
        self.by_partition.update(receipt.result()[0] for receipt in self._receipts)
        self._receipts = []
