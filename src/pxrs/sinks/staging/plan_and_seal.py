"""The seal of a staged batch: which files it has, how large they are, and their checksums.

    ROOT/BATCH/_seal.json   {"files": {"part-BATCH-00000.parquet": [SIZE, CHECKSUM], ...}}

The checksum of the seal itself stands in the note. So whoever shows the batch knows that it is what was committed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import xxhash

from pxrs.errors import Damaged
from pxrs.io.durable import sync_path, write_file
from pxrs.model import Batch, Grant

FILE = "_seal.json"
_PIECE = 1 << 20


def write_seal(data: str, paths: Iterable[str]) -> str:
    """Make these files of a batch durable, and say what they are. Returns the checksum of that; "" for no files."""
    files = {os.path.relpath(path, data): _synced(path) for path in paths}
    if not files:
        return ""
    content = json.dumps({"format": 1, "files": files}).encode()
    write_file(os.path.join(data, FILE), content, sync=True)
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
    path = os.path.join(data, FILE)
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


def _synced(path: str) -> tuple[int, str]:
    """Make durable what somebody else wrote, as Spark's tasks and Arrow do. Returns its size and checksum."""
    sync_path(path)
    return _measured(path)


def _measured(path: str) -> tuple[int, str]:
    size, checksum, piece = 0, xxhash.xxh3_64(), memoryview(bytearray(_PIECE))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(piece):
            checksum.update(piece[:count])
            size += count
    return size, checksum.hexdigest()


# ---- the plan of a staged batch -------------------------------------------------------------------------------------
# A plan is written under another name first. That name tells as much as is needed to judge it, whatever is in the file.


_UNFINISHED = re.compile(r"([0-9a-f]{16})-(\d+)-(\d+)-[0-9a-f]{16}\.tmp")


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
        """The same for a plan on its way, by what its name says."""
        return whose == self.whose and partition == self.grant.partition and epoch < self.grant.epoch


def plan_of(batch: Batch) -> bytes:
    """The content of a plan."""
    epochs = {str(part.partition): part.epoch for part in batch.ranges}
    plan = {"format": 1, "queue": batch.queue, "log": batch.log, "group": batch.group, "epochs": epochs}
    return json.dumps(plan).encode()


def _whose(*names: str) -> str:
    return xxhash.xxh3_64_hexdigest("\0".join(names).encode())


def unfinished_name(batch: Batch) -> str:
    """The name of a plan on its way: it can be judged, whatever is in it, by whoever claims its first partition."""
    first = min(batch.ranges, default=None)
    partition, epoch = (first.partition, first.epoch) if first else (0, 0)
    return f"{_whose(batch.queue, batch.log, batch.group)}-{partition}-{epoch}-{_whose(batch.name)}.tmp"


def partition_of_unfinished(name: str) -> tuple[str, int, int] | None:
    """Of a plan on its way, by its name: whose it is, one of its partitions, and the epoch of that."""
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
