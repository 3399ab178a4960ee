"""The plan of a staged batch: whose it is, and when it can never be committed any more.

A plan is written under another name first. That name tells as much as is needed to judge it, whatever is in the file.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import xxhash

from pxrs.model import Batch, Grant

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
