"""The base of sinks that stage: the walk of one batch over a staging directory, and the note that names it."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from pxrs.errors import Damaged, Fenced, NewerFormat, Refused
from pxrs.model import Batch, Grant
from pxrs.runtime.ports.sink import Sink, check_sink
from pxrs.sinks.local_files import explained
from pxrs.sinks.output import collected
from pxrs.sinks.staging import Staging, check_seal

FORMAT = 1


class Note(NamedTuple):
    """The note of a committed batch in the rows: enough to show it, also for an owner with another set-up.

    ``place`` is the id of the staging directory and ``seal`` the checksum of what is staged; "" in notes up to 0.5.1.
    """

    sink: str
    target: str
    staging: str
    batch: str
    place: str = ""
    seal: str = ""

    @property
    def text(self) -> str:
        return json.dumps({"format": FORMAT, **self._asdict()})

    @property
    def is_in_directory(self) -> bool:
        """Whether the batch waits in a directory, where any sink can look; those of ``SqlSink`` do not."""
        return os.path.isabs(self.staging)

    @classmethod
    def parse(cls, text: str) -> Note | None:
        """None: there was nothing to show, and the note only makes its commit recognisable."""
        try:
            values = json.loads(text) if text else {}
        except (ValueError, RecursionError) as error:
            raise _damaged(text) from error
        number = values.get("format", FORMAT) if isinstance(values, dict) else None
        if type(number) is not int or number < 1:
            raise _damaged(text)
        if number > FORMAT:
            raise NewerFormat(f"the note {text!r} beside a checkpoint has format {number}: update this version of PXRS")
        if "sink" not in values:
            return None
        found = [values.get(field, cls._field_defaults.get(field)) for field in cls._fields]
        if not all(isinstance(value, str) for value in found):
            raise _damaged(text)
        return cls(*map(str, found))


def _damaged(text: str) -> Damaged:
    return Damaged(f"the note {text!r} beside a checkpoint is not one of pxrs.sinks")


class StagedSink(ABC):
    """A sink over a staging directory. What it holds in memory is only a help: all that counts is in the files."""

    kind: ClassVar[str]

    def __init__(self, target: str, staging: str, instead_of: Sink | None = None) -> None:
        check_sink(instead_of)
        self.target = target
        self._staging = Staging(staging)
        self._instead_of = instead_of

    @abstractmethod
    def _write(self, batch: Batch, output: Any, data: str) -> None:
        """Write a table, or a big Spark DataFrame, into the new directory ``data``."""

    @abstractmethod
    def _check_empty(self, output: pa.Table) -> None:
        """Refuse columns without any row for which each row would be refused, in the same words. The type of a column
        that is null is not known: Arrow makes it from an empty list."""

    @abstractmethod
    def _show(self, staging: Staging, note: Note) -> None:
        """Let readers see the sealed files of a committed batch; somebody else may be doing the same."""

    def stage(self, batch: Batch, output: Any) -> str:
        """Write the output of a batch aside, durably. Returns the note to commit; "" if there are no rows."""
        output = collected(output, batch.rows)
        if isinstance(output, pa.Table) and not output.num_rows:
            if output.column_names:
                self._check_empty(output)
            return ""
        return self._stage(batch, output)

    def _stage(self, batch: Batch, output: Any) -> str:
        staging = self._staging
        with explained(staging.root):
            data = staging.begin(batch)
            try:
                self._write(batch, output, data)
                if seal := staging.seal(batch.name):
                    return Note(self.kind, self.target, staging.root, batch.name, staging.place, seal).text
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
        if not self._can_show(found) and self._instead_of is not None:
            self._instead_of.publish(note)
            return
        if not found.is_in_directory:
            raise _of_another(found)
        staging = self._staging if found.staging == self._staging.root else Staging(found.staging)
        with explained(found.staging):
            staging.check_place(found.place, found.batch)
            if staging.holds(found.batch):
                if not self._can_show(found):
                    raise _of_another(found)
                if found.seal:  # notes up to 0.5.1 have none
                    check_seal(staging.data(found.batch), found.seal, lambda file: self._is_shown(found, file))
                self._show(staging, found)
            staging.finish(found.batch)

    def _can_show(self, note: Note) -> bool:
        return note.sink == self.kind

    def _is_shown(self, note: Note, file: str) -> bool:  # noqa: ARG002 - for sinks that show file after file
        """Whether a file of a batch that is being shown is where readers see it already."""
        return False

    def discard(self, batch: Batch) -> None:
        """Remove what was staged for a batch that failed or was refused. Harmless if nothing was."""
        with explained(self._staging.root):
            self._staging.clear(batch.name)

    def recover(self, queue: str, log: str, group: str, grant: Grant, note: str) -> None:
        """A partition was claimed: show what its note names, and clear away what earlier owners left unfinished."""
        self.publish(note)
        found = Note.parse(note)
        with explained(self._staging.root):
            self._staging.clear_dead(queue, log, group, grant, keep=found.batch if found else "")


def refuse_others(note: Note) -> None:
    """Refuse output that another sink has committed and perhaps not shown, so that it is not lost in silence."""
    if note.is_in_directory:
        staging = Staging(note.staging)
        with explained(note.staging):
            staging.check_place(note.place, note.batch)
            if not staging.holds(note.batch):
                return
    raise _of_another(note)


def _of_another(note: Note) -> Refused:
    kind = {"parquet": "ParquetSink", "queue": "QueueSink", "sql": "SqlSink"}.get(note.sink, note.sink)
    state = "was not shown yet" if note.is_in_directory else "may not have been shown yet"
    return Refused(
        f"batch {note.batch} was committed for another sink ({kind}, {note.target}) and {state}. Name that sink, as it "
        f"was, beside the new one, and it shows the batch: instead_of={kind}(...). It does no harm to leave it there"
    )
