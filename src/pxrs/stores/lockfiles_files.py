"""From changes to files: everything that may fail for want of space is prepared aside, then only names change."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress

from pxrs.clients.files import overwrite, put_in_place, sync_file_system, sync_path
from pxrs.stores.lockfiles_journal import Change, Changes
from pxrs.stores.lockfiles_rows import RowFiles
from pxrs.stores.lockfiles_view import View, hold, is_held, view_of

SPARES = 512
"""So many files are kept for the next write. On many file systems a new file costs far more than a new content."""


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
            sync_path(path)
        directories = {above for path in paths for above in self._above(path)}
        for directory in sorted(directories, key=len, reverse=True):
            sync_path(directory)

    def _above(self, path: str) -> Iterable[str]:
        while path != self._directory:
            path = os.path.dirname(path)
            yield path

    def _prepare_offset(self, view: View, change: Change, before: Mapping[str, bytes | None]) -> None:
        row = view.row(change.stored.value if change.stored else None)
        text = view.offset_text(row)
        if text is not None and not (
            change.key in before and view.row(before[change.key]).checkpoint == row.checkpoint
        ):
            self._aside(self._path(view.offset), text.encode())

    def _show(self, view: View, change: Change, before: Mapping[str, bytes | None]) -> None:
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
