"""A bell in a directory that may be emptied under us: whoever waits then hangs up a new one."""

from __future__ import annotations

import os
import threading

from pxrs.clients.bell import Bell
from pxrs.errors import Unavailable


class LastingBell:
    """Rings and is heard like ``Bell``, also after its directory was deleted and made again."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._bell = Bell(directory)
        self._file: int | None = None  # the directory that is listened to: open, so that its number is not given away
        self._closed = False

    def listening(self) -> Bell:
        """The bell, which hears the rings of other processes from now on."""
        with self._lock:
            if not self._closed and (self._file is None or os.fstat(self._file).st_nlink == 0):
                self._hang_up()
            return self._bell

    def ring(self) -> None:
        bell = self._bell
        bell.ring()
        if bell is not self._bell:  # it was taken down meanwhile, perhaps before it could be heard
            self._bell.ring()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._take_down()

    def after_fork(self) -> None:
        """In a forked child: lock, watch and file are the parent's."""
        self._lock = threading.Lock()
        self._bell.after_fork()
        self._close_file()

    def _hang_up(self) -> None:
        before, self._bell = self._bell, Bell(self._directory)
        before.close()
        self._close_file()
        self._bell.listen()
        try:
            self._file = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"{self._directory} cannot be watched: {error.strerror}") from error

    def _take_down(self) -> None:
        self._bell.close()
        self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
