"""What people look at: a lock file for each partition that is owned, and an offset file for each checkpoint.

    consumer_locks/billing/partition-3.lock         owner, epoch, and the process that claimed it
    consumer_offsets/billing/partition-3.offset     the next offset to process

Both follow from the partition's row and are made again whenever it is written; no rule ever reads them.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from pxrs.errors import PxrsError
from pxrs.io.durable import write_all
from pxrs.model import Partition
from pxrs.rules.row_format import decode_partition
from pxrs.stores.lockfiles.process import ProcessIdentity

LOCKS, OFFSETS = "consumer_locks", "consumer_offsets"

_KEY = re.compile(r"(?P<queue>.+)/(?P<group>[A-Za-z0-9_][A-Za-z0-9._-]*)/partition/(?P<number>\d{5,9})", re.DOTALL)


class View(NamedTuple):
    """Where a partition of a group is shown. ``queue`` is all of the key that stands before the group."""

    queue: str
    group: str
    number: int

    @property
    def lock(self) -> str:
        return f"{LOCKS}/{self.group}/partition-{self.number}.lock"

    @property
    def offset(self) -> str:
        return f"{OFFSETS}/{self.group}/partition-{self.number}.offset"

    @property
    def name(self) -> str:
        return f"partition {self.number} of queue {self.queue.rpartition('/')[2]}, group {self.group}"

    def row(self, value: bytes | None) -> Partition:
        """The row as it is shown: one that is deleted, or not ours to understand, is a partition of nobody."""
        try:
            return decode_partition(self.number, value) if value is not None else Partition(self.number)
        except PxrsError:
            return Partition(self.number)

    def lock_text(self, row: Partition, by: ProcessIdentity | None) -> str | None:
        """None if nobody owns it."""
        if row.owner is None:
            return None
        lines = [self.name, f"owner: {row.owner.id}", f"incarnation: {row.owner.inc}", f"epoch: {row.epoch}"]
        if row.history:
            since = datetime.fromtimestamp(row.history[-1].since, tz=UTC)
            lines.append(f"claimed: {since.isoformat(sep=' ', timespec='milliseconds')}")
        if by is not None:
            lines += [f"pid: {by.pid}", f"process started: {by.started} clock ticks after boot", f"boot id: {by.boot}"]
        return "\n".join(lines) + "\n"

    def offset_text(self, row: Partition) -> str | None:
        """None as long as there is no checkpoint."""
        if row.checkpoint is None:
            return None
        return f"next offset to process: {row.checkpoint}\n{self.name}\n"


def view_of(key: str) -> View | None:
    """The view of a partition's row; None for all other rows."""
    found = _KEY.fullmatch(key)
    return View(found["queue"], found["group"], int(found["number"])) if found else None


def hold(path: str, text: str) -> None:
    """Create the lock file, exclusively. One that stands there is of an earlier owner, or half of a claim that was
    cut short: the row says so, and the caller holds the mutex."""
    while True:
        with suppress(FileNotFoundError):
            os.unlink(path)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            continue
        try:
            content = text.encode()
            write_all(fd, content, len(content))
            return
        finally:
            os.close(fd)


def is_held(path: str, text: str) -> bool:
    """Whether this very claim is shown already."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read() == text
    except (OSError, UnicodeDecodeError):
        return False
