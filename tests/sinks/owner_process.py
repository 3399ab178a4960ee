"""One owner in a process of its own, which kills itself at a given step. Its rows are in a file."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pxrs.model import Batch, Grant, Owner
from tests.sinks.support import Place, Rows, before_each_step, live


class StoredRows(Rows):
    """Rows that outlive their process."""

    path: Path

    @classmethod
    def load(cls, path: Path, end: int) -> StoredRows:
        values: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        rows = cls(end, **{name: {int(key): value for key, value in of.items()} for name, of in values.items()})
        rows.path = path
        return rows

    def save(self) -> None:
        values = {"checkpoints": self.checkpoints, "epochs": self.epochs, "notes": self.notes}
        self.path.with_suffix(".new").write_text(json.dumps(values))
        os.replace(self.path.with_suffix(".new"), self.path)

    def claim(self, owner: Owner) -> list[Grant]:
        found = super().claim(owner)
        self.save()
        return found

    def commit(self, batch: Batch, note: str) -> bool:
        done = super().commit(batch, note)
        self.save()
        return done


def main(kind: str, directory: Path, at: int, end: int) -> None:
    def hook(number: int) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)

    rows = StoredRows.load(directory / "rows.json", end)
    with Place(directory, kind).sink() as sink, before_each_step(hook):
        live(rows, sink, os.urandom(16).hex())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
