"""Output on its way, in a directory: written aside under a plan, and cleared away once nobody can commit it.

    ROOT/plans/BATCH.json   whose it is: queue, log, group, the epoch of each partition
    ROOT/BATCH/             its data; what is complete is named part-BATCH-*

The plan is durable before the first byte of data, and the data goes before its plan does. So data without a plan
belongs to nobody, and a plan whose epoch was overtaken can never be committed.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pxrs.errors import BadSetting, Unavailable
from pxrs.logs.durable import create_file, make_directories, sync_directory
from pxrs.model import Batch, Grant

logger = logging.getLogger(__name__)

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")  # one letter is no scheme
_TRIES = 5


def local_directory(place: str | os.PathLike[str]) -> str:
    """The absolute path that a path or a ``file:`` URL names."""
    text = os.fspath(place)
    if scheme := _SCHEME.match(text):
        rest = text[scheme.end() :]
        remote = rest.startswith("//") and not rest.startswith("///")
        if scheme[1].lower() != "file" or remote:
            raise BadSetting(f"directory = {text!r}: a sink writes to a local directory; give a path or file:DIR")
        text = rest.removeprefix("//")
    if not text:
        raise BadSetting(f"directory = {place!r} names no directory")
    path = os.path.abspath(text)
    if os.path.lexists(path) and not os.path.isdir(path):
        raise BadSetting(f"directory = {path!r} is a file; a sink needs a directory of its own")
    above = os.path.dirname(path)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise BadSetting(f"directory = {path!r} cannot be made: {above} is a file")
    return path


def staging_in(place: str | os.PathLike[str]) -> str:
    """Where output is staged when a user names a directory: below it, since a sweep removes what it does not know."""
    return os.path.join(local_directory(place), "_staging")


def visible_files(top: str) -> Iterator[str]:
    """The files below, in the order of their names, without what readers skip. What vanishes meanwhile is not there."""
    for folder, folders, files in os.walk(top, onerror=_raise_unless_gone):
        folders[:] = sorted(name for name in folders if not name.startswith(("_", ".")))
        yield from (os.path.join(folder, name) for name in sorted(files) if not name.startswith(("_", ".")))


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # a directory that cannot be read must not pass for an empty one
        raise error


def is_missing(path: str) -> bool:
    """Whether it is surely not there; ``os.path.exists`` also says no when it cannot tell."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    return False


class Staging:
    """A directory of staged output, which holds nothing else. Any number of owners may use it at a time."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._plans = os.path.join(root, "plans")

    def data(self, name: str) -> str:
        """Where the data of a batch stands."""
        return os.path.join(self.root, name)

    def _plan(self, name: str) -> str:
        return os.path.join(self._plans, name + ".json")

    def begin(self, batch: Batch) -> str:
        """Say durably whose output is about to be written. Returns the directory for it, which is not made yet."""
        epochs = {str(part.partition): part.epoch for part in batch.ranges}
        plan = {"format": 1, "queue": batch.queue, "log": batch.log, "group": batch.group, "epochs": epochs}
        data = self.data(batch.name)
        make_directories(self._plans)
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):  # a sweep took the unfinished file for a dead one's
                create_file(self._plan(batch.name), json.dumps(plan).encode(), data + ".plan")
                return data
        raise Unavailable(f"{self._plans}: a plan vanishes as soon as it is written")

    def seal(self, name: str) -> list[str]:
        """Make durable what was written, and give the files the names under which they can be shown."""
        data = self.data(name)
        sealed = []
        for number, path in enumerate(list(visible_files(data))):
            file = f"part-{name}-{number:05d}{os.path.splitext(path)[1]}"
            sealed.append(os.path.join(os.path.dirname(path), file))
            if sealed[-1] != path:
                os.rename(path, sealed[-1])
            _sync_file(sealed[-1])
        for folder, _, _ in os.walk(data, topdown=False):
            sync_directory(folder)
        sync_directory(self.root)
        return sealed

    def files(self, name: str) -> list[str]:
        """The sealed files of a batch, by their paths. What a late task of Spark leaves beside them does not count."""
        return [path for path in visible_files(self.data(name)) if os.path.basename(path).startswith(f"part-{name}-")]

    def holds(self, name: str) -> bool:
        """Whether a committed batch is still to be shown."""
        if is_missing(self.root):
            raise Unavailable(
                f"{self.root} is not here, and the last committed batch, {name}, may wait in it: make the directory "
                "reachable on this machine; if it was deleted on purpose, create it again, empty"
            )
        return not is_missing(self.data(name))

    def finish(self, name: str) -> None:
        """Forget a batch that was shown. Its data goes at once: no part of it can be taken for the whole later."""
        done = self.data(name) + ".done"
        shutil.rmtree(done, ignore_errors=True)
        with suppress(FileNotFoundError):  # somebody else finishes it too
            os.rename(self.data(name), done)
        shutil.rmtree(done, ignore_errors=True)  # what stays is swept later
        self._drop_plan(name)

    def clear(self, name: str) -> bool:
        """Remove a batch that will never be committed. Whether its plan was still there."""
        shutil.rmtree(self.data(name), ignore_errors=True)
        return self._drop_plan(name)

    def _drop_plan(self, name: str) -> bool:
        try:
            os.unlink(self._plan(name))
        except FileNotFoundError:
            return False
        return True

    def clear_dead(self, queue: str, log: str, group: str, grant: Grant, keep: str) -> None:
        """Remove what earlier owners of this partition began and can never commit, and what belongs to nobody."""
        whose = {"queue": queue, "log": log, "group": group}
        for name, plan in self._read_plans():
            epoch = plan["epochs"].get(str(grant.partition), grant.epoch)
            if name != keep and epoch < grant.epoch and whose.items() <= plan.items():
                self.clear(name)
        self._sweep()

    def _read_plans(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for file in _names_in(self._plans):
            path = os.path.join(self._plans, file)
            try:
                with open(path, "rb") as opened:
                    plan = json.loads(opened.read())
            except FileNotFoundError:  # finished meanwhile
                continue
            except ValueError:
                plan = None
            if isinstance(plan, dict) and plan.get("format") == 1:
                yield file.removesuffix(".json"), plan
            else:  # what is not understood is not deleted
                logger.warning("%s is no plan that this version of PXRS knows: it stays, with its data", path)

    def _sweep(self) -> None:
        """Remove data without a plan: of a task that wrote on after its driver's end, or half removed."""
        for name in _names_in(self.root):
            if self.data(name) != self._plans and is_missing(self._plan(name)):
                shutil.rmtree(self.data(name), ignore_errors=True)
                with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                    os.unlink(self.data(name))


def _names_in(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def _sync_file(path: str) -> None:
    """Make durable what somebody else wrote, as Spark's tasks and Arrow do."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
