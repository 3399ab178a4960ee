"""Output on its way, in a directory: written aside under a plan, and cleared away once nobody can commit it.

    ROOT/plans/place.json   which directory this is
    ROOT/plans/BATCH.json   whose it is: queue, log, group, the epoch of each partition
    ROOT/plans/*.tmp        a plan on its way; its name says whose it is, and a partition and its epoch
    ROOT/BATCH/             its data; what is complete is named part-BATCH-*
    ROOT/BATCH/_seal.json   its files: {"files": {"part-BATCH-00000.parquet": [SIZE, CHECKSUM], ...}}

The plan is durable before the first byte of data, and the data goes before its plan does. So data without a plan
belongs to nobody, and a plan whose epoch was overtaken can never be committed. A plan on its way is judged by the same
rule as a plan: nobody removes that of a living owner. The checksum of the seal is in the note. So its reader
knows that it is what was committed.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import xxhash

from pxrs.errors import BadSetting, Damaged, Fenced, Unavailable
from pxrs.io.durable import create_file, make_directories, sync_path, write_file
from pxrs.model import Batch, Grant
from pxrs.sinks.local_files import is_missing, visible_files

logger = logging.getLogger(__name__)

_PLACE, _SEAL = "place.json", "_seal.json"
_UNFINISHED = re.compile(r"([0-9a-f]{16})-(\d+)-(\d+)-[0-9a-f]{16}\.tmp")
_OLD_UNFINISHED = ".plan"
"""The ending, up to 0.5.1, of an unfinished plan: it was in the root, under the name of its batch."""
_PIECE = 1 << 20


class Claim(NamedTuple):
    """A partition that was claimed: nobody can commit what earlier owners began, but for the batch ``keep``."""

    queue: str
    log: str
    group: str
    grant: Grant
    keep: str

    @property
    def whose(self) -> str:
        return _whose(self.queue, self.log, self.group)

    def is_over(self, name: str, plan: dict[str, Any]) -> bool:
        """Whether a plan can never be committed any more."""
        epoch = plan["epochs"].get(str(self.grant.partition), self.grant.epoch)
        mine = (plan.get("queue"), plan.get("log"), plan.get("group")) == (self.queue, self.log, self.group)
        return mine and name != self.keep and bool(epoch < self.grant.epoch)

    def is_over_unfinished(self, whose: str, partition: int, epoch: int) -> bool:
        """Whether a plan that is being written is over, by its name."""
        return whose == self.whose and partition == self.grant.partition and epoch < self.grant.epoch


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
        """The directory of a batch's data."""
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
            found = ids_in(self._plans)
            if not found and not os.listdir(self.root):  # deleted on purpose, see above
                found = make_place(self._plans, place)
            if place not in found:
                raise self._elsewhere(place, found, batch)

    def _elsewhere(self, place: str, found: tuple[str, ...], batch: str) -> BadSetting:
        here = found[0] if found else "without an id"
        return BadSetting(
            f"{self.root} is another directory here ({here}) than where batch {batch} was staged ({place}): all "
            "members of a group need the same staging directory. Mount that one here, or give all members a "
            "staging=DIR that they share. If it is gone for good, write its id into the list "
            f'"formerly" of {self._plans}/{_PLACE}'
        )

    def _take_place(self, batch: Batch) -> None:
        """Make the directory and give it its id before the first batch, unless it is known to be another one."""
        if self.place:
            self.check_place(self.place, batch.name)
        else:
            new_id = f"{secrets.token_hex(8)}@{os.uname().nodename}"  # the name is for people: refusals show it
            self.place = (ids_in(self._plans) or make_place(self._plans, new_id))[0]

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
                with self._asking:  # each of the others tries again, and gets its own answer
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
            # An id on its way is of no use to anybody, once the place has one.
            is_over = name.startswith("place-") and name.endswith(".tmp") and _PLACE in names
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
            if file == _PLACE or not file.endswith(".json"):
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


# ---- plans --------------------------------------------------------------------------------------------------------
# A plan is written under another name first. That name tells as much as is needed to judge it, whatever is in the file.


def plan_of(batch: Batch) -> bytes:
    """The content of a plan."""
    epochs = {str(part.partition): part.epoch for part in batch.ranges}
    plan = {"format": 1, "queue": batch.queue, "log": batch.log, "group": batch.group, "epochs": epochs}
    return json.dumps(plan).encode()


def _whose(*names: str) -> str:
    return xxhash.xxh3_64_hexdigest("\0".join(names).encode())


def unfinished_name(batch: Batch) -> str:
    """The temporary name of a plan: a process that claims its first partition can judge it by the name."""
    first = min(batch.ranges, default=None)
    partition, epoch = (first.partition, first.epoch) if first else (0, 0)
    return f"{_whose(batch.queue, batch.log, batch.group)}-{partition}-{epoch}-{_whose(batch.name)}.tmp"


def partition_of_unfinished(name: str) -> tuple[str, int, int] | None:
    """The owner, one of the partitions and its epoch, from the name of a plan that is being written."""
    found = _UNFINISHED.fullmatch(name)
    return (found[1], int(found[2]), int(found[3])) if found else None


def read_plan(path: str) -> dict[str, Any] | None:
    """None: it is gone, or not understood."""
    try:
        with open(path, "rb") as opened:
            plan = json.loads(opened.read())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    epochs = plan.get("epochs") if isinstance(plan, dict) and plan.get("format") == 1 else None
    return plan if isinstance(epochs, dict) and all(isinstance(epoch, int) for epoch in epochs.values()) else None


# ---- seals --------------------------------------------------------------------------------------------------------


def write_seal(data: str, paths: Iterable[str]) -> str:
    """Make these files of a batch durable, and say what they are. Returns the checksum of that; "" for no files."""
    files = {}
    for path in paths:
        sync_path(path)  # somebody else wrote it: Spark's tasks, or Arrow
        files[os.path.relpath(path, data)] = _measured(path)
    if not files:
        return ""
    content = json.dumps({"format": 1, "files": files}).encode()
    write_file(os.path.join(data, _SEAL), content, sync=True)
    return xxhash.xxh3_64_hexdigest(content)


def check_seal(data: str, seal: str, is_shown: Callable[[str], bool]) -> None:
    """Refuse a batch whose files are not those that were committed. ``is_shown``: whether one was moved on already."""
    for name, (size, checksum) in _files_in(data, seal).items():
        path = os.path.join(data, name)
        try:
            found = _measured(path)
        except FileNotFoundError:
            if is_shown(name) or not os.path.lexists(data):  # in this order: others may be about to finish the batch
                continue
            raise _damaged(path, "is gone", data) from None
        if found[0] != size:
            raise _damaged(path, f"has {found[0]} bytes, and {size} were written", data)
        if found[1] != checksum:
            raise _damaged(path, "has another checksum than when it was written", data)


def _files_in(data: str, seal: str) -> dict[str, tuple[int, str]]:
    path = os.path.join(data, _SEAL)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        if not os.path.lexists(data):  # somebody else has just finished it
            return {}
        raise _damaged(path, "is gone", data) from None
    if xxhash.xxh3_64_hexdigest(content) != seal:
        raise _damaged(path, "has another checksum than when it was written", data)
    found: dict[str, tuple[int, str]] = json.loads(content)["files"]
    return found


def _damaged(path: str, what: str, data: str) -> Damaged:
    return Damaged(
        f"{path}, which is committed and not shown yet, {what}: it is not published. Bring the file back; or, if its "
        f"rows may be lost, delete the directory {data}"
    )


def _measured(path: str) -> tuple[int, str]:
    """The size and the checksum of a file."""
    size, checksum, piece = 0, xxhash.xxh3_64(), memoryview(bytearray(_PIECE))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(piece):
            checksum.update(piece[:count])
            size += count
    return size, checksum.hexdigest()


# ---- which directory a staging directory is -------------------------------------------------------------------------
#     ROOT/plans/place.json   {"id": "3f9a…@host"}; "formerly" may list ids of places that are gone for good
#
# It is among the plans, in the form of one that has no partitions: versions that know no ids leave it alone.


def ids_in(plans: str) -> tuple[str, ...]:
    """The id of this place, and those that it replaces; empty if it has none yet."""
    path = os.path.join(plans, _PLACE)
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


def make_place(plans: str, place: str) -> tuple[str, ...]:
    """Give this place an id, durably, unless it has one. Returns its id."""
    make_directories(plans)
    aside = os.path.join(plans, f"place-{secrets.token_hex(8)}.tmp")
    content = json.dumps({"format": 1, "epochs": {}, "id": place}).encode()
    try:
        write_file(aside, content, sync=True)
        with suppress(FileExistsError, FileNotFoundError):  # another was first, and a sweep may have removed this one
            os.link(aside, os.path.join(plans, _PLACE))
    finally:
        with suppress(OSError):
            os.unlink(aside)
    sync_path(plans)
    return ids_in(plans)
