"""Notices which source files have changed: for ``pxrs work --reload``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

_NOT_OURS = {"__pycache__", "node_modules", "site-packages"}


class Sources:
    """The .py files below some directories, as they were at the last look."""

    def __init__(self, places: list[str]) -> None:
        self._places = places
        self._seen = self._look()

    def changed(self) -> str | None:
        """A file that was written, made or deleted since the last look; None if there is none."""
        before, self._seen = self._seen, self._look()
        found = {path for path, _ in before.items() ^ self._seen.items()}
        return min(found) if found else None

    def _look(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for path in (path for place in self._places for path in _python_files(place)):
            try:
                state = os.stat(path)
            except OSError:  # an editor may have replaced it in this moment: the next look sees the new one
                continue
            found[path] = (state.st_mtime_ns, state.st_size)
        return found


def places_of(module: str) -> list[str]:
    """The working directory, and the module's directory if it is installed elsewhere. Nothing is imported."""
    here = os.getcwd()
    try:
        spec = find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        spec = None
    found = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin or ""]
    places = [os.path.abspath(place) for place in found if os.path.isabs(place)]
    return [here, *(place for place in places if os.path.commonpath([place, here]) != here)]


def _python_files(place: str) -> Iterator[str]:
    if place.endswith(".py"):
        yield place
    for directory, below, names in os.walk(place):
        below[:] = [name for name in below if _is_source(os.path.join(directory, name), name)]
        yield from (os.path.join(directory, name) for name in names if name.endswith(".py"))


def _is_source(path: str, name: str) -> bool:
    """Not hidden, no environment of Python, no queue: these have many files, and none that anybody edits."""
    strange = ("pyvenv.cfg", "queue.json")
    return not (name.startswith(".") or name in _NOT_OURS or any(os.path.exists(f"{path}/{file}") for file in strange))
