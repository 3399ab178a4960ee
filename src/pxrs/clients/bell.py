"""A bell that processes of one machine ring for each other: a file in a directory of its own, touched to ring.

A ring is a hint that something may be new. It can be lost (the ringer dies first) and it can come for nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from pxrs.clients.inotify import watch_directory
from pxrs.errors import Unavailable


class Bell:
    """Listeners block in the kernel. Those of the ringing process are woken directly, without the file."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._rung = threading.Condition()
        self._heard = 0
        self._cancel: Callable[[], None] | None = None
        self._closed = False

    def listen(self) -> None:
        """From now on rings of other processes are heard too. Nothing happens the second time."""
        with self._rung:
            if self._cancel is None and not self._closed:
                try:
                    os.makedirs(self._directory, exist_ok=True)
                except OSError as error:
                    raise Unavailable(f"{self._directory} cannot be made: {error.strerror}") from error
                self._cancel = watch_directory(self._directory, self._hear)

    @property
    def heard(self) -> int:
        """How many rings came so far. Ask before looking at what the bell is for: ``wait`` needs it."""
        return self._heard

    def ring(self) -> None:
        self._hear()
        # No directory means that no other process has ever listened.
        with suppress(OSError):
            file = os.open(os.path.join(self._directory, "ring"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                os.write(file, b"!")
            finally:
                os.close(file)

    def wait(self, heard: int, timeout: float) -> bool:
        """True as soon as there were more rings than ``heard``; False when closed or after the time-out."""
        with self._rung:
            self._rung.wait_for(lambda: self._closed or self._heard != heard, max(0.0, timeout))
            return not self._closed and self._heard != heard

    def pause(self, seconds: float) -> None:
        """Let that much time pass, unless the bell is closed."""
        with self._rung:
            self._rung.wait_for(lambda: self._closed, max(0.0, seconds))

    def close(self) -> None:
        with self._rung:
            self._closed = True
            cancel, self._cancel = self._cancel, None
            self._rung.notify_all()
        if cancel is not None:
            cancel()

    def after_fork(self) -> None:
        """In a forked child: the parent's watch and lock are not ours."""
        self._rung = threading.Condition()
        self._cancel = None

    def _hear(self) -> None:
        with self._rung:
            self._heard += 1
            self._rung.notify_all()
