"""The journal and the mutex of a directory of lock files.

A write is one line in the journal first, synced once; then files are renamed. A line means that the change has
happened. If lines are not yet in the files (their writer was killed, or the machine was started anew), the next
process that takes the mutex puts them there. Its progress is in the mutex file. When the journal has grown, the files
are synced, and it begins anew.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from zlib import crc32

from pxrs.errors import Damaged, Unavailable
from pxrs.io.clock import SystemClock
from pxrs.io.durable import sync_path, write_all, write_file
from pxrs.io.locks import close_held, open_held, wait_for_lock
from pxrs.io.process import boot_id
from pxrs.stores.lockfiles.process import ProcessIdentity
from pxrs.stores.lockfiles.rows import FileRow

LONGEST = 8_388_608
"""A journal of this many bytes begins anew."""


class RowChange(NamedTuple):
    """A row as it shall be from now on, and the process that wants it so. ``stored`` is None where it is deleted."""

    key: str
    stored: FileRow | None
    by: ProcessIdentity | None


Changes = Sequence[RowChange]
"""The changes of one write, which happen together."""


class Position(NamedTuple):
    """The part of the journal that is in the files: its bytes, with the last checksum, on this boot."""

    size: int
    chain: int
    boot: str

    def as_bytes(self) -> bytes:
        return f"journal {self.size:012d} {self.chain:08x} boot {self.boot}\n".encode()


class Journal:
    """The journal of one directory. Each call needs the mutex, and its open file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def position(self, mutex: int) -> Position | None:
        """The position of the files; None if they have to be made again from all of the journal."""
        words = os.pread(mutex, 200, 0).decode("ascii", "replace").split()
        if len(words) != 5 or words[4] != boot_id():
            return None  # new, or of an earlier boot: what was not synced then may be lost
        position = Position(int(words[1]), int(words[2], 16), words[4])
        return position if position.size <= self.size() else None

    def size(self) -> int:
        try:
            return os.stat(self.path).st_size
        except FileNotFoundError:
            return 0

    def arrived(self, mutex: int, position: Position) -> None:
        """Note that the files are as the journal says, up to here."""
        if os.pwrite(mutex, position.as_bytes(), 0) != len(position.as_bytes()):
            os.ftruncate(mutex, 0)

    def append(self, changes: Changes, position: Position) -> Position:
        """Write a line and make it durable. An OSError means that nothing was written, InDoubt that it may be."""
        text = json.dumps([_as_json(change) for change in changes], separators=(",", ":")).encode()
        chain = crc32(text, position.chain)
        line = b"%08x %s\n" % (chain, text)
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            _append(fd, line, position.size)
        finally:
            os.close(fd)
        return Position(position.size + len(line), chain, position.boot)

    def create(self) -> None:
        """Make the file if it is not there: its name must be durable before anything in it is."""
        if not os.path.exists(self.path):
            write_file(self.path, b"", sync=True)
            sync_path(os.path.dirname(self.path))
            sync_path(os.path.dirname(os.path.dirname(self.path)))

    def rest(self, after: Position) -> tuple[list[RowChange], Position]:
        """The last change of each row that follows, and where they end.

        A torn last line is a write that was never answered.
        """
        try:
            with open(self.path, "rb") as file:
                file.seek(after.size)
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            lines = [b""]
        found: dict[str, RowChange] = {}
        size, chain = after.size, after.chain
        for number, line in enumerate(lines[:-1]):
            told, _, text = line.partition(b" ")
            if told != b"%08x" % crc32(text, chain):
                if number < len(lines) - 2 or lines[-1]:
                    raise Damaged(f"{self.path}: the line at byte {size} is damaged, and others follow it")
                break
            found.update((row["key"], _from_json(row)) for row in json.loads(text))
            size, chain = size + len(line) + 1, int(told, 16)
        return list(found.values()), Position(size, chain, after.boot)

    def cut(self, position: Position) -> None:
        """Take away what follows: a line that was never finished."""
        if self.size() > position.size:
            os.truncate(self.path, position.size)


class InDoubt(Exception):
    """The line was written, but not synced: nobody knows whether it is on the disk."""


def _append(fd: int, line: bytes, size: int) -> None:
    try:
        write_all(fd, line, size + len(line))
    except OSError as error:
        if not _take_back(fd, size):
            raise InDoubt(f"write: {error.strerror}") from error
        raise
    try:
        os.fdatasync(fd)
    except OSError as error:
        _take_back(fd, size)  # out of sight at least; after a power cut the disk may show it
        raise InDoubt(f"sync: {error.strerror}") from error


def _take_back(fd: int, size: int) -> bool:
    try:
        os.ftruncate(fd, size)
    except OSError:
        return False
    return True


def _as_json(change: RowChange) -> dict[str, Any]:
    fields: dict[str, Any] = {"key": change.key, "by": change.by}
    if change.stored is None:
        return fields
    version, value, life = change.stored
    fields |= {"version": version, "life": life}
    try:
        return fields | {"text": value.decode()}
    except UnicodeDecodeError:
        return fields | {"base64": base64.b64encode(value).decode()}


def _from_json(row: dict[str, Any]) -> RowChange:
    by = ProcessIdentity(*row["by"]) if row["by"] else None
    if "version" not in row:
        return RowChange(row["key"], None, by)
    value = row["text"].encode() if "text" in row else base64.b64decode(row["base64"])
    life = ProcessIdentity(*row["life"]) if row["life"] else None
    return RowChange(row["key"], FileRow(row["version"], value, life), by)


# ---- the mutex ------------------------------------------------------------------------------------------------------
# It is held for the moment of a read or a write, and freed by the kernel when its holder dies. Its file is never
# deleted: a process that opened it before a delete would hold another lock than one that opens it after.


_CLOCK = SystemClock()


class Mutex:
    """The lock of one directory. Threads queue here first, so that only processes compete for the file."""

    def __init__(self, path: str, seconds: float) -> None:
        self.path = path
        self._seconds = seconds
        self._threads = threading.Lock()

    @contextmanager
    def held(self) -> Iterator[int]:
        """Hold it; the block gets the open file. Unavailable if another holds it for too long."""
        deadline = _CLOCK.monotonic() + self._seconds
        threads = self._threads
        if not threads.acquire(timeout=self._seconds):
            raise self._busy("another thread")
        try:
            fd = self._lock(deadline)
            try:
                yield fd
            finally:
                close_held(fd)
        finally:
            threads.release()

    def after_fork(self) -> None:
        """In a forked child: the thread that may hold it is not here."""
        self._threads = threading.Lock()

    def _lock(self, deadline: float) -> int:
        while True:
            fd = self._open()
            try:
                if not wait_for_lock(fd, deadline):
                    raise self._busy("another process")
                if _is_same(fd, self.path):
                    return fd
            except BaseException:
                close_held(fd)
                raise
            close_held(fd)  # the whole directory was emptied meanwhile: this is not the file that others will lock

    def _open(self) -> int:
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(self.path))
        return open_held(self.path, os.O_RDWR | os.O_CREAT)

    def _busy(self, who: str) -> Unavailable:
        return Unavailable(f"{self.path} is held by {who} for more than {self._seconds:g} s; nothing was written")


def _is_same(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
