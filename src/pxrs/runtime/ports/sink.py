"""The port of a fenced sink: output that is written aside first, and published by the commit of the checkpoints.

The walk of one batch: ``stage`` (aside, durable) → commit of all checkpoints together with the note → ``publish``.
An owner that dies before the commit has shown nothing. One that dies after it has left the note in the rows: the next
owner of any of the batch's partitions finds it there and publishes, before it takes a single message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

from pxrs.errors import BadSetting, Fenced, WentBack
from pxrs.model import Batch, Grant
from pxrs.stores.base import Store


def check_sink(sink: object) -> None:
    """Refuse what could not take output: the path of a directory, as a rule."""
    if sink is not None and not isinstance(sink, Sink):
        raise BadSetting(f"sink = {sink!r}: must be a sink, as pxrs.sinks.ParquetSink({sink!r}) is")


class Overtaken(Fenced):
    """Raised by ``recover``: the sink has seen a later claim of this partition than the given one.

    As a rule the partition has gone to another owner meanwhile, and its claim came first. If the registry knows no
    later claim, it was wiped or restored: ``advice`` says what to do about the sink then.
    """

    def __init__(self, text: str, advice: str) -> None:
        super().__init__(text)
        self._advice = advice

    def as_went_back(self) -> WentBack:
        """The error for a claim that is still the latest one in the registry."""
        return WentBack(f"{self}; the registry knows no later claim: it was wiped or restored. {self._advice}")


@runtime_checkable
class Sink(Protocol):
    """The output of a group, each message's exactly once. One object serves one member; calls may come from any thread.

    Notes that this sink did not make reach it too: those of batches without output, and of other sinks. It leaves
    alone what names nothing of its own.
    """

    def stage(self, batch: Batch, output: Any) -> str:
        """Write the output of a batch aside, durably. Returns the note that says what to publish; "" if nothing is."""

    def publish(self, note: str) -> None:
        """Show what a committed note names. Harmless if it was published before, here or elsewhere."""

    def discard(self, batch: Batch) -> None:
        """Remove what was staged for a batch that failed or was refused. Harmless if nothing was."""

    def recover(self, queue: str, log: str, group: str, grant: Grant, note: str) -> None:
        """A partition was claimed: publish what its note names, and clear away what earlier owners left unfinished.

        Raises Overtaken if a later claim of the partition has come by already.
        """


class Transaction(Protocol):
    """An open transaction of the registry's own database, which holds the output of a batch already."""

    store: Store
    """Swaps through it are part of the transaction: done when it is committed."""

    def commit(self) -> None:
        """Raises Unknown if no answer came, and Unavailable if it was certainly rolled back."""

    def rollback(self) -> None:
        """Give everything up. Harmless after a commit."""


Join = Callable[[], "Transaction | None"]


@runtime_checkable
class JoiningSink(Sink, Protocol):
    """A sink that can write into the registry's own database: then rows and checkpoints are one transaction."""

    def bind(self, store: Store) -> None:
        """Called once, before the first batch, with the place where the checkpoints are stored."""

    def join(self, note: str) -> Transaction | None:
        """The transaction that holds the output which was staged under this note, begun anew if it was lost.
        None: the checkpoints are elsewhere, or there is no output."""


def bind(sink: Sink | None, store: Store) -> None:
    if isinstance(sink, JoiningSink):
        sink.bind(store)


def joining(sink: Sink | None, note: str | None) -> Join | None:
    """The way in which the commit of this note joins the sink's transaction; None if it does not."""
    return partial(sink.join, note) if isinstance(sink, JoiningSink) and note else None


def nothing_to_publish(batch: Batch) -> str:
    """The note of a batch that has nothing to publish: it only makes the commit recognisable."""
    return f'{{"batch": "{batch.name}"}}'
