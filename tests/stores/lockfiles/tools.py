"""Helpers of the tests of lock files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pxrs.model import Partition
from pxrs.rules.row_format import decode_partition
from pxrs.stores.lockfiles.journal import Mutex
from pxrs.stores.lockfiles.rows import RowFiles

ROOT = Path(__file__).resolve().parents[3]
PARTITIONS = "/pxrs/orders/billing/partition/"
PATIENCE = 60.0


def command(work: str, **args: Any) -> list[str]:
    """How a process of ``lockfiles_child`` is started that does one thing."""
    return [sys.executable, "-m", "tests.stores.lockfiles.child", work, json.dumps(args)]


def start(work: str, **args: Any) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.Popen(command(work, **args), cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def rows_shown(place: Path) -> list[Partition]:
    """The partition rows, after a look at the trees for people, in one moment: both must tell the same."""
    if not (place / "registry").is_dir():
        return []  # it is made by the first member that starts
    with Mutex(str(place / "registry" / "mutex"), PATIENCE).held():
        stored = sorted(RowFiles(str(place / "rows")).scan(PARTITIONS))
        rows = [decode_partition(int(key[-5:]), row.value) for key, row in stored]
        locks, offsets = _texts(place / "consumer_locks"), _texts(place / "consumer_offsets")
    for row in rows:
        lock, offset = (
            locks.pop(f"partition-{row.number}.lock", None),
            offsets.pop(f"partition-{row.number}.offset", None),
        )
        assert (lock is None) == (row.owner is None), row
        assert (offset is None) == (row.checkpoint is None), row
        if lock is not None and row.owner is not None:
            assert {f"owner: {row.owner.id}", f"epoch: {row.epoch}", f"incarnation: {row.owner.inc}"} <= lock, row
        if offset is not None:
            assert f"next offset to process: {row.checkpoint}" in offset, row
    assert not locks and not offsets, "files of partitions that are not there"
    return rows


def _texts(tree: Path) -> dict[str, set[str]]:
    return {path.name: set(path.read_text().splitlines()) for path in (tree / "billing").glob("*")}


def lock_of(place: Path, number: int) -> dict[str, str]:
    """What a lock file tells: owner, epoch, pid, ..."""
    lines = (place / "consumer_locks" / "billing" / f"partition-{number}.lock").read_text().splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line)
