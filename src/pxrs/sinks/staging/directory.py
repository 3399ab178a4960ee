"""Output on its way, in a directory: written aside under a plan, and cleared away once nobody can commit it.

    ROOT/plans/place.json   which directory this is (pxrs.sinks.staging.directory)
    ROOT/plans/BATCH.json   whose it is: queue, log, group, the epoch of each partition
    ROOT/plans/*.tmp        a plan on its way; its name says whose it is, and a partition and its epoch
    ROOT/BATCH/             its data; what is complete is named part-BATCH-*
    ROOT/BATCH/_seal.json   sizes and checksums of these files (pxrs.sinks.staging.plan_and_seal)

The plan is durable before the first byte of data, and the data goes before its plan does. So data without a plan
belongs to nobody, and a plan whose epoch was overtaken can never be committed. A plan on its way is judged by the same
rule as a plan: nobody removes that of a living owner.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from pxrs.errors import BadSetting, Damaged, Fenced, Unavailable
from pxrs.io.durable import create_file, make_directories, sync_path, write_file
from pxrs.model import Batch, Grant
from pxrs.sinks.staging import directory as places
from pxrs.sinks.staging.plan_and_seal import (
    Claim,
    check_seal,
    partition_of_unfinished,
    plan_of,
    read_plan,
    unfinished_name,
    write_seal,
)

logger = logging.getLogger(__name__)

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")  # one letter is no scheme
_STORABLE = re.compile("[^\0\ud800-\udc7f\udd00-\udfff]*")
"""Names of files: surrogates from U+DC80 to U+DCFF stand for bytes that are not UTF-8."""
_OLD_UNFINISHED = ".plan"
"""Up to 0.5.1 a plan on its way stood in the root, under the name of its batch with this ending."""


def local_directory(place: object, name: str = "directory") -> str:
    """The absolute path that a path or a ``file:`` URL names; ``name`` is that of the argument."""
    text = os.fspath(place) if isinstance(place, str | os.PathLike) else None
    if not isinstance(text, str):
        raise BadSetting(f"{name} = {place!r}: must be a local directory, as './bills' is")
    if scheme := _SCHEME.match(text):
        rest = text[scheme.end() :]
        remote = rest.startswith("//") and not rest.startswith("///")
        if scheme[1].lower() != "file" or remote:
            raise BadSetting(f"directory = {text!r}: a sink writes to a local directory; give a path or file:DIR")
        text = rest.removeprefix("//")
    if not text:
        raise BadSetting(f"directory = {place!r} names no directory")
    if not _STORABLE.fullmatch(text):
        raise BadSetting(f"directory = {place!r} holds a NUL character or half of a character: no file can have it")
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
    return os.path.join(local_directory(place, "staging"), "_staging")


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
        self.place = ""
        """The id of this directory, once it is known."""
        self._plans = os.path.join(root, "plans")
        self._asking = threading.Lock()
        self._sweeping = threading.Lock()
        self._claims: set[Claim] = set()

    def data(self, name: str) -> str:
        """Where the data of a batch stands."""
        return os.path.join(self.root, name)

    def _plan(self, name: str) -> str:
        return os.path.join(self._plans, name + ".json")

    # ---- which directory it is ----------------------------------------------------------------------------------

    def check_place(self, place: str, batch: str) -> None:
        """Refuse a directory that is not the one in which this batch was staged. "": its note does not say."""
        self.place = place or self.place
        if is_missing(self.root):
            raise Unavailable(
                f"{self.root} is not here, on {os.uname().nodename}, and the last committed batch, {batch}, may wait "
                f"in it{f' ({place})' if place else ''}: make the directory reachable on this machine; if it was "
                "deleted on purpose, create it again, empty"
            )
        if place:
            found = places.ids_in(self._plans)
            if not found and not os.listdir(self.root):  # deleted on purpose, see above
                found = places.make_place(self._plans, place)
            if place not in found:
                raise self._elsewhere(place, found, batch)

    def _elsewhere(self, place: str, found: tuple[str, ...], batch: str) -> BadSetting:
        here = found[0] if found else "without an id"
        return BadSetting(
            f"{self.root} is another directory here ({here}) than where batch {batch} was staged ({place}): all "
            "members of a group need the same staging directory. Mount that one here, or give all members a "
            "staging=DIR that they share. If it is gone for good, write its id into the list "
            f'"formerly" of {self._plans}/{places.FILE}'
        )

    def _take_place(self, batch: Batch) -> None:
        """Before the first batch: the directory is made and gets its id, unless it is known to be another one."""
        if self.place:
            self.check_place(self.place, batch.name)
        else:
            self.place = (places.ids_in(self._plans) or places.make_place(self._plans, places.new_id()))[0]

    # ---- the walk of one batch ----------------------------------------------------------------------------------

    def begin(self, batch: Batch) -> str:
        """Say durably whose output is about to be written. Returns the directory for it, which is not made yet."""
        self._take_place(batch)
        make_directories(self._plans)
        plan, aside = self._plan(batch.name), os.path.join(self._plans, unfinished_name(batch))
        try:
            create_file(plan, plan_of(batch), aside)
        except OSError as error:
            for path in (aside, plan):
                with suppress(OSError):
                    os.unlink(path)
            if isinstance(error, FileNotFoundError) and not is_missing(self._plans):
                raise Fenced(f"batch {batch.name}: one of its partitions has a new owner") from error
            raise
        return self.data(batch.name)

    def seal(self, name: str) -> str:
        """Make durable what was written, under the names by which it can be shown. Returns the checksum of its seal;
        "" if there is nothing."""
        data = self.data(name)
        sealed = []
        for number, path in enumerate(list(visible_files(data))):
            file = f"part-{name}-{number:05d}{os.path.splitext(path)[1]}"
            sealed.append(os.path.join(os.path.dirname(path), file))
            if sealed[-1] != path:
                os.rename(path, sealed[-1])
        seal = write_seal(data, sealed)
        for folder, _, _ in os.walk(data, topdown=False):
            sync_path(folder)
        sync_path(self.root)
        return seal

    def files(self, name: str) -> list[str]:
        """The sealed files of a batch, by their paths. What a late task of Spark leaves beside them does not count."""
        return [path for path in visible_files(self.data(name)) if os.path.basename(path).startswith(f"part-{name}-")]

    def holds(self, name: str) -> bool:
        """Whether a committed batch is still to be shown."""
        return not is_missing(self.data(name))

    def check(self, name: str, seal: str, is_shown: Callable[[str], bool]) -> None:
        """Refuse a batch whose files are not what was sealed. Notes up to 0.5.1 have no seal."""
        if seal:
            check_seal(self.data(name), seal, is_shown)

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

    # ---- what earlier owners left -------------------------------------------------------------------------------

    def clear_dead(self, queue: str, log: str, group: str, grant: Grant, keep: str) -> None:
        """Remove what earlier owners of this partition began and can never commit, and what belongs to nobody.

        One walk over the directory serves all partitions that are claimed meanwhile, each in a thread of its own.
        """
        mine = Claim(queue, log, group, grant, keep)
        with self._asking:
            self._claims.add(mine)
        with self._sweeping:
            with self._asking:
                claims, self._claims = self._claims, set()
            try:
                if claims:
                    self._sweep(claims)
            except BaseException:
                with self._asking:  # each of the others tries again, and hears of it by itself
                    self._claims |= claims - {mine}
                raise

    def _sweep(self, claims: set[Claim]) -> None:
        for name, plan in self._read_plans():
            if any(claim.is_over(name, plan) for claim in claims):
                self.clear(name)
        self._sweep_unfinished(claims)
        for name in _names_in(self.root):
            if name.endswith(_OLD_UNFINISHED):
                self._sweep_old(name, claims)
            elif self.data(name) != self._plans and is_missing(self._plan(name)):
                # Of a task that wrote on after its driver's end, or half removed.
                shutil.rmtree(self.data(name), ignore_errors=True)
                with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                    os.unlink(self.data(name))

    def _sweep_unfinished(self, claims: set[Claim]) -> None:
        names = _names_in(self._plans)
        for name in names:
            is_over = places.is_unfinished(name) and places.FILE in names
            if about := partition_of_unfinished(name):
                is_over = any(claim.is_over_unfinished(*about) for claim in claims)
            if is_over:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._plans, name))

    def _sweep_old(self, file: str, claims: set[Claim]) -> None:
        name, plan = file.removesuffix(_OLD_UNFINISHED), read_plan(self.data(file))
        if plan is not None and any(claim.is_over(name, plan) for claim in claims):
            with suppress(FileNotFoundError):
                os.unlink(self.data(file))

    def _read_plans(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for file in _names_in(self._plans):
            path = os.path.join(self._plans, file)
            if file == places.FILE or not file.endswith(".json"):
                continue
            if plan := read_plan(path):
                yield file.removesuffix(".json"), plan
            elif not is_missing(path):  # what is not understood is not deleted
                logger.warning("%s is no plan that this version of PXRS knows: it stays, with its data", path)


def _names_in(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


# ---- which directory a staging directory is -------------------------------------------------------------------------
#     ROOT/plans/place.json   {"id": "3f9a…@host"}; "formerly" may list ids of places that are gone for good
#
# It stands among the plans, in the form of one that has no partitions: versions that know no ids leave it alone.


FILE = "place.json"
_UNFINISHED = ("place-", ".tmp")


def ids_in(plans: str) -> tuple[str, ...]:
    """The id of this place, and those for which it stands in; empty if it has none yet."""
    path = os.path.join(plans, FILE)
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read())
        ids = (found["id"], *found.get("formerly", ()))
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{path} does not say which staging directory this is: {error!r}") from error
    if not all(isinstance(one, str) and one for one in ids):
        raise Damaged(f"{path} does not say which staging directory this is: its ids must be texts")
    return ids


def new_id() -> str:
    """A random id. The name of this machine is for people only: they read it in refusals."""
    return f"{secrets.token_hex(8)}@{os.uname().nodename}"


def make_place(plans: str, place: str) -> tuple[str, ...]:
    """Give this place an id, durably, unless it has one. Returns what it has then."""
    make_directories(plans)
    begin, end = _UNFINISHED
    aside = os.path.join(plans, f"{begin}{secrets.token_hex(8)}{end}")
    content = json.dumps({"format": 1, "epochs": {}, "id": place}).encode()
    try:
        write_file(aside, content, sync=True)
        with suppress(FileExistsError, FileNotFoundError):  # another was first, and a sweep may have removed this one
            os.link(aside, os.path.join(plans, FILE))
    finally:
        with suppress(OSError):
            os.unlink(aside)
    sync_path(plans)
    return ids_in(plans)


def is_unfinished(name: str) -> bool:
    """Whether a file among the plans is an id on its way: of no use to anybody, once the place has one."""
    return name.startswith(_UNFINISHED[0]) and name.endswith(_UNFINISHED[1])
