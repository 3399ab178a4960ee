"""The place of lock files: a directory, from which everything can be taken away under its users."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from pxrs.io.watch.file_bell import Bells
from pxrs.stores.lockfiles.journal import Mutex
from pxrs.testing.ground import FileGround

PATIENCE = 30.0


class LockFilesGround(FileGround):
    """What an operator does here holds the mutex, as the page on lock files tells. So no write is cut in two."""

    name: ClassVar[str] = "lockfiles"

    @property
    def url(self) -> str:
        return f"lockfiles:{self.place}"

    @property
    def _mutex(self) -> Path:
        return self.place / "registry" / "mutex"

    def wipe(self) -> None:
        with Mutex(str(self._mutex), PATIENCE).held():
            self._empty()
            self._mutex.write_bytes(b"")

    def save(self) -> None:
        with Mutex(str(self._mutex), PATIENCE).held():
            super().save()

    def restore(self) -> None:
        with Mutex(str(self._mutex), PATIENCE).held():
            self._empty()
            shutil.copytree(self._copy, self.place, dirs_exist_ok=True)

    def _empty(self) -> None:
        """All but the mutex, which others wait for, and the bell, which tells them."""
        for path in (*self.place.iterdir(), *self._mutex.parent.iterdir()):
            if path.name in ("registry", "mutex", "bell"):
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    @contextmanager
    def without_watch(self) -> Iterator[None]:
        """Nobody rings while the block runs."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Bells, "ring", lambda *_: None)
            yield
