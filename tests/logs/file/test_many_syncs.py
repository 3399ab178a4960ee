"""Many partitions are synced by a few threads, each of them by itself."""

from __future__ import annotations

import os

import pytest

from pxrs.errors import Damaged
from pxrs.logs.file import log as files
from tests.logs.conftest import OpenFile
from tests.logs.helpers import entries, read_all

MANY = 40


def append_to(log: files.FileLog, partitions: int) -> None:
    log.append({number: entries([b"%d" % number]) for number in range(partitions)})


@pytest.mark.parametrize("partitions", [1, 3, MANY])
def test_every_partition_is_synced(open_file: OpenFile, monkeypatch: pytest.MonkeyPatch, partitions: int) -> None:
    log, real, synced = open_file(MANY), os.fdatasync, list[str]()
    append_to(log, MANY)

    def noted(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fdatasync", noted)
    append_to(log, partitions)
    assert len(set(synced)) == len(synced) == partitions
    assert [offset for offset, _ in read_all(open_file(None), partitions - 1)] == [0, 1]


def test_b28_where_one_sync_fails_the_others_go_on(open_file: OpenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a file's own sync tells whose data is lost: the one it fails for is poisoned, the others go on."""
    log = open_file(MANY)
    append_to(log, MANY)
    broken, real = log._partition(7)[1], os.fdatasync

    def fdatasync(fd: int) -> None:
        if fd == broken._fd:
            raise OSError(5, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with pytest.raises(Damaged, match="partition 7"):
        append_to(log, MANY)
    monkeypatch.undo()
    with pytest.raises(Damaged, match="partition 7"):
        log.append({7: entries([b"x"])})
    assert log.append({8: entries([b"x"])})[8] in (1, 2)
