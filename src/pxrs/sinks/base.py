"""What the sinks have in common: the walk of one batch over a staging directory, and the note that names it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from pxrs.errors import Damaged, Fenced, Refused, Unavailable
from pxrs.model import Batch, Grant
from pxrs.sinks.output import collected
from pxrs.sinks.staging import Staging


class Note(NamedTuple):
    """What the rows remember of a committed batch: enough to show it, for an owner that is set up otherwise too."""

    sink: str
    target: str
    staging: str
    batch: str

    @property
    def text(self) -> str:
        return json.dumps({"format": 1, **self._asdict()})

    @classmethod
    def parse(cls, text: str) -> Note | None:
        """None: there was nothing to show, and the note only makes its commit recognisable."""
        try:
            values = json.loads(text) if text else {}
            return cls(**{field: str(values[field]) for field in cls._fields}) if "sink" in values else None
        except (ValueError, KeyError, TypeError) as error:
            raise Damaged(f"the note {text!r} beside a checkpoint is not one of pxrs.sinks") from error


@contextmanager
def _explained(directory: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"the sink that stages in {directory}: {error}") from error


class StagedSink(ABC):
    """A sink over a staging directory. What it holds in memory is only a help: all that counts is in the files."""

    kind: ClassVar[str]

    def __init__(self, target: str, staging: str) -> None:
        self.target = target
        self._staging = Staging(staging)

    @abstractmethod
    def _write(self, batch: Batch, output: Any, data: str) -> None:
        """Write a table, or a big Spark DataFrame, into the new directory ``data``."""

    @abstractmethod
    def _show(self, staging: Staging, note: Note) -> None:
        """Let readers see the sealed files of a committed batch; somebody else may be doing the same."""

    def stage(self, batch: Batch, output: Any) -> str:
        """Write the output of a batch aside, durably. Returns the note to commit; "" if there are no rows."""
        output = collected(output, batch.rows)
        if isinstance(output, pa.Table) and not output.num_rows:
            return ""
        with _explained(self._staging.root):
            data = self._staging.begin(batch)
            try:
                self._write(batch, output, data)
                if self._staging.seal(batch.name):
                    return Note(self.kind, self.target, self._staging.root, batch.name).text
            except Exception as error:
                self._clear(batch, error)
                raise
            self._clear(batch)
        return ""

    def _clear(self, batch: Batch, cause: Exception | None = None) -> None:
        if not self._staging.clear(batch.name):
            raise Fenced(f"batch {batch.name} was cleared away: one of its partitions has a new owner") from cause

    def publish(self, note: str) -> None:
        """Show what a committed note names. Harmless if it was shown before, here or elsewhere."""
        found = Note.parse(note)
        if found is None:
            return
        staging = Staging(found.staging)
        with _explained(found.staging):
            if staging.holds(found.batch):
                if not self._can_show(found):
                    raise Refused(
                        f"{staging.data(found.batch)} was committed for another sink ({found.sink} {found.target}) and "
                        "not shown yet: run the group with that sink once; or delete it, if nobody wants it"
                    )
                self._show(staging, found)
            staging.finish(found.batch)

    def _can_show(self, note: Note) -> bool:
        return note.sink == self.kind

    def discard(self, batch: Batch) -> None:
        """Remove what was staged for a batch that failed or was refused. Harmless if nothing was."""
        with _explained(self._staging.root):
            self._staging.clear(batch.name)

    def recover(self, queue: str, log: str, group: str, grant: Grant, note: str) -> None:
        """A partition was claimed: show what its note names, and clear away what earlier owners left unfinished."""
        self.publish(note)
        found = Note.parse(note)
        with _explained(self._staging.root):
            self._staging.clear_dead(queue, log, group, grant, keep=found.batch if found else "")
