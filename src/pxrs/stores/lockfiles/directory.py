"""One directory of lock files: its mutex, its journal and its files, so that no write is ever half done."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import NamedTuple

from pxrs.errors import FORBIDDEN, Damaged, NewerFormat, PxrsError, Refused, Unavailable, disk_text
from pxrs.io.durable import sync_path, write_all, write_file
from pxrs.io.file_system import overwrite, put_in_place, sync_file_system
from pxrs.io.process import boot_id
from pxrs.model import Partition
from pxrs.rules.row_format import decode_partition
from pxrs.stores.lockfiles.journal import LONGEST, Changes, Journal, Mutex, Position, RowChange
from pxrs.stores.lockfiles.process import ProcessIdentity, is_dead
from pxrs.stores.lockfiles.rows import FileRow, RowFiles

logger = logging.getLogger(__name__)

FORMAT = 1


class HeldMutex(NamedTuple):
    """The right to read and write: the open mutex, and how far the files are (as far as the journal)."""

    mutex: int
    position: Position


class Directory:
    """The directory. ``caught_up`` counts the rows that killed processes have left to be finished here."""

    def __init__(self, directory: str, seconds: float, other_machines: bool) -> None:
        self.directory = directory
        self.caught_up = 0
        self._other_machines = other_machines
        self.mutex = Mutex(self._path("mutex"), seconds)
        self._journal = Journal(self._path("journal"))
        self._files = Files(directory)

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, "registry", name)

    def prepare(self) -> None:
        """Make the directory a registry, unless it is one. Many processes may do this at the same time."""
        self._check_format()
        with self.held():
            self._lay_out()

    @contextmanager
    def held(self) -> Iterator[HeldMutex]:
        """Hold the mutex, with all files as the journal says."""
        try:
            with self.mutex.held() as mutex:
                yield HeldMutex(mutex, self._catch_up(mutex))
        except OSError as error:
            where = error.filename or self.directory
            why = disk_text(error, where) if error.errno in FORBIDDEN else f"{where}: {error.strerror or error}"
            raise Unavailable(f"{why}; nothing was written") from error

    # ---- reading ----------------------------------------------------------------------------------------------------

    def read(self, key: str) -> FileRow | None:
        return self._living(key, self._files.rows.read(key))

    def scan(self, prefix: str) -> Iterator[tuple[str, FileRow]]:
        for key, stored in self._files.rows.scan(prefix):
            if self._living(key, stored) is not None:
                yield key, stored

    def _living(self, key: str, stored: FileRow | None) -> FileRow | None:
        """A row of a process that is proven dead is no row any more, and goes away."""
        if stored is None or stored.life is None or not is_dead(stored.life, self._other_machines):
            return stored
        remove(self._files.rows.path(key))
        return None

    # ---- writing ----------------------------------------------------------------------------------------------------

    def commit(self, held: HeldMutex, changes: Changes, before: Mapping[str, bytes | None]) -> None:
        """Carry the changes out, all or none. InDoubt: nobody knows whether they will be seen after a power cut."""
        self._lay_out()
        self._check_queue(changes, before)
        self._files.prepare(changes, before)
        position = self._journal.append(changes, held.position)
        try:
            self._files.apply(changes, before)
            self._journal.arrived(held.mutex, position)
            self._files.tidy()
        except OSError:
            # It has happened: the next one that holds the mutex finishes it from the journal.
            logger.exception("%s: a write that is in the journal could not be put into the files yet", self.directory)
            return
        if position.size > LONGEST:
            self._begin_anew(held.mutex)

    def _catch_up(self, mutex: int) -> Position:
        """Finish what a killed process has begun, and after a start of the machine all that may not be on the disk."""
        position = self._journal.position(mutex)
        if position is not None and position.size == self._journal.size():
            return position
        changes, end = self._journal.rest(position or Position(0, 0, boot_id()))
        self._journal.cut(end)
        self._files.prepare(changes, {})
        self._files.apply(changes, {})
        self._journal.arrived(mutex, end)
        self._files.tidy()
        self.caught_up += len(changes)
        return end

    def _begin_anew(self, mutex: int) -> None:
        """Make the files durable; then the journal is not needed any more."""
        start = Position(0, 0, boot_id())
        try:
            self._files.sync(self._journal.rest(start)[0])
            self._journal.cut(start)
            self._journal.arrived(mutex, start)
        except OSError:
            logger.exception("%s: the journal goes on, since the files could not be synced", self.directory)

    # ---- what the directory is for ----------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        """Lay the directory out: once, and again when it was emptied. From then on it says what it is."""
        self._journal.create()
        if os.path.exists(self._path("format.json")):
            return
        os.makedirs(os.path.join(self.directory, "rows"), exist_ok=True)
        self._note("format.json", json.dumps({"format": FORMAT, "is": "a PXRS registry in plain files"}) + "\n")

    def _check_format(self) -> None:
        try:
            with open(self._path("format.json"), "rb") as file:
                found = json.loads(file.read())["format"]
        except (FileNotFoundError, NotADirectoryError):
            return
        except (ValueError, TypeError, KeyError) as error:
            raise Damaged(f"{self._path('format.json')} does not say which format this registry has") from error
        if found != FORMAT:
            raise NewerFormat(f"{self.directory} has format {found!r}; this version of PXRS knows {FORMAT}")

    def _check_queue(self, changes: Changes, before: Mapping[str, bytes | None]) -> None:
        """Refuse a second queue: the names of locks and offsets have a part for the group, and none for the queue."""
        new = (change.key for change in changes if change.stored and before.get(change.key) is None)
        for view in filter(None, map(view_of, new)):
            served = self._served()
            if served is None:
                self._note("queue", view.queue + "\n")
            elif served != view.queue:
                raise Refused(
                    f"{self.directory} is the registry of {served!r}, and cannot serve {view.queue!r} too: "
                    "give each queue a directory of its own"
                )

    def _served(self) -> str | None:
        try:
            with open(self._path("queue"), encoding="utf-8", newline="") as file:
                return file.read().removesuffix("\n")
        except FileNotFoundError:
            return None

    def _note(self, name: str, text: str) -> None:
        temporary = self._path(name + ".new")
        write_file(temporary, text.encode(), sync=True)
        os.rename(temporary, self._path(name))
        sync_path(os.path.dirname(temporary))


# ---- files that appear whole ----------------------------------------------------------------------------------------


SPARES = 512
"""This many files are kept for the next write. On many file systems a new file costs far more than new content."""


class Files:
    """The files of one directory, but for the journal. Each call needs the mutex."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._spare = os.path.join(directory, "registry", "spare")
        self.rows = RowFiles(os.path.join(directory, "rows"))
        self._renames: list[tuple[str, str]] = []

    def prepare(self, changes: Changes, before: Mapping[str, bytes | None]) -> None:
        """Write the new contents aside. ``before`` has the old values of rows, as far as they are known."""
        os.makedirs(self._spare, exist_ok=True)
        self._renames.clear()
        for change in changes:
            if change.stored is not None:
                self._aside(self.rows.path(change.key), change.stored.as_bytes())
            view = view_of(change.key)
            if view is not None:
                self._prepare_offset(view, change, before)

    def apply(self, changes: Changes, before: Mapping[str, bytes | None]) -> None:
        """Give the prepared files their names, and show who owns what."""
        for spare, path in self._renames:
            put_in_place(spare, path)
        for change in changes:
            if change.stored is None:
                remove(self.rows.path(change.key))
            view = view_of(change.key)
            if view is not None:
                self._show(view, change, before)

    def tidy(self) -> None:
        """Keep some of the files that were replaced: the next ones are written into them."""
        for spare, _ in self._renames[SPARES:]:
            remove(spare)
        self._renames.clear()

    def sync(self, changes: Changes) -> None:
        """Make all files durable that these changes have touched: contents first, then names."""
        if sync_file_system(self._directory):
            return
        paths = {self.rows.path(change.key) for change in changes}
        for view in filter(None, (view_of(change.key) for change in changes)):
            paths |= {self._path(view.lock), self._path(view.offset)}
        for path in sorted(paths):
            with suppress(FileNotFoundError):  # what is gone needs nothing
                sync_path(path)
        directories = {above for path in paths for above in self._above(path)}
        for directory in sorted(directories, key=len, reverse=True):
            with suppress(FileNotFoundError):
                sync_path(directory)

    def _above(self, path: str) -> Iterable[str]:
        while path != self._directory:
            path = os.path.dirname(path)
            yield path

    def _prepare_offset(self, view: View, change: RowChange, before: Mapping[str, bytes | None]) -> None:
        row = view.row(change.stored.value if change.stored else None)
        text = view.offset_text(row)
        if text is not None and not (
            change.key in before and view.row(before[change.key]).checkpoint == row.checkpoint
        ):
            self._aside(self._path(view.offset), text.encode())

    def _show(self, view: View, change: RowChange, before: Mapping[str, bytes | None]) -> None:
        row = view.row(change.stored.value if change.stored else None)
        if row.checkpoint is None:
            remove(self._path(view.offset))
        if change.key in before:
            old = view.row(before[change.key])
            if (old.owner, old.epoch) == (row.owner, row.epoch):
                return
        text, path = view.lock_text(row, change.by), self._path(view.lock)
        if text is None:
            remove(path)
        elif not is_held(path, text):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            hold(path, text)

    def _aside(self, path: str, content: bytes) -> None:
        spare = os.path.join(self._spare, str(len(self._renames)))
        overwrite(spare, content)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._renames.append((spare, path))

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)


def remove(path: str) -> None:
    """Delete a file, if it is there."""
    with suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(path)


# ---- what people look at: a lock file for each partition that is owned, and an offset file for each checkpoint -------
#     consumer_locks/billing/partition-3.lock         owner, epoch, and the process that claimed it
#     consumer_offsets/billing/partition-3.offset     the next offset to process
# Both follow from the partition's row and are made again whenever it is written; no rule ever reads them.


LOCKS, OFFSETS = "consumer_locks", "consumer_offsets"

_KEY = re.compile(r"(?P<queue>.+)/(?P<group>[A-Za-z0-9_][A-Za-z0-9._-]*)/partition/(?P<number>\d{5,9})", re.DOTALL)


class View(NamedTuple):
    """The place where a partition of a group is shown. ``queue`` is the part of the key before the group."""

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
    """Create the lock file, exclusively. An existing one is of an earlier owner, or of a claim that was cut short: the
    row says so, and the caller holds the mutex.
    """
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
