"""Whose fault it is that a batch cannot be done: its sink's, its log's, or that of its messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pxrs.errors import (
    BadCheckpoint,
    BadSetting,
    Damaged,
    HandlerFailed,
    Mismatch,
    NotFound,
    PxrsError,
    Refused,
    Unavailable,
)
from pxrs.logs.base import Log
from pxrs.model import Batch, Range
from pxrs.runtime.parking import as_trouble, refuses_message
from pxrs.runtime.sink import Sink

_OF_SINK = (OSError, Unavailable, Damaged, NotFound, Mismatch)
"""A disk, a database, a table or a directory that is away for a while: no message is to blame."""


class CannotWrite(PxrsError):
    """The output cannot be written, whatever the messages are."""

    def __init__(self, trouble: PxrsError) -> None:
        super().__init__(str(trouble))
        self.trouble = trouble


def stage_output(sink: Sink, batch: Batch, output: Any) -> str:
    """The sink's note of what it wrote aside; CannotWrite if it could not, whatever the output is."""
    try:
        return sink.stage(batch, output)
    except _OF_SINK as error:
        raise CannotWrite(as_trouble(error)) from error


def as_refusal(error: Refused | HandlerFailed) -> PxrsError:
    """The error of a commit whose output was refused at its end, and so rolled back; else it is raised again."""
    if isinstance(error, BadCheckpoint | BadSetting):
        raise error
    return error if refuses_message(error) else CannotWrite(error)


def unreadable(log: Log, ranges: Iterable[Range]) -> dict[int, Exception]:
    """The partitions of these ranges that their log cannot answer for now, with the reason."""
    found: dict[int, Exception] = {}
    for part in ranges:
        try:
            log.bounds(part.partition)
        except (Unavailable, Damaged, OSError) as error:
            found[part.partition] = error
    return found


def can_answer(log: Log) -> bool:
    """Whether the log answers at all."""
    try:
        log.bounds(0)
    except Exception:
        return False
    return True


def nothing_to_publish(batch: Batch) -> str:
    """The note of a batch that has nothing to publish."""
    return f'{{"batch": "{batch.name}"}}'
